//! The terminal: input, output, and its restoration at the end.
//!
//! Three threads send events to the main thread: keys, signals, and samples of the mounts. Each waits for one thing, so
//! that a mount that does not answer does not block the keys. If any of them panics, the process ends after the
//! terminal is restored.

use std::io;
use std::panic;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event;
use slackwater_control::client::ANSWER_WITHIN;
use slackwater_control::exit::Failure;
use slackwater_control::os::sys::Signals;

use crate::arguments::DaemonSocket;
use crate::commands::survey::Survey;

use super::draw::{Palette, draw};
use super::rates::Watch;
use super::screen::{Next, Screen};

/// The events.
enum Event {
    Typed(event::Event),
    Signal,
    Sampled(Result<Survey, Failure>),
    /// The terminal is gone.
    Broken(io::Error),
}

/// Shows the mounts until the user quits.
///
/// # Blocking
/// Until then.
pub(super) fn run(at: &DaemonSocket, interval: Duration, palette: Palette) -> Result<(), Failure> {
    let signals = Signals::block();
    let (sender, events) = sync_channel(8);
    end_with_any_panic();
    let ended = ratatui::try_init().map_err(broken).and_then(|terminal| {
        watch_signals(signals, sender.clone());
        watch_keys(sender.clone());
        watch_mounts(at.clone(), interval, sender);
        show(terminal, &events, palette)
    });
    let restored = ratatui::try_restore().map_err(broken);
    ended.and(restored)
}

fn broken(error: io::Error) -> Failure {
    Failure::failed(format!("cannot use the terminal: {error}")).advise("slackwater top --once prints one table")
}

/// Ends the process with the status of a panic in the main thread.
fn end_with_any_panic() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        report(info);
        std::process::exit(101);
    }));
}

fn show(mut terminal: DefaultTerminal, events: &Receiver<Event>, palette: Palette) -> Result<(), Failure> {
    let (mut screen, mut watch) = (Screen::default(), Watch::default());
    loop {
        terminal.draw(|frame| draw(frame, &mut screen, palette)).map_err(broken)?;
        // The senders end only after a panic, which ends the process.
        let Ok(event) = events.recv() else { return Ok(()) };
        match event {
            Event::Typed(event::Event::Key(key)) if screen.press(key) == Next::Leave => return Ok(()),
            Event::Signal => return Ok(()),
            // If the size has changed, the screen is redrawn as well.
            Event::Typed(_) => {}
            Event::Sampled(look) => screen.show(watch.add(look?)),
            Event::Broken(error) => return Err(broken(error)),
        }
    }
}

fn watch_signals(signals: Signals, sender: SyncSender<Event>) {
    thread::spawn(move || {
        signals.wait();
        let _ = sender.send(Event::Signal);
    });
}

fn watch_keys(sender: SyncSender<Event>) {
    thread::spawn(move || {
        loop {
            let (event, is_last) = match event::read() {
                Ok(event) => (Event::Typed(event), false),
                Err(error) => (Event::Broken(error), true),
            };
            if sender.send(event).is_err() || is_last {
                break;
            }
        }
    });
}

fn watch_mounts(at: DaemonSocket, interval: Duration, sender: SyncSender<Event>) {
    thread::spawn(move || {
        loop {
            let since = Instant::now();
            if sender.send(Event::Sampled(Survey::all(&at, interval.min(ANSWER_WITHIN)))).is_err() {
                break;
            }
            thread::sleep(interval.saturating_sub(since.elapsed()));
        }
    });
}
