//! The commands of a page and the output that it shows.

use std::mem;

/// An `sh` block and the output shown after it.
#[derive(Debug, Default, Eq, PartialEq)]
pub(crate) struct Block {
    /// Line number of its beginning, from 1.
    pub(crate) line: usize,
    pub(crate) commands: String,
    /// The lines of the `text` block that follows.
    pub(crate) output: Vec<String>,
}

pub(crate) fn blocks(page: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let (mut fence, mut follows) = (None, false);
    for (number, line) in page.lines().enumerate() {
        match fence {
            None if line == "```sh" => {
                blocks.push(Block { line: number + 1, ..Block::default() });
                fence = Some("sh");
            }
            None if line == "```text" && mem::take(&mut follows) => fence = Some("text"),
            None if line.starts_with("```") => fence = Some("other"),
            None => follows &= line.is_empty(),
            Some(kind) if line == "```" => {
                follows = kind == "sh";
                fence = None;
            }
            Some("sh") => blocks.iter_mut().last().unwrap().commands += &format!("{line}\n"),
            Some("text") => blocks.iter_mut().last().unwrap().output.push(line.to_owned()),
            Some(_) => {}
        }
    }
    blocks
}

/// The first of `lines` that does not appear in `said` after those before it.
pub(crate) fn missing<'l>(lines: &'l [String], said: &str) -> Option<&'l str> {
    let mut said = said.lines();
    lines.iter().map(String::as_str).find(|line| !said.any(|said| is_like(line, said)))
}

fn is_like(shown: &str, said: &str) -> bool {
    let mut said = said.split_whitespace();
    for word in shown.split_whitespace() {
        match said.next() {
            _ if word == "..." => return true,
            Some(said) if said == word || is_figure(word) => {}
            _ => return false,
        }
    }
    said.next().is_none()
}

fn is_figure(word: &str) -> bool {
    word.contains(|letter: char| letter.is_ascii_digit()) || ["B", "KiB", "MiB", "GiB"].contains(&word)
}

#[test]
fn blocks_have_their_lines_commands_and_output() {
    let page = "a\n```sh\none\ntwo\n```\n\n```text\n1 MiB\n```\nb\n```text\nno\n```\n```sh\nthree\n```\nc\n\n```text\nno\n```\n";
    let first = Block { line: 2, commands: "one\ntwo\n".into(), output: vec!["1 MiB".into()] };
    let second = Block { line: 14, commands: "three\n".into(), output: vec![] };
    assert_eq!(blocks(page), [first, second]);
}

#[test]
fn shown_output_matches_whatever_its_figures_are() {
    let said = "making it\ndb   4.0 KiB  mounted  /a/db\nweb    0 B  mounted  /a/web\n";
    let missing = |lines: &[&str]| {
        let lines: Vec<_> = lines.iter().map(|line| (*line).to_owned()).collect();
        missing(&lines, said).map(str::to_owned)
    };
    assert_eq!(missing(&["db 1 MiB mounted /a/db", "web ..."]), None);
    assert_eq!(missing(&["web ...", "db ..."]), Some("db ...".into()), "in that order");
    assert_eq!(missing(&["db 1 KiB mounted"]), Some("db 1 KiB mounted".into()));
    assert_eq!(missing(&["db 1 KiB mounted /a/web"]), Some("db 1 KiB mounted /a/web".into()));
    assert_eq!(missing(&["making it now"]), Some("making it now".into()));
}
