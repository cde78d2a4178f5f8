//! The content of the screen, and what each key does to it. It needs no terminal.
//!
//! # Invariants
//! N1. `at` and `first` are rows that exist, or 0; `at` is on the screen while the screen has a row.
//! N2. A cursor that has left the first row stays on its line, wherever the next sample puts it.

use std::collections::HashSet;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::groups::{Group, Line, Order, SortBy, View, groups};
use super::rates::Snapshot;

/// A row of the table: a line of a group, by its position there.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) enum Part {
    Head,
    Note(usize),
    Member(usize),
}

#[derive(Copy, Clone, Debug, Eq, PartialEq)]
struct Row {
    group: usize,
    part: Part,
}

/// The group and line that a row shows, stable over samples.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Identity {
    group: String,
    note: Option<usize>,
    member: Option<String>,
}

/// The content of a row.
#[derive(Copy, Clone, Debug)]
pub(super) enum Content<'a> {
    Head { line: &'a Line, fold: Fold },
    Note(&'a str),
    Member(&'a Line),
}

/// Whether the lines below a head are shown.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) enum Fold {
    Nothing,
    Open,
    Closed,
}

/// Whether to continue.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) enum Next {
    Stay,
    Leave,
}

#[derive(Debug, Default)]
pub(super) struct Screen {
    snapshot: Snapshot,
    view: View,
    order: Order,
    /// Groups of which only the head and the notes are shown.
    folded: HashSet<String>,
    shows_help: bool,
    has_sample: bool,
    groups: Vec<Group>,
    rows: Vec<Row>,
    at: usize,
    first: usize,
    /// Rows on the screen.
    height: usize,
}

impl Screen {
    pub(super) fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    pub(super) fn order(&self) -> Order {
        self.order
    }

    pub(super) fn shows_help(&self) -> bool {
        self.shows_help
    }

    pub(super) fn has_sample(&self) -> bool {
        self.has_sample
    }

    /// The rows on the screen, and whether each is selected.
    pub(super) fn visible(&self) -> impl Iterator<Item = (Content<'_>, bool)> {
        let visible = self.rows.iter().enumerate().skip(self.first).take(self.height);
        visible.map(|(index, row)| (self.content(*row), index == self.at))
    }

    /// Number of rows above and below the screen.
    pub(super) fn hidden(&self) -> (usize, usize) {
        (self.first, self.rows.len().saturating_sub(self.first + self.height))
    }

    /// The details that do not fit into columns, for the selected row.
    pub(super) fn detail(&self) -> &str {
        let Some(row) = self.rows.get(self.at) else { return "" };
        match (row.part, &self.groups[row.group]) {
            (Part::Head, group) => &group.head.detail,
            (Part::Note(index), group) => &group.notes[index],
            (Part::Member(index), group) => &group.members[index].1.detail,
        }
    }

    /// Shows the next sample.
    pub(super) fn show(&mut self, snapshot: Snapshot) {
        self.snapshot = snapshot;
        self.has_sample = true;
        self.rebuild();
    }

    /// Sets the number of rows that the screen has for the table.
    pub(super) fn set_height(&mut self, rows: usize) {
        self.height = rows;
        self.scroll();
    }

