//! Cumulative distributions drawn as SVG, on a logarithmic scale.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

const SIZE: (u32, u32) = (600, 340);
const FONT: (&str, i32) = ("sans-serif", 15);
const TITLE_FONT: (&str, i32) = ("sans-serif", 18);
/// Distinct also for colour-blind readers (Okabe and Ito). Without any colour the dashes tell curves apart.
const COLORS: [RGBColor; 6] = [
    RGBColor(213, 94, 0),
    RGBColor(230, 159, 0),
    RGBColor(0, 114, 178),
    RGBColor(0, 158, 115),
    RGBColor(86, 180, 233),
    RGBColor(204, 121, 167),
];
/// The dashes of the curves in the same order; the first is solid.
const DASHES: [&str; 6] = ["", "10 3", "4 3", "10 3 2 3", "2 2", "14 3 2 3 2 3"];
const DIM: RGBColor = RGBColor(140, 140, 140);
/// Where the legend may be, the best place first, with its lower left corner as a share of the width and height.
const LEGENDS: [(SeriesLabelPosition, [f64; 2]); 5] = [
    (SeriesLabelPosition::LowerRight, [1.0 - LEGEND_PART[0], 0.0]),
    (SeriesLabelPosition::LowerMiddle, [0.5 - LEGEND_PART[0] / 2.0, 0.0]),
    (SeriesLabelPosition::UpperLeft, [0.0, 1.0 - LEGEND_PART[1]]),
    (SeriesLabelPosition::MiddleMiddle, [0.5 - LEGEND_PART[0] / 2.0, 0.5 - LEGEND_PART[1] / 2.0]),
    (SeriesLabelPosition::LowerLeft, [0.0, 0.0]),
];
/// The size of the legend, as a share of the width and height.
const LEGEND_PART: [f64; 2] = [0.3, 0.45];

/// Something that can be drawn as a diagram.
pub(crate) trait Draw {
    /// The diagram as an `<svg>` element.
    ///
    /// # Errors
    /// It has no data, or cannot be drawn.
    fn svg(&self) -> Result<String>;
}

/// A color in the notation of SVG; there are six.
pub(crate) fn color_name(number: usize) -> String {
    let RGBColor(red, green, blue) = COLORS[number % COLORS.len()];
    format!("#{red:02X}{green:02X}{blue:02X}")
}

/// `svg` with each colored line dashed in its own way: the library draws curves solid.
fn dashed(svg: &str) -> String {
    let line = |line: &str| {
        let stroke = |number: &usize| line.contains(&format!("stroke=\"{}\"", color_name(*number)));
        let number = (1..COLORS.len()).find(stroke).filter(|_| line.starts_with("<polyline"));
        let dashes = number.map_or_else(String::new, |number| format!(" stroke-dasharray=\"{}\"", DASHES[number]));
        line.replacen("<polyline", &format!("<polyline{dashes}"), 1) + "\n"
    };
    svg.lines().map(line).collect()
}

/// A diagram.
pub(crate) struct Plot {
    pub(crate) title: String,
    /// The quantity and unit of the samples.
    pub(crate) axis: &'static str,
    pub(crate) curves: Vec<Curve>,
    pub(crate) marks: Vec<Marks>,
}

/// The distribution of samples, which are above zero.
pub(crate) struct Curve {
    name: &'static str,
    color: RGBColor,
    samples: Vec<f64>,
}

/// Known points of another distribution, drawn as rings.
pub(crate) struct Marks {
    /// The color of the curve with the same number.
    pub(crate) color: usize,
    /// The share and the value of each point.
    pub(crate) points: Vec<(f64, f64)>,
}

impl Curve {
    /// A curve in one of six colors, with dashes of its own.
    pub(crate) fn new(name: &'static str, color: usize, samples: Vec<f64>) -> Self {
        Self { name, color: COLORS[color % COLORS.len()], samples: thinned(samples) }
    }

