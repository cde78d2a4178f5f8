//! The page in Prometheus' own text format, for clients that do not request OpenMetrics: `promtool check metrics` and
//! most other programs that read metrics.
//!
//! The formats differ in the heads. In this one, the head of a counter has the name of its series, with `_total`; an
//! info is a gauge; there are no units, and no end marker.

/// Version 0.0.4 of the format.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Converts a page in OpenMetrics, in which each HELP comes before the TYPE.
pub(super) fn of_openmetrics(page: &str) -> String {
    let mut text = String::with_capacity(page.len());
    let mut help = "";
    for line in page.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("HELP"), Some(_), Some(words)) => help = words,
            (Some("#"), Some("TYPE"), Some(name), Some(kind)) => {
                let (suffix, kind) = match kind {
                    "counter" => ("_total", kind),
                    "info" => ("_info", "gauge"),
                    "unknown" => ("", "untyped"),
                    _ => ("", kind),
                };
                text += &format!("# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {kind}\n");
            }
            (Some("#"), ..) => {}
            _ => {
                text += line;
                text.push('\n');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::of_openmetrics;

    #[test]
    fn heads_have_the_names_of_their_series() {
        let page = "# HELP a_bytes Read.\n# TYPE a_bytes counter\n# UNIT a_bytes bytes\na_bytes_total{v=\"# x\"} 1\n\
                    # HELP b What.\n# TYPE b info\nb_info{v=\"1\"} 1\n# HELP c Now.\n# TYPE c gauge\nc 2.5\n# EOF\n";
        let wanted = "# HELP a_bytes_total Read.\n# TYPE a_bytes_total counter\na_bytes_total{v=\"# x\"} 1\n\
                      # HELP b_info What.\n# TYPE b_info gauge\nb_info{v=\"1\"} 1\n\
                      # HELP c Now.\n# TYPE c gauge\nc 2.5\n";
        assert_eq!(of_openmetrics(page), wanted);
    }
}
