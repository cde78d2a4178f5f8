//! Figures drawn as SVG: groups of horizontal bars, each with its interval, its figure and its name, and bars that consist
//! of parts.

use std::fmt::Write;

use anyhow::{Result, ensure};

use super::page::escaped;
use super::plot::{Draw, color_name};
use super::quantity::figure;
use super::statistics::Estimate;

const WIDTH: f64 = 600.0;
/// Where bars begin, and how long the longest is; to the right of it are its figure and its name.
const LEFT: f64 = 230.0;
const LONGEST: f64 = 220.0;
const TOP: f64 = 40.0;
const BAR: f64 = 15.0;
const GAP: f64 = 12.0;

/// A diagram of groups of bars.
pub(crate) struct Bars {
    pub(crate) title: String,
    /// The bars of each group; each has a color.
    pub(crate) subjects: Vec<&'static str>,
    /// A name of thirty letters at most, and the figure of each subject that has one.
    pub(crate) groups: Vec<(String, Vec<Option<Estimate>>)>,
}

impl Draw for Bars {
    fn svg(&self) -> Result<String> {
        let figures = || self.groups.iter().flat_map(|(_, figures)| figures).flatten();
        ensure!(figures().next().is_some(), "cannot draw \"{}\": no figures", self.title);
        let most = figures().map(|estimate| estimate.value.max(estimate.high)).fold(0.0, f64::max);
        let length = |value: f64| if most > 0.0 { LONGEST * value / most } else { 0.0 }.max(1.0);
        let (mut body, mut y) = (String::new(), TOP);
        text(&mut body, (WIDTH / 2.0, 22.0), "middle", 18, &self.title);
        for (name, figures) in &self.groups {
            let middle = y + BAR * figures.iter().flatten().count() as f64 / 2.0;
            text(&mut body, (LEFT - 8.0, middle + 5.0), "end", 14, name);
            for (number, (subject, estimate)) in self.subjects.iter().zip(figures).enumerate() {
                let Some(Estimate { value, low, high }) = estimate else { continue };
                bar(&mut body, (LEFT, y + 1.0), length(*value), number);
                if low < high {
                    whisker(&mut body, y + BAR / 2.0, length(*low), length(*high));
                }
                let name = if self.subjects.len() > 1 { subject } else { "" };
                let label = format!("{} {name}", figure(*value));
                text(&mut body, (LEFT + length(value.max(*high)) + 5.0, y + BAR - 3.0), "start", 13, label.trim());
                y += BAR;
            }
            y += GAP;
        }
        Ok(element(y, &body))
    }
}

/// The diagram around `body`, as high as its rows.
fn element(height: f64, body: &str) -> String {
    format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" font-family=\"sans-serif\">\n{body}</svg>\n")
}

// Writing to a string does not fail.

fn bar(svg: &mut String, (x, y): (f64, f64), width: f64, color: usize) {
    let (height, color) = (BAR - 2.0, color_name(color));
    let _ = writeln!(
        svg,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{color}\" stroke=\"#000000\" \
         stroke-width=\"0.5\"/>"
    );
}

/// The interval over the end of a bar.
fn whisker(svg: &mut String, y: f64, low: f64, high: f64) {
    let (low, high, top, bottom) = (LEFT + low, LEFT + high, y - 4.0, y + 4.0);
    let _ = writeln!(
        svg,
        "<path d=\"M{low:.1} {y:.1}H{high:.1}M{low:.1} {top:.1}V{bottom:.1}M{high:.1} {top:.1}V{bottom:.1}\" fill=\"none\" \
         stroke=\"#000000\"/>"
    );
}

fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, size: u32, text: &str) {
    let text = escaped(text);
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\" fill=\"#000000\">{text}</text>"
    );
}

/// A diagram of bars that consist of parts, with a legend of the parts.
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
    fn each_figure_has_a_bar_of_its_length_with_its_name_and_interval() {
        let exactly = |value| Some(Estimate::exactly(value));
        let wide = Some(Estimate { value: 1.0, low: 0.5, high: 2.0 });
        let groups = vec![("a < b".to_owned(), vec![exactly(2.0), wide]), ("c".to_owned(), vec![None, exactly(0.0)])];
        let bars = Bars { title: "t".to_owned(), subjects: vec!["one", "other"], groups };
        let svg = bars.svg().unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>") && svg.contains("a &lt; b"), "{svg}");
        assert_eq!((svg.matches("<rect").count(), svg.matches("<path").count()), (3, 1));
        for part in ["width=\"220.0\"", "width=\"110.0\"", "width=\"1.0\"", "2.00 one", "1.00 other"] {
            assert!(svg.contains(part), "{part}: {svg}");
        }
        let none = Bars { title: "t".to_owned(), subjects: vec!["one"], groups: vec![("a".to_owned(), vec![None])] };
        assert!(none.svg().unwrap_err().to_string().contains("no figures"));
    }

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
