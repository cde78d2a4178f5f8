//! A fixed set of mounts, and the screen that shows it.

use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent};
use ratatui::style::Color;
use slackwater_control::protocol::{Container, Phase, Status, Tenant, TenantState, Writers};

use super::draw::{Palette, draw};
use super::rates::{Process, Snapshot, Watch};
use super::screen::Screen;
use crate::commands::survey::{Answer, Survey};

const MIB: u64 = 1 << 20;

pub(crate) fn tenant(id: u64, name: &str, dirty_mib: u64, limit_mib: Option<u64>) -> Tenant {
    Tenant {
        id,
        name: name.to_owned(),
        parent: None,
        container: Container::default(),
        state: TenantState::Online,
        limit_bytes: limit_mib.map(|mib| mib * MIB),
        charged_bytes: dirty_mib * MIB,
        dirty_bytes: dirty_mib * MIB,
        cached_bytes: 0,
        hits: 0,
        misses: 0,
        writeback_bytes: 0,
        unstable_bytes: 0,
        written_bytes: 0,
        oldest_ms: None,
        paused_ms: 0,
        wants_room: false,
    }
}

pub(crate) fn status(pid: u32, mountpoint: &str, tenants: Vec<Tenant>) -> Status {
    let sum = |of: fn(&Tenant) -> u64| tenants.iter().map(of).sum::<u64>();
    let [dirty_bytes, writeback_bytes, unstable_bytes] =
        [sum(|tenant| tenant.dirty_bytes), sum(|tenant| tenant.writeback_bytes), sum(|tenant| tenant.unstable_bytes)];
    Status {
        pid,
        source: format!("/srv{mountpoint}").into(),
        mountpoint: mountpoint.into(),
        cache_bytes: 256 * MIB,
        share_bytes: Some(64 * MIB),
        dirty_bytes,
        writeback_bytes,
        unstable_bytes,
        bytes_left: dirty_bytes + writeback_bytes + unstable_bytes,
        written_bytes: sum(|tenant| tenant.written_bytes),
        writers: Writers { paused_ms: sum(|tenant| tenant.paused_ms), ..Writers::default() },
        tenants,
        ..Status::sample()
    }
}

pub(crate) fn look(at: Instant, statuses: Vec<Status>) -> Survey {
    let answers = statuses.into_iter().map(|status| Answer { at, status }).collect();
    Survey { answers, ..Survey::default() }
}

/// Two users, one of them at its limit; a failing source; an unmount; a dead and a silent process.
fn statuses(seconds: u64) -> Vec<Status> {
    let mut hog = tenant(3, "uid:1001", 16, Some(16));
    (hog.dirty_bytes, hog.writeback_bytes, hog.unstable_bytes) = (9 * MIB, 4 * MIB, 3 * MIB);
    (hog.written_bytes, hog.paused_ms) = (seconds * 80 * MIB, seconds * 1350);
    (hog.wants_room, hog.oldest_ms) = (true, Some(1234));
    (hog.hits, hog.misses) = (seconds * 2000, seconds);
    let mut modest = tenant(2, "uid:1000", 2, Some(16));
    (modest.written_bytes, modest.oldest_ms) = (seconds * MIB, Some(31_000));
    let mut users = status(100, "/mnt/data", vec![hog, modest, tenant(0, "root", 0, None)]);
    users.open_files = 12;
    (users.reads.hits, users.reads.misses) = (seconds * 2500, seconds * 1500);

    let name = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod7e1f.slice/cri-containerd-0a1b2c.scope";
    let mut pod = tenant(2, name, 6, None);
    (pod.charged_bytes, pod.oldest_ms) = (8 * MIB, Some(400_000));
    let mut failing =
        status(200, "/mnt/containers/of a rather long name/volume-17", vec![pod, tenant(0, "root", 1, None)]);
    failing.failing = Some("no space left\u{1b}[2J".to_owned());
    failing.share_bytes = Some(15 * MIB);

    let mut going = status(300, "/mnt/backup", vec![tenant(0, "root", 40, None)]);
    going.name = Some("nightly".to_owned());
    going.phase = Phase::Unmounting;
    going.written_bytes = seconds * 50_000_000;
    going.reads.hits = seconds;
    vec![users, failing, going]
}

fn process(pid: u32, mountpoint: &str) -> Process {
    Process {
        pid,
        source: format!("/srv{mountpoint}").into(),
        mountpoint: mountpoint.into(),
        arena: format!("/dev/shm/{pid}.arena").into(),
    }
}

fn snapshot() -> Snapshot {
    let (mut watch, start) = (Watch::default(), Instant::now());
    watch.add(look(start, statuses(10)));
    let snapshot = watch.add(look(start + Duration::from_secs(1), statuses(11)));
    Snapshot { silent: vec![process(400, "/mnt/stopped")], dead: vec![process(500, "/mnt/killed")], ..snapshot }
}

fn screen() -> Screen {
    let mut screen = Screen::default();
    screen.show(snapshot());
    screen
}