    #[allow(clippy::wildcard_enum_match_arm, reason = "keys without a meaning here, and future ones")]
    pub(super) fn press(&mut self, key: KeyEvent) -> Next {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        if key.kind == KeyEventKind::Release {
            return Next::Stay;
        }
        match key.code {
            KeyCode::Char('c') if is_control => return Next::Leave,
            _ if is_control => {}
            KeyCode::Char('q') => return Next::Leave,
            // Any other key leads back to the table.
            _ if self.shows_help => self.shows_help = false,
            KeyCode::Char('?') => self.shows_help = true,
            KeyCode::Char('d') => self.sort_by(SortBy::Dirty),
            KeyCode::Char('w') => self.sort_by(SortBy::Rate),
            KeyCode::Char('p') => self.sort_by(SortBy::Paused),
            KeyCode::Char('a') => self.sort_by(SortBy::Age),
            KeyCode::Char('n') => self.sort_by(SortBy::Name),
            KeyCode::Char('r') => {
                self.order.is_reversed = !self.order.is_reversed;
                self.rebuild();
            }
            KeyCode::Char('v') | KeyCode::Tab => {
                self.view = self.view.next();
                (self.at, self.first) = (0, 0);
                self.rebuild();
            }
            KeyCode::Char('f' | ' ') | KeyCode::Enter => self.fold(),
            KeyCode::Char('F') => self.fold_all(),
            KeyCode::Char('j') | KeyCode::Down => self.move_to(self.at + 1),
            KeyCode::Char('k') | KeyCode::Up => self.move_to(self.at.saturating_sub(1)),
            KeyCode::PageDown => self.move_to(self.at + self.height.max(1)),
            KeyCode::PageUp => self.move_to(self.at.saturating_sub(self.height.max(1))),
            KeyCode::Char('g') | KeyCode::Home => self.move_to(0),
            KeyCode::Char('G') | KeyCode::End => self.move_to(usize::MAX),
            _ => {}
        }
        Next::Stay
    }

    fn sort_by(&mut self, by: SortBy) {
        self.order.by = by;
        self.rebuild();
    }

    /// Folds or unfolds the group of the row; the cursor then is on the head of a folded group.
    fn fold(&mut self) {
        let Some(row) = self.rows.get(self.at).copied() else { return };
        if self.groups[row.group].members.is_empty() {
            return;
        }
        let id = self.groups[row.group].id.clone();
        if !self.folded.remove(&id) {
            self.folded.insert(id);
            self.at = self.rows.iter().position(|other| other.group == row.group).unwrap_or(0);
        }
        self.rebuild();
    }

    /// Folds all groups, or unfolds all if all are folded.
    fn fold_all(&mut self) {
        let is_open = |group: &&Group| !group.members.is_empty() && !self.folded.contains(&group.id);
        let open: Vec<_> = self.groups.iter().filter(is_open).map(|group| group.id.clone()).collect();
        if open.is_empty() {
            self.folded.clear();
        }
        let group = self.rows.get(self.at).map_or(0, |row| row.group);
        self.at = self.rows.iter().position(|row| row.group == group).unwrap_or(0);
        self.folded.extend(open);
        self.rebuild();
    }

    fn move_to(&mut self, row: usize) {
        self.at = row.min(self.rows.len().saturating_sub(1));
        self.scroll();
    }

    fn rebuild(&mut self) {
        let stays_on = self.rows.get(self.at).filter(|_| self.at > 0).map(|row| self.identity(*row));
        self.groups = groups(&self.snapshot, self.view, self.order);
        self.rows.clear();
        for (index, group) in self.groups.iter().enumerate() {
            let is_open = !self.folded.contains(&group.id);
            let parts = [Part::Head].into_iter().chain((0..group.notes.len()).map(Part::Note));
            let members = (0..group.members.len()).filter(|_| is_open).map(Part::Member);
            self.rows.extend(parts.chain(members).map(|part| Row { group: index, part }));
        }
        if let Some(identity) = stays_on {
            self.at = self.rows.iter().position(|row| self.is(*row, &identity)).unwrap_or(self.at);
        }
        self.move_to(self.at);
    }

    /// N1.
    fn scroll(&mut self) {
        let last_first = self.rows.len().saturating_sub(self.height);
        let lowest = (self.at + 1).saturating_sub(self.height);
        self.first = self.first.max(lowest).min(self.at).min(last_first);
    }

