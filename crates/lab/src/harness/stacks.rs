//! Figures drawn as SVG: horizontal bars that consist of parts, with a legend of the parts.

use anyhow::{Result, ensure};

use super::bars::{BAR, GAP, LEFT, LONGEST, TOP, WIDTH, bar, element, text};
use super::plot::Draw;
use super::quantity::figure;

/// One diagram.
pub(crate) struct Stacks {
    pub(crate) title: String,
    /// The names of the parts; each has a color.
    pub(crate) parts: Vec<&'static str>,
    /// The name of each bar, thirty letters at most, and its parts from the left.
    pub(crate) bars: Vec<(String, Vec<f64>)>,
}

impl Draw for Stacks {
    fn svg(&self) -> Result<String> {
        ensure!(!self.bars.is_empty(), "cannot draw \"{}\": no figures", self.title);
        let most = self.bars.iter().map(|(_, parts)| parts.iter().sum()).fold(0.0, f64::max);
        let length = |value: f64| if most > 0.0 { LONGEST * value / most } else { 0.0 };
        let (mut body, mut y) = (String::new(), TOP);
        text(&mut body, (WIDTH / 2.0, 22.0), "middle", 18, &self.title);
        for (name, parts) in &self.bars {
            text(&mut body, (LEFT - 8.0, y + BAR - 2.0), "end", 14, name);
            let mut x = LEFT;
            for (color, part) in parts.iter().enumerate() {
                bar(&mut body, (x, y), length(*part), color);
                x += length(*part);
            }
            text(&mut body, (x + 5.0, y + BAR - 3.0), "start", 13, &figure(parts.iter().sum()));
            y += BAR + GAP;
        }
        for (color, part) in self.parts.iter().enumerate() {
            bar(&mut body, (LEFT, y), BAR, color);
            text(&mut body, (LEFT + BAR + 5.0, y + BAR - 3.0), "start", 13, part);
            y += BAR + 4.0;
        }
        Ok(element(y, &body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_one_another_and_the_bar_has_their_sum() {
        let bars = vec![("write".to_owned(), vec![3.0, 1.0]), ("stat".to_owned(), vec![1.0, 1.0])];
        let stacks = Stacks { title: "t".to_owned(), parts: vec!["first", "second"], bars };
        let svg = stacks.svg().unwrap();
        assert_eq!(svg.matches("<rect").count(), 6, "four parts and two of the legend: {svg}");
        for part in ["x=\"395.0\"", "width=\"165.0\"", "4.00", "2.00", "first", "second", "write", "stat"] {
            assert!(svg.contains(part), "{part}: {svg}");
        }
        assert!(Stacks { bars: Vec::new(), ..stacks }.svg().is_err());
    }
}
