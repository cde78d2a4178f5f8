//! The prose of a file, as sentences.
//!
//! Documents are Markdown, and so are comments: fenced code is left out, code spans count as one word, and a heading, a list
//! item or a part of a table's cell is a paragraph of its own. Strings of the product are prose if they have a few words.

use crate::markdown;
use crate::tidy::tree::File;

/// A string with fewer words than this is a name or a label.
const STRING_WORDS_MIN: usize = 3;

/// Dots after these do not end a sentence.
const ABBREVIATIONS: [&str; 6] = ["e.g.", "i.e.", "cf.", "vs.", "app.", "etc."];

/// A sentence, and the line on which its paragraph starts.
pub(super) struct Sentence {
    pub(super) line: usize,
    text: String,
}

impl Sentence {
    /// Whether it ends as a question does.
    pub(super) fn is_question(&self) -> bool {
        self.text.ends_with('?')
    }

    /// The words of the sentence in lower case, without punctuation around them. A word in quotes of its own is a name.
    pub(super) fn words(&self) -> Vec<String> {
        let words = self.text.split(|letter: char| letter.is_whitespace() || letter == '/');
        let is_name = |word: &&str| word.split('"').count() == 3 && !word.starts_with(char::is_alphanumeric);
        let words = words.map(|word| if is_name(&word) { "NAME" } else { word });
        let words = words.map(|word| word.trim_matches(|letter: char| !letter.is_alphanumeric()).to_lowercase());
        words.filter(|word| !word.is_empty()).collect()
    }
}

/// All sentences of `file`, in order.
pub(super) fn sentences(file: &File) -> Vec<Sentence> {
    let mut paragraphs = Paragraphs::default();
    if file.path.ends_with(".md") {
        file.numbered().for_each(|(number, line)| paragraphs.markdown(number, line));
    } else if file.path.ends_with(".rs") {
        for (number, line) in (1..).zip(&file.lines) {
            if line.comment.is_empty() || !line.code.trim().is_empty() {
                paragraphs.end();
            }
            if !line.comment.is_empty() {
                paragraphs.markdown(number, line.comment.trim_start_matches(['/', '!', '*']));
            }
        }
        paragraphs.end();
        for (number, line) in file.product_lines() {
            for string in &line.strings {
                paragraphs.message(number, string);
            }
        }
    } else if [".toml", ".service", ".conf", "/run"].iter().any(|end| file.path.ends_with(end)) {
        for (number, line) in file.numbered() {
            match line.trim_start().strip_prefix('#').filter(|comment| !comment.starts_with('!')) {
                Some(comment) => paragraphs.markdown(number, comment),
                None => paragraphs.end(),
            }
        }
    }
    paragraphs.end();
    paragraphs.all.into_iter().flat_map(|(line, text)| split(line, &text)).collect()
}

/// Paragraphs as they are read line by line.
#[derive(Default)]
struct Paragraphs {
    all: Vec<(usize, String)>,
    open: Option<(usize, String)>,
    in_fence: bool,
    in_html: bool,
}

impl Paragraphs {
    fn markdown(&mut self, number: usize, line: &str) {
        let line = line.trim();
        if line.starts_with("```") {
            self.in_fence = !self.in_fence;
            self.finish();
            return;
        }
        self.in_html |= line.starts_with("<!--");
        if self.in_fence || self.in_html {
            self.in_html &= !line.ends_with("-->");
            return;
        }
        if line.is_empty() || markdown::definition(line).is_some() {
            self.finish();
        } else if line.starts_with('|') {
            self.finish();
            self.all.extend(spans_removed(line).split(['|', ';']).map(|part| (number, part.to_owned())));
        } else if let Some(heading) = line.strip_prefix('#') {
            self.finish();
            self.all.push((number, spans_removed(heading.trim_start_matches('#'))));
        } else {
            if item(line) {
                self.finish();
            }
            let (_, text) = self.open.get_or_insert_with(|| (number, String::new()));
            text.push_str(line);
            text.push(' ');
        }
    }

    /// A string. A script is not prose; an empty line, an indent and a table's columns end a paragraph.
    fn message(&mut self, number: usize, string: &str) {
        if string.contains('$') || string.split_whitespace().count() < STRING_WORDS_MIN {
            return;
        }
        for line in placeholders_removed(string).lines() {
            if line.trim().is_empty() || line.contains("  ") || line.starts_with('\t') {
                self.finish();
            }
            let (_, text) = self.open.get_or_insert_with(|| (number, String::new()));
            text.push_str(line);
            text.push(' ');
        }
        self.finish();
    }

    /// Ends the paragraph.
    fn finish(&mut self) {
        self.all.extend(self.open.take().map(|(number, text)| (number, spans_removed(&text))));
    }

    /// Ends the paragraph and whatever is open around it.
    fn end(&mut self) {
        (self.in_fence, self.in_html) = (false, false);
        self.finish();
    }
}

/// Whether a line starts an item of a list: a dash, a number, or the label of an invariant such as `S1.`
fn item(line: &str) -> bool {
    let first = line.split_whitespace().next().unwrap_or_default();
    let is_label = first.len() <= 4
        && first.ends_with(['.', ')'])
        && first.contains(|letter: char| letter.is_ascii_digit())
        && first.trim_end_matches(['.', ')']).chars().all(|letter| letter.is_ascii_alphanumeric());
    ["-", "*", "+"].contains(&first) || is_label
}

/// `text` with a word in the place of each code span, and without the targets of links.
fn spans_removed(text: &str) -> String {
    let text: String =
        text.split('`').enumerate().map(|(part, text)| if part % 2 == 0 { text } else { "CODE" }).collect();
    let mut parts = text.split("](");
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        whole.push(']');
        whole.push_str(part.split_once(')').map_or("", |(_, rest)| rest));
    }
    whole
}

/// `text` with a word in the place of each `{value}`.
fn placeholders_removed(text: &str) -> String {
    let mut parts = text.split('{');
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        whole.push_str("VALUE");
        whole.push_str(part.split_once('}').map_or("", |(_, rest)| rest));
    }
    whole
}

/// Splits a paragraph after each full stop, question mark and exclamation mark that a new sentence follows.
fn split(line: usize, paragraph: &str) -> Vec<Sentence> {
    let mut sentences = vec![Sentence { line, text: String::new() }];
    let words: Vec<&str> = paragraph.split_whitespace().collect();
    for (at, word) in words.iter().enumerate() {
        let sentence = sentences.last_mut().expect("starts with one and only grows");
        if !sentence.text.is_empty() {
            sentence.text.push(' ');
        }
        sentence.text.push_str(word);
        if is_end(word) && words.get(at + 1).is_some_and(|next| is_start(next)) {
            sentences.push(Sentence { line, text: String::new() });
        }
    }
    sentences
}

fn is_end(word: &str) -> bool {
    let word = word.trim_end_matches([')', '"', '*', '_', '\'', ']']).to_lowercase();
    word.ends_with(['.', '?', '!']) && !ABBREVIATIONS.iter().any(|short| word.ends_with(short))
}

fn is_start(word: &str) -> bool {
    let first = word.trim_start_matches(['(', '"', '*', '_', '[']).chars().next();
    word.starts_with('[') || first.is_some_and(|letter| letter.is_uppercase() || letter.is_ascii_digit())
}