fn drawn(screen: &mut Screen, columns: u16, rows: u16, palette: Palette) -> TestBackend {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    terminal.draw(|frame| draw(frame, screen, palette)).unwrap();
    terminal.backend().clone()
}

fn text(backend: &TestBackend) -> String {
    let buffer = backend.buffer();
    let lines = buffer.content().chunks(usize::from(buffer.area.width).max(1));
    lines.map(|line| String::from_iter(line.iter().map(|cell| cell.symbol())).trim_end().to_owned() + "\n").collect()
}

fn press(screen: &mut Screen, keys: &str) {
    for letter in keys.chars() {
        screen.press(KeyEvent::from(KeyCode::Char(letter)));
    }
}

#[track_caller]
fn assert_shows(mut screen: Screen, columns: u16, rows: u16, expected: &str) {
    let plain = drawn(&mut screen, columns, rows, Palette::Plain);
    let shown = text(&plain);
    assert_eq!(shown, expected, "it shows:\n{shown}");
    let colours = drawn(&mut screen, columns, rows, Palette::Colours);
    assert_eq!(text(&colours), shown, "a colour changes no letter");
    let has_colours = |backend: &TestBackend| {
        backend.buffer().content().iter().any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
    };
    assert!(has_colours(&colours) && !has_colours(&plain));
}

#[test]
fn eighty_columns() {
    assert_shows(screen(), 80, 24, include_str!("snapshots/80x24.txt"));
}

#[test]
fn a_hundred_and_sixty_columns() {
    assert_shows(screen(), 160, 48, include_str!("snapshots/160x48.txt"));
}

#[test]
fn tenants_over_all_volumes() {
    let mut screen = screen();
    drawn(&mut screen, 80, 16, Palette::Plain);
    press(&mut screen, "vvwjjjjj");
    assert_shows(screen, 80, 16, include_str!("snapshots/tenants.txt"));
}

#[test]
fn any_size_is_drawn() {
    let mut screen = screen();
    for columns in [0, 1, 2, 3, 5, 10, 23, 24, 25, 79, 300, 1000] {
        for rows in [0, 1, 2, 3, 4, 5, 6, 9, 10, 11, 200] {
            for keys in ["G", "?", "?v", "f", "rgF"] {
                press(&mut screen, keys);
                drawn(&mut screen, columns, rows, Palette::Colours);
            }
        }
    }
    press(&mut screen, "g");
    assert!(text(&drawn(&mut screen, 10, 3, Palette::Plain)).lines().nth(2).unwrap().starts_with(">!"));
}

#[test]
fn hostile_names_do_not_affect_the_terminal() {
    let names = ["/\u{1b}[2J", "/a\nb\r", "/\u{202e}x", "/\u{9b}2J", "\u{0}\u{7f}", "/\u{6f6e}"];
    let tenants = names.iter().zip(1..).map(|(name, id)| tenant(id, name, 1, None)).collect();
    let mut status = status(1, "/mnt/\u{1b}]0;x\u{7}", tenants);
    status.failing = Some("\u{1b}[31m".to_owned());
    let mut screen = Screen::default();
    screen.show(Watch::default().add(look(Instant::now(), vec![status])));
    for columns in [20, 40, 80, 160] {
        for keys in ["g", "jj", "v", "v", "v"] {
            press(&mut screen, keys);
            let text = text(&drawn(&mut screen, columns, 24, Palette::Plain));
            let is_harmless = |letter: char| letter == '\n' || !letter.is_control() && letter != '\u{202e}';
            assert!(text.chars().all(is_harmless), "{text:?}");
        }
    }
}

#[test]
fn ten_thousand_tenants_are_a_screenful() {
    let tenants = (1..=10_000).map(|id| tenant(id, &format!("/c/{id:05}"), id, Some(10_000))).collect();
    let mut screen = Screen::default();
    screen.show(Watch::default().add(look(Instant::now(), vec![status(1, "/mnt", tenants)])));
    assert!(text(&drawn(&mut screen, 80, 24, Palette::Plain)).contains("/c/10000"));
    press(&mut screen, "G");
    let last = text(&drawn(&mut screen, 80, 24, Palette::Plain));
    assert!(last.contains("/c/00001") && last.contains("9982 rows above, 0 below"), "{last}");
}

#[test]
fn an_empty_screen_says_so_and_shows_help() {
    let mut screen = Screen::default();
    assert!(text(&drawn(&mut screen, 80, 24, Palette::Plain)).contains("\nWaiting for the mounts to answer.\n"));
    screen.show(Snapshot::default());
    assert!(text(&drawn(&mut screen, 80, 24, Palette::Plain)).contains("\nNothing is mounted.\n"));
    press(&mut screen, "jGkf?");
    let help = text(&drawn(&mut screen, 80, 24, Palette::Plain));
    assert!(help.contains("= being written") && help.contains("[q]uit") && !help.contains("Nothing"), "{help}");
    press(&mut screen, "x");
    assert!(!text(&drawn(&mut screen, 80, 24, Palette::Plain)).contains("being written,"));
}
