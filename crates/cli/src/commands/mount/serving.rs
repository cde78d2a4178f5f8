//! The mount of a mount process, as its main loop sees it.
//!
//! Two threads wait for the end of the volume: with everything written back, and with unwritten data left.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread;

use slackwater_control::errln;
use slackwater_control::exit::{Failure, Reason};
use slackwater_host::Printable as _;
use slackwater_host::size;

use crate::keeper::client::KeeperClient;
use crate::progress::Meter;
use crate::server::main_loop::{End, Event, Serving};
use crate::volume::mounting;
use crate::volume::session::{Session, TICK};

/// Lines of a list that are worth reading.
const LINES: usize = 20;

/// The one mount of this process.
pub(super) struct OneMount {
    pub(super) session: Arc<Session>,
    pub(super) is_detached: bool,
}

impl Serving for OneMount {
    fn sessions(&self) -> Vec<Arc<Session>> {
        vec![Arc::clone(&self.session)]
    }

    fn keeper(&self) -> Option<Arc<KeeperClient>> {
        self.session.kept.as_ref().map(|kept| Arc::clone(kept.keeper()))
    }

    fn survives_hang_up(&self) -> bool {
        self.is_detached
    }

    fn watch(self: Arc<Self>, events: &Sender<Event>) {
        let (leaving, left) = (Arc::clone(&self.session), events.clone());
        thread::spawn(move || {
            leaving.wait_left();
            // The main thread may already have received another end.
            let _ = left.send(Event::Ended(End::Left));
        });
        let (Some(mounted), ended) = (self.session.mounted(), events.clone()) else { return };
        thread::spawn(move || {
            // The main thread receives until the end.
            mounted.wait_unmounted();
            if self.keeper().is_some_and(|keeper| keeper.succession.is_asked()) {
                return; // the volume goes on in another process
            }
            let _ = ended.send(Event::Unmounted);
            mounting::wait_ended(&mounted);
            let _ = ended.send(Event::Ended(End::Flushed));
        });
    }

    fn unmount(&self, insist: bool) -> Option<Event> {
        let mountpoint = self.session.entry.mountpoint.printable();
        let mut meter = Meter::new(format!("flushing {mountpoint}"));
        let in_use = |failure: &Failure| {
            errln!("{failure}");
            errln!("Asked to end: unmounting anyway.");
        };
        let outcome = self.session.umount_patiently(insist, in_use, &mut |left, written| meter.update(left, written));
        drop(meter);
        // Success shows as the end of the volume.
        let failure = outcome.err().filter(|failure| failure.reason != Reason::Left)?;
        errln!("{failure}");
        errln!("Still mounted at {mountpoint}; nothing is lost.");
        Some(Event::StillMounted)
    }

    fn follow(&self) {
        let mut meter = Meter::new("unmounted, flushing");
        while let Some((left, written)) = self.session.figures_after(TICK) {
            meter.update(left, written);
        }
    }

    fn explain(&self) {
        let entry = &self.session.entry;
        let (source, arena) = (entry.source.name().printable(), entry.arena.printable());
        errln!("Not yet written back to {source}: {}", size::text(self.session.figures().0));
        self.session.would_lose().lines(LINES).iter().for_each(|line| errln!("  {line}"));
        errln!("Giving up leaves it in {arena}; the next mount of {source} writes it back.");
    }
}