    /// A grey curve, which the others are compared with.
    pub(crate) fn dim(name: &'static str, samples: Vec<f64>) -> Self {
        Self { name, color: DIM, samples: thinned(samples) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// Value and share, smallest first.
    fn steps(&self) -> Vec<(f64, f64)> {
        let count = self.samples.len() as f64;
        let mut steps = Vec::with_capacity(2 * self.samples.len());
        for (below, value) in self.samples.iter().copied().enumerate() {
            steps.extend([(value, below as f64 / count), (value, (below + 1) as f64 / count)]);
        }
        steps
    }
}

/// The samples in ascending order, reduced to as many as the curve needs.
fn thinned(mut samples: Vec<f64>) -> Vec<f64> {
    const POINTS: usize = 400;
    samples.sort_by(f64::total_cmp);
    let last = samples.len().saturating_sub(1);
    match samples.len() {
        0..=POINTS => samples,
        _ => (0..POINTS).map(|point| samples[last * point / (POINTS - 1)]).collect(),
    }
}

impl Draw for Plot {
    fn svg(&self) -> Result<String> {
        let mut svg = String::new();
        // Its errors borrow the text that it writes.
        self.draw(&mut svg).map_err(|error| anyhow!("cannot draw \"{}\": {error}", self.title))?;
        Ok(dashed(&svg))
    }
}

impl Plot {
    fn draw(&self, svg: &mut String) -> std::result::Result<(), Box<dyn std::error::Error>> {
        let samples = self.curves.iter().flat_map(|curve| &curve.samples).copied();
        let points = self.marks.iter().flat_map(|marks| &marks.points).map(|(_, value)| *value);
        let values: Vec<f64> = samples.chain(points).collect();
        let least = values.iter().copied().reduce(f64::min).ok_or("no samples")?;
        let most = values.iter().copied().fold(least, f64::max);
        let ends = least / 1.2..most * 1.2;
        let legend = self.legend_place(&ends);

        let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        let mut chart = ChartBuilder::on(&area)
            .margin(8)
            .caption(&self.title, TITLE_FONT)
            .x_label_area_size(42)
            .y_label_area_size(54)
            .build_cartesian_2d(ends.log_scale(), 0.0..1.02)?;
        chart
            .configure_mesh()
            .x_desc(self.axis)
            .x_label_formatter(&|value| format!("{value}"))
            .y_label_formatter(&|share| format!("{:.0} %", share * 100.0))
            .label_style(FONT)
            .light_line_style(RGBColor(235, 235, 235))
            .draw()?;
        for curve in &self.curves {
            let color = curve.color;
            chart
                .draw_series([PathElement::new(curve.steps(), color.stroke_width(2))])?
                .label(curve.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2)));
        }
        for marks in &self.marks {
            let style = COLORS[marks.color % COLORS.len()].stroke_width(1);
            chart.draw_series(marks.points.iter().map(|(share, value)| Circle::new((*value, *share), 4, style)))?;
        }
        chart
            .configure_series_labels()
            .position(legend)
            .label_font(FONT)
            .background_style(WHITE.mix(0.85))
            .border_style(DIM)
            .draw()?;
        area.present()?;
        Ok(())
    }

    /// The place where the legend hides the fewest points. `ends` are those of the axis.
    fn legend_place(&self, ends: &std::ops::Range<f64>) -> SeriesLabelPosition {
        let part = |value: f64| (value / ends.start).ln() / (ends.end / ends.start).ln();
        let of_curves = self.curves.iter().flat_map(Curve::steps);
        let of_marks = self.marks.iter().flat_map(|marks| &marks.points).map(|(share, value)| (*value, *share));
        let points: Vec<[f64; 2]> = of_curves.chain(of_marks).map(|(value, share)| [part(value), share]).collect();
        let hidden = |corner: [f64; 2]| {
            let is_in = |point: &&[f64; 2]| {
                (0..2).all(|axis| (corner[axis]..corner[axis] + LEGEND_PART[axis]).contains(&point[axis]))
            };
            points.iter().filter(is_in).count()
        };
        let best = LEGENDS.into_iter().min_by_key(|(_, corner)| hidden(*corner));
        best.map_or(SeriesLabelPosition::LowerRight, |(position, _)| position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(curves: Vec<Curve>) -> Plot {
        let marks = vec![Marks { color: 0, points: vec![(0.5, 3.0)] }];
        Plot { title: "a < b".to_owned(), axis: "ms", curves, marks }
    }

    #[test]
    fn a_curve_rises_at_each_sample() {
        let curve = Curve::new("x", 0, vec![3.0, 1.0]);
        assert_eq!(curve.steps(), [(1.0, 0.0), (1.0, 0.5), (3.0, 0.5), (3.0, 1.0)]);
    }

    #[test]
    fn a_curve_of_many_samples_keeps_its_ends_and_its_middle() {
        let thin = thinned((0..100_000).rev().map(f64::from).collect());
        assert_eq!((thin.len(), thin[0], thin[399]), (400, 0.0, 99_999.0));
        assert!((thin[200] - 50_000.0).abs() < 300.0);
        assert_eq!(thinned(vec![2.0, 1.0]), [1.0, 2.0]);
        assert!(thinned(Vec::new()).is_empty());
    }

    #[test]
    fn a_plot_is_one_element_with_its_texts_escaped() {
        let svg = plot(vec![Curve::new("one", 0, vec![0.01, 0.2, 4.0]), Curve::dim("other", vec![1.0])]).svg().unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
        assert!(svg.contains("one") && svg.contains("other") && svg.contains("a &lt; b"), "{svg}");
        let second = plot(vec![Curve::new("two", 1, vec![0.01, 4.0])]).svg().unwrap();
        assert!(second.contains("stroke-dasharray") && !svg.contains("stroke-dasharray"), "{second}");
    }

    #[test]
    fn the_legend_is_where_no_curve_is() {
        let corner = |samples| plot(vec![Curve::new("x", 0, samples)]).legend_place(&(0.1..1000.0));
        let lowest: Vec<f64> = (0..100).map(|nth| 0.1 + f64::from(nth) / 1000.0).collect();
        assert!(matches!(corner(lowest), SeriesLabelPosition::LowerRight));
        let highest: Vec<f64> = (0..100).map(|nth| 800.0 + f64::from(nth)).collect();
        assert!(matches!(corner(highest), SeriesLabelPosition::LowerMiddle), "the mark is above");
    }

    #[test]
    fn one_value_is_drawn_and_none_is_an_error() {
        plot(vec![Curve::new("x", 9, vec![3.0])]).svg().unwrap();
        let nothing = Plot { title: String::new(), axis: "ms", curves: Vec::new(), marks: Vec::new() };
        assert!(nothing.svg().unwrap_err().to_string().contains("no samples"));
    }
}
