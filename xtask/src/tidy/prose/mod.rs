//! Plain English in everything that people read: documents, comments, help and messages.
//!
//! [`text`] finds the prose of a file and splits it into sentences. A sentence breaks the rule if it has more than
//! [`WORDS_MAX`] words or one of the [`PHRASES`]. These were frequent in this project's early prose: persons for threads,
//! subjects that are only a relative clause, and verbs in meanings that they do not have. There is no list of exceptions.

mod text;

use super::Finding;
use super::tree::Tree;

/// A sentence with more words than this has to be read twice.
const WORDS_MAX: usize = 40;

/// Forbidden phrases, and replacements for them. `|` separates alternatives, `_` separates words, and `*` stands
/// for up to four words; `^` is the start of a sentence that is no question.
const PHRASES: [(&str, &str); 17] = [
    ("he|him|his|himself|she|her|herself", "a thread, process or tenant is `it`"),
    (
        "somebody|somebody's|everybody|everybody's|anybody|anybody's|nobody|nobody's|whoever",
        "name the process, thread or user",
    ),
    ("^_who|whose|whom", "name the subject: `a writer that waits`"),
    ("^_what|whatever|whichever", "name the subject: `dirty data`, or begin with what it does"),
    ("tell|tells|telling|told_of", "`reports`, `notifies of`"),
    ("is|are|was|were|be|been|being_told", "`is notified`, `receives`, `learns`"),
    ("it_is_said", "`the message says`"),
    ("heed|heeds|heeded|heeding", "`honours`, `obeys`"),
    ("make|makes|made|making_an_end", "`ends`"),
    ("otherwise_from_now_on", "`changes`"),
    ("not_in_the_source_yet", "`not yet written back`"),
    ("bring|brings|brought|bringing_*_to|into_*_source|directory|backend|disk|bucket", "`writes back`"),
    ("room", "`space`, `free frames`, `capacity`"),
    ("once|twice|times|often_in_a_second|minute|while|round", "`once per second`"),
    ("affair|affairs", "`does not concern`, `is the task of`"),
    ("door|doors", "`front end`, `entry`"),
    ("dawdle|dawdles|dawdling", "`is slow`"),
];

/// No forbidden phrase and no sentence that is too long.
pub(super) fn prose(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.files {
        for sentence in text::sentences(file) {
            let words = sentence.words();
            if words.len() > WORDS_MAX {
                let message = format!("{} words, at most {WORDS_MAX}: `{} ...`", words.len(), words[..6].join(" "));
                findings.push(Finding::new(&file.path, sentence.line, message));
            }
            for (phrase, instead) in PHRASES {
                if let Some(found) = find(phrase, &words, sentence.is_question()) {
                    let message = format!("`{found}`: {instead}");
                    findings.push(Finding::new(&file.path, sentence.line, message));
                }
            }
        }
    }
    findings
}

/// The words that match `phrase`, with some around them.
fn find(phrase: &str, words: &[String], is_question: bool) -> Option<String> {
    let at_start = phrase.strip_prefix("^_");
    if at_start.is_some() && is_question {
        return None;
    }
    let pattern: Vec<&str> = at_start.unwrap_or(phrase).split('_').collect();
    let starts = if at_start.is_some() { words.len().min(1) } else { words.len() };
    (0..starts).find_map(|start| {
        let end = start + matched(&pattern, &words[start..])?;
        Some(words[start.saturating_sub(2)..words.len().min(end + 3)].join(" "))
    })
}

/// How many of the first `words` the whole `pattern` takes.
fn matched(pattern: &[&str], words: &[String]) -> Option<usize> {
    const GAP_MAX: usize = 4;
    match pattern {
        [] => Some(0),
        ["*", rest @ ..] => (0..=GAP_MAX.min(words.len())).find_map(|gap| Some(gap + matched(rest, &words[gap..])?)),
        [word, rest @ ..] => {
            let (first, after) = words.split_first()?;
            word.split('|').any(|choice| choice == first).then(|| matched(rest, after))?.map(|taken| taken + 1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::places;

    #[test]
    fn forbidden_phrases_are_found_in_every_kind_of_text() {
        let files = [
            ("README.md", "# Who waits\n\nFine text.\n\n- A writer is told of it.\n\n| a | Nobody's cell |\n"),
            (
                "a.rs",
                "//! Fine.\n\n/// Brings the last data\n/// to the source.\nfn f() { say(\"there is no room left\"); }\n",
            ),
            ("b.toml", "# What waits\nx = 1\n"),
        ];
        assert_eq!(
            places(prose, &files),
            ["README.md:1", "README.md:5", "README.md:5", "README.md:7", "a.rs:3", "a.rs:5", "b.toml:1"]
        );
    }

    #[test]
    fn code_questions_and_short_strings_pass() {
        let files = [
            ("README.md", "What does it do? The user `nobody` may.\n\n```sh\nsu nobody # he\n```\n"),
            (
                "a.rs",
                "/// Asks [`nobody`].\n///\n/// ```\n/// let room = 1; // he\n/// ```\nfn f() { let door = \"room\"; }\n",
            ),
        ];
        assert!(places(prose, &files).is_empty());
    }

    #[test]
    fn a_long_sentence_is_refused_and_two_short_ones_are_not() {
        let half = ["word"; 30].join(" ");
        assert!(places(prose, &[("a.md", &format!("It {half}. It {half}, e.g. Linux."))]).is_empty());
        assert_eq!(places(prose, &[("a.md", &format!("Fine.\n\nIt {half}\nand {half}."))]), ["a.md:3"]);
    }
}