    fn content(&self, row: Row) -> Content<'_> {
        let group = &self.groups[row.group];
        match row.part {
            Part::Head if group.members.is_empty() => Content::Head { line: &group.head, fold: Fold::Nothing },
            Part::Head if self.folded.contains(&group.id) => Content::Head { line: &group.head, fold: Fold::Closed },
            Part::Head => Content::Head { line: &group.head, fold: Fold::Open },
            Part::Note(index) => Content::Note(&group.notes[index]),
            Part::Member(index) => Content::Member(&group.members[index].1),
        }
    }

    fn identity(&self, row: Row) -> Identity {
        let group = &self.groups[row.group];
        let (note, member) = match row.part {
            Part::Head => (None, None),
            Part::Note(index) => (Some(index), None),
            Part::Member(index) => (None, Some(group.members[index].0.clone())),
        };
        Identity { group: group.id.clone(), note, member }
    }

    fn is(&self, row: Row, identity: &Identity) -> bool {
        let group = &self.groups[row.group];
        let is_part = match row.part {
            Part::Head => identity.note.is_none() && identity.member.is_none(),
            Part::Note(index) => identity.note == Some(index),
            Part::Member(index) => identity.member.as_ref() == Some(&group.members[index].0),
        };
        is_part && group.id == identity.group
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::commands::top::rates::Watch;
    use crate::commands::top::tests::{look, status, tenant};

    /// `/a` has tenants with 1, 2, ... MiB, `/b` one with 100.
    fn snapshot(tenants: u64) -> Snapshot {
        let of_a = (1..=tenants).map(|id| tenant(id, &format!("uid:{id}"), id, None)).collect();
        let of_b = vec![tenant(1, "uid:1", 100, None), tenant(2, "uid:2", 1, None)];
        Watch::default().add(look(Instant::now(), vec![status(1, "/a", of_a), status(2, "/b", of_b)]))
    }

    fn screen(tenants: u64, height: usize) -> Screen {
        let mut screen = Screen::default();
        screen.set_height(height);
        screen.show(snapshot(tenants));
        screen
    }

    fn press(screen: &mut Screen, keys: &str) -> Next {
        keys.chars().map(|letter| screen.press(KeyEvent::from(KeyCode::Char(letter)))).last().unwrap()
    }

    fn name_of<'a>(content: &Content<'a>) -> &'a str {
        match content {
            Content::Head { line, .. } | Content::Member(line) => &line.name,
            Content::Note(text) => text,
        }
    }

    /// The content of the screen, with the selected row in brackets.
    fn shown(screen: &Screen) -> String {
        let name = |(content, is_at): (Content<'_>, bool)| {
            if is_at { format!("[{}]", name_of(&content)) } else { name_of(&content).to_owned() }
        };
        screen.visible().map(name).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn keys_move_within_the_rows() {
        let mut screen = screen(3, 3);
        assert_eq!(shown(&screen), "[/b] uid:1 uid:2");
        press(&mut screen, "jj");
        assert_eq!(shown(&screen), "/b uid:1 [uid:2]");
        press(&mut screen, "j");
        assert_eq!(shown(&screen), "uid:1 uid:2 [/a]");
        press(&mut screen, "k");
        assert_eq!(shown(&screen), "uid:1 [uid:2] /a");
        press(&mut screen, "Gjj");
        assert_eq!(shown(&screen), "uid:3 uid:2 [uid:1]");
        assert_eq!(screen.hidden(), (4, 0));
        screen.press(KeyEvent::from(KeyCode::PageUp));
        assert_eq!(shown(&screen), "[/a] uid:3 uid:2");
        screen.press(KeyEvent::from(KeyCode::PageDown));
        assert_eq!(shown(&screen), "uid:3 uid:2 [uid:1]");
        press(&mut screen, "gk");
        assert_eq!((shown(&screen).as_str(), screen.hidden()), ("[/b] uid:1 uid:2", (0, 4)));
        screen.set_height(100);
        assert_eq!(screen.hidden(), (0, 0));
        screen.set_height(0);
        press(&mut screen, "jGkg");
        assert_eq!(shown(&screen), "");
    }

    #[test]
    fn a_moved_cursor_stays_on_its_line_and_an_unmoved_one_on_top() {
        let mut screen = screen(3, 10);
        press(&mut screen, "jjjj");
        assert_eq!(shown(&screen), "/b uid:1 uid:2 /a [uid:3] uid:2 uid:1");
        press(&mut screen, "r");
        assert_eq!(shown(&screen), "/a uid:1 uid:2 [uid:3] /b uid:2 uid:1");
        screen.show(snapshot(5));
        assert_eq!(shown(&screen), "/a uid:1 uid:2 [uid:3] uid:4 uid:5 /b uid:2 uid:1");
        screen.show(snapshot(2));
        assert_eq!(shown(&screen), "/a uid:1 uid:2 [/b] uid:2 uid:1", "it is gone");
        screen.show(Snapshot::default());
        assert_eq!(shown(&screen), "");
        screen.show(snapshot(2));
        press(&mut screen, "r");
        assert_eq!(shown(&screen), "[/b] uid:1 uid:2 /a uid:2 uid:1");
    }

    #[test]
    fn groups_are_closed_and_opened() {
        let mut screen = screen(2, 10);
        press(&mut screen, "jf");
        assert_eq!(shown(&screen), "[/b] /a uid:2 uid:1");
        assert!(matches!(screen.visible().next(), Some((Content::Head { fold: Fold::Closed, .. }, _))));
        screen.show(snapshot(2));
        assert_eq!(shown(&screen), "[/b] /a uid:2 uid:1", "also in the next sample");
        press(&mut screen, "GF");
        assert_eq!(shown(&screen), "/b [/a]");
        press(&mut screen, "F");
        assert_eq!(shown(&screen), "/b uid:1 uid:2 [/a] uid:2 uid:1");
        screen.press(KeyEvent::from(KeyCode::Enter));
        assert_eq!(shown(&screen), "/b uid:1 uid:2 [/a]");
        screen.press(KeyEvent::from(KeyCode::Enter));
        assert_eq!(shown(&screen), "/b uid:1 uid:2 [/a] uid:2 uid:1");
    }

    #[test]
    fn views_follow_one_another() {
        let mut screen = screen(2, 10);
        press(&mut screen, "jv");
        assert_eq!(shown(&screen), "[/b] /a");
        press(&mut screen, "fv");
        assert_eq!(shown(&screen), "[uid:1] /b /a uid:2 /a /b");
        press(&mut screen, "v");
        assert!(shown(&screen).starts_with("[/b]"));
    }

    #[test]
    fn only_quit_keys_quit() {
        let mut screen = screen(1, 10);
        let control = |letter| KeyEvent::new(KeyCode::Char(letter), KeyModifiers::CONTROL);
        assert_eq!(screen.press(control('c')), Next::Leave);
        assert_eq!(screen.press(control('q')), Next::Stay);
        assert_eq!(press(&mut screen, "dwpanrjkgGfFvx "), Next::Stay);
        assert_eq!(screen.press(KeyEvent::from(KeyCode::Esc)), Next::Stay);
        assert_eq!(press(&mut screen, "q"), Next::Leave);
        // Also from the help; any other key leads back.
        assert_eq!(press(&mut screen, "?q"), Next::Leave);
        assert_eq!(press(&mut screen, "x?"), Next::Stay);
        assert!(screen.shows_help());
        let before = screen.order();
        assert_eq!(press(&mut screen, "a"), Next::Stay);
        assert!(!screen.shows_help() && screen.order() == before);
    }

    #[test]
    fn letters_sort() {
        let mut screen = screen(1, 10);
        for (key, by) in
            [("w", SortBy::Rate), ("p", SortBy::Paused), ("a", SortBy::Age), ("n", SortBy::Name), ("d", SortBy::Dirty)]
        {
            press(&mut screen, key);
            assert_eq!(screen.order(), Order { by, is_reversed: false });
        }
        press(&mut screen, "rn");
        assert_eq!(screen.order(), Order { by: SortBy::Name, is_reversed: true });
    }
}
