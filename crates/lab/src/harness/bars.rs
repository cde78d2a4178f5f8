//! Figures drawn as SVG, one bar each: groups of them below one another, with the figure at the end of the bar.

use std::fmt::Write;

use anyhow::{Result, ensure};

use crate::page::escaped;
use crate::plot::{Draw, color_name};
use crate::quantity::figure;

const WIDTH: f64 = 600.0;
/// Where bars begin, and how long the longest is; right of it is its figure.
const LEFT: f64 = 230.0;
const LONGEST: f64 = 310.0;
const TOP: f64 = 64.0;
const BAR: f64 = 15.0;
const GAP: f64 = 12.0;

/// One diagram.
pub(crate) struct Bars {
    pub(crate) title: String,
    /// Who has a bar in each group; each has a color.
    pub(crate) subjects: Vec<&'static str>,
    /// What is told, in thirty letters, and the figure of each subject that has one.
    pub(crate) groups: Vec<(String, Vec<Option<f64>>)>,
}

impl Draw for Bars {
    fn svg(&self) -> Result<String> {
        let figures = || self.groups.iter().flat_map(|(_, figures)| figures).flatten().copied();
        let most = figures().fold(0.0, f64::max);
        ensure!(figures().next().is_some(), "cannot draw \"{}\": no figures", self.title);
        let (mut body, mut y) = (String::new(), TOP);
        for (name, figures) in &self.groups {
            let bars = figures.iter().flatten().count();
            let middle = y + BAR * bars as f64 / 2.0;
            text(&mut body, (LEFT - 8.0, middle + 5.0), "end", 14, name);
            for (number, value) in figures.iter().enumerate().filter_map(|(number, value)| Some((number, (*value)?))) {
                let length = if most > 0.0 { LONGEST * value / most } else { 0.0 };
                rectangle(&mut body, (LEFT, y + 1.0), (length.max(1.0), BAR - 2.0), number);
                text(&mut body, (LEFT + length.max(1.0) + 5.0, y + BAR - 3.0), "start", 13, &figure(value));
                y += BAR;
            }
            y += GAP;
        }
        let mut head = String::new();
        text(&mut head, (WIDTH / 2.0, 22.0), "middle", 18, &self.title);
        if self.subjects.len() > 1 {
            self.legend(&mut head);
        }
        Ok(format!("<svg viewBox=\"0 0 {WIDTH} {y}\" role=\"img\" font-family=\"sans-serif\">\n{head}{body}</svg>\n"))
    }
}

impl Bars {
    fn legend(&self, svg: &mut String) {
        /// About what a letter takes, and a mark with the space around it.
        const LETTER: f64 = 7.5;
        const MARK: f64 = 34.0;
        let widths = self.subjects.iter().map(|name| name.chars().count() as f64 * LETTER + MARK);
        let mut x = ((WIDTH - widths.clone().sum::<f64>()) / 2.0).max(0.0);
        for (number, (name, width)) in self.subjects.iter().zip(widths).enumerate() {
            rectangle(svg, (x, 36.0), (12.0, 12.0), number);
            text(svg, (x + 18.0, 47.0), "start", 14, name);
            x += width;
        }
    }
}

// Writing to a string does not fail.

fn rectangle(svg: &mut String, (x, y): (f64, f64), (width, height): (f64, f64), color: usize) {
    let color = color_name(color);
    let _ =
        writeln!(svg, "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{color}\"/>");
}

fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, size: u32, text: &str) {
    let text = escaped(text);
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\" fill=\"#000000\">{text}</text>"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_has_a_bar_of_its_length() {
        let groups = vec![("a < b".to_owned(), vec![Some(2.0), Some(1.0)]), ("c".to_owned(), vec![None, Some(0.0)])];
        let bars = Bars { title: "t".to_owned(), subjects: vec!["one", "other"], groups };
        let svg = bars.svg().unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>") && svg.contains("a &lt; b"), "{svg}");
        // Two in the legend, and three.
        assert_eq!(svg.matches("<rect").count(), 5);
        assert!(svg.contains("width=\"310.0\"") && svg.contains("width=\"155.0\"") && svg.contains("width=\"1.0\""));
    }

    #[test]
    fn without_figures_there_is_nothing_to_draw() {
        let bars = Bars { title: "t".to_owned(), subjects: vec!["one"], groups: vec![("a".to_owned(), vec![None])] };
        assert!(bars.svg().unwrap_err().to_string().contains("no figures"));
    }
}
