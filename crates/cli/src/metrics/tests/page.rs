//! A strict parser of the text format: it panics on everything that is not allowed.

use std::collections::BTreeMap;

/// A metric as its head describes it, and the labels of its series.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Head {
    pub(super) kind: String,
    pub(super) unit: String,
    pub(super) help: String,
    pub(super) labels: Vec<String>,
}

/// A name and labels, in the order in which they appear.
pub(super) type Series = (String, Vec<(String, String)>);

#[derive(Debug, Default)]
pub(super) struct Page {
    pub(super) heads: BTreeMap<String, Head>,
    series: BTreeMap<Series, f64>,
}

impl Page {
    pub(super) fn parse(text: &str) -> Self {
        let lines = text.strip_suffix("# EOF\n").expect("the end is marked").lines();
        let mut page = Self::default();
        let mut name = String::new();
        for line in lines {
            match line.strip_prefix("# ") {
                Some(head) => {
                    let (word, rest) = head.split_once(' ').unwrap();
                    let (of, value) = rest.split_once(' ').unwrap();
                    if word == "HELP" {
                        assert!(page.heads.insert(of.to_owned(), Head::default()).is_none(), "twice: {of}");
                        name = of.to_owned();
                    }
                    assert_eq!(of, name, "one metric after the other");
                    let head = page.heads.get_mut(of).unwrap();
                    match word {
                        "HELP" => head.help = value.to_owned(),
                        "TYPE" => head.kind = value.to_owned(),
                        "UNIT" => head.unit = value.to_owned(),
                        _ => panic!("{line}"),
                    }
                }
                None => page.sample(&name, line),
            }
        }
        page
    }

    fn sample(&mut self, name: &str, line: &str) {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (sample, labels) = match series.split_once('{') {
            Some((sample, labels)) => (sample, labels_of(labels.strip_suffix('}').unwrap())),
            None => (series, Vec::new()),
        };
        let head = self.heads.get_mut(name).unwrap();
        let allowed: &[&str] = match head.kind.as_str() {
            "counter" => &["_total"],
            "gauge" => &[""],
            "info" => &["_info"],
            "histogram" => &["_bucket", "_sum", "_count"],
            other => panic!("{other}"),
        };
        let suffix = sample.strip_prefix(name).unwrap_or_else(|| panic!("{line} below {name}"));
        assert!(allowed.contains(&suffix), "{line}");
        let names: Vec<_> = labels.iter().map(|(name, _)| name.clone()).filter(|name| name != "le").collect();
        if !names.is_empty() {
            head.labels = names;
        }
        let value: f64 = value.parse().unwrap();
        assert!(value.is_finite(), "{line}");
        assert!(self.series.insert((sample.to_owned(), labels), value).is_none(), "twice: {line}");
    }

    /// The value of the series `sample` with these label values.
    #[track_caller]
    pub(super) fn value(&self, sample: &str, labels: &[&str]) -> f64 {
        self.find(sample, labels).unwrap_or_else(|| panic!("no {sample} of {labels:?}"))
    }

    pub(super) fn find(&self, sample: &str, labels: &[&str]) -> Option<f64> {
        let is_it = |(name, found): &Series| {
            name == sample && found.iter().map(|(_, value)| value.as_str()).eq(labels.iter().copied())
        };
        self.series.iter().find(|(series, _)| is_it(series)).map(|(_, value)| *value)
    }

    pub(super) fn count(&self, sample: &str) -> usize {
        self.series.keys().filter(|(name, _)| name == sample).count()
    }

    /// All counters.
    pub(super) fn counters(&self) -> impl Iterator<Item = (&Series, f64)> {
        self.series.iter().filter(|((name, _), _)| name.ends_with("_total")).map(|(series, value)| (series, *value))
    }
}

/// Parses `a="b",c="d"`, including escapes.
fn labels_of(text: &str) -> Vec<(String, String)> {
    let mut labels = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (name, after) = rest.split_once("=\"").unwrap();
        let mut value = String::new();
        let mut letters = after.char_indices();
        let end = loop {
            match letters.next().expect("a label ends") {
                (at, '"') => break at,
                (_, '\\') => value.push(match letters.next().unwrap().1 {
                    'n' => '\n',
                    letter @ ('\\' | '"') => letter,
                    other => panic!("\\{other} is nothing"),
                }),
                (_, letter) => value.push(letter),
            }
        };
        labels.push((name.to_owned(), value));
        rest = after[end + 1..].trim_start_matches(',');
    }
    labels
}
