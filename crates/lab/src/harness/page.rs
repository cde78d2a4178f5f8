//! A page as one HTML file that needs no other, for wide and narrow screens, light and dark.

const STYLE: &str = "\
:root { color-scheme: light dark; --text: #1f2328; --dim: #59636e; --line: #d1d9e0; --back: #fff; --link: #0b57a4; }
@media (prefers-color-scheme: dark) {
  :root { --text: #d6dbe1; --dim: #949ea8; --line: #3a424b; --back: #14171b; --link: #78b2f2; }
  svg [fill='#000000'] { fill: #d6dbe1; }
  svg [stroke='#000000'] { stroke: #949ea8; }
  svg [stroke='#EBEBEB'] { stroke: #2a3037; }
  svg rect[fill='#FFFFFF'] { fill: #14171b; }
}
* { box-sizing: border-box; }
body { font: 16px/1.55 system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif; color: var(--text);
  background: var(--back); max-width: 62rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 0.6rem; }
h2 { font-size: 1.4rem; margin: 4rem 0 0.5rem; padding-top: 1rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 2rem 0 0.3rem; }
p, dd, li { max-width: 46rem; }
a { color: var(--link); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.35rem 1.2rem; margin: 1rem 0 1.5rem; }
dt { font-weight: 600; }
dd { margin: 0; }
.dim, .notes { color: var(--dim); }
.notes { font-size: 0.875rem; }
.wide { overflow-x: auto; margin: 1rem 0 1.6rem; }
table { border-collapse: collapse; font-size: 0.8125rem; line-height: 1.4; }
caption { text-align: left; font-weight: 600; font-size: 0.9375rem; padding: 0.3rem 0; white-space: nowrap; }
th, td { padding: 0.2rem 0.45rem; text-align: left; white-space: nowrap; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { padding-left: 0; }
th { color: var(--dim); font-weight: 500; vertical-align: bottom; }
.right { text-align: right; font-variant-numeric: tabular-nums; }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 27rem), 1fr)); gap: 1rem; }
.plots svg { display: block; width: 100%; height: auto; }
@media (max-width: 40rem) {
  body { padding: 1.2rem 0.9rem 3rem; }
  dl { grid-template-columns: 1fr; gap: 0.1rem; }
  dd { margin-bottom: 0.6rem; }
  .plots { display: block; }
  .plots svg { margin-bottom: 1.2rem; }
}";

/// The page; `body` is HTML.
pub(crate) fn page(title: &str, body: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{}</title>\n\
         <style>\n{STYLE}\n</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n",
        escaped(title)
    )
}

/// Text that means itself in HTML.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_everything_and_refers_to_nothing() {
        let page = page("T < \"U\"", "<p>a</p>");
        for part in ["<title>T &lt; &quot;U&quot;</title>", "<p>a</p>", "width=device-width", "prefers-color-scheme"] {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert!(!page.contains("http") && !page.contains("src=") && !page.contains("@import"), "{page}");
    }
}
