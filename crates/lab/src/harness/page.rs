//! A page in one HTML file that needs no other: for wide and narrow screens, light and dark, and for paper.

const STYLE: &str = include_str!("page.css");

/// A page around `body`, which is HTML.
pub(crate) fn page(title: &str, body: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n",
        escaped(title)
    )
}

/// Plain text as HTML.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_complete_and_refers_to_no_other_file() {
        let page = page("T < \"U\"", "<p>a</p>");
        for part in [
            "<title>T &lt; &quot;U&quot;</title>",
            "<p>a</p>",
            "width=device-width",
            "prefers-color-scheme",
            "@media print",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert!(!page.contains("http") && !page.contains("src=") && !page.contains("@import"), "{page}");
    }
}
