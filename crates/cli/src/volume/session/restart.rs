//! Another process takes the mount over on purpose.

use std::path::Path;
use std::sync::Arc;

use slackwater_fuse::Printable as _;

use crate::control::protocol::NextProgram;
use crate::exit::Failure;
use crate::keeper::Program;
use crate::keeper::formats::Formats;
use crate::volume::session::Session;

impl Session {
    /// Lets another process take the mount over, of the program `next` of the process `peer` if there is one;
    /// [`wait_restarting`](Self::wait_restarting) returns then.
    pub(super) fn restart(
        &self,
        peer: u32,
        next: Option<NextProgram>,
        tick: &mut dyn FnMut(u64, u64),
    ) -> Result<(), Failure> {
        let mountpoint = self.entry.mountpoint.printable();
        if !self.keeper().is_some_and(|keeper| keeper.is_there()) {
            return Err(Failure::usage(format!("{mountpoint} is not kept: it would end with its process"))
                .advise("only a mount with --keep can be restarted or upgraded"));
        }
        let next = next.map(|next| opened(peer, next)).transpose()?;
        let front_end = self.front_end(None, tick)?;
        let mut state = self.state();
        if state.unmounting > 0 || front_end.is_unmounted() {
            return Err(Failure::busy(format!("{mountpoint} is being unmounted")));
        }
        if state.is_restarting {
            let busy = Failure::busy(format!("another process already takes {mountpoint} over")).advise("try again");
            return next.map_or(Ok(()), |_| Err(busy));
        }
        (state.is_restarting, state.next_program) = (true, next.map(Arc::new));
        self.changed.notify_all();
        Ok(())
    }

    /// Whether another process is to take the mount over.
    pub(crate) fn is_restarting(&self) -> bool {
        self.state().is_restarting
    }

    /// The program of that process, if it is another one.
    pub(crate) fn next_program(&self) -> Option<Arc<Program>> {
        self.state().next_program.clone()
    }

    /// Waits until another process is to take the mount over.
    ///
    /// # Blocking
    /// Usually forever.
    pub(crate) fn wait_restarting(&self) {
        drop(self.changed.wait_while(self.state(), |state| !state.is_restarting));
    }
}

/// The file that the peer means, in whatever mount namespace it is.
fn opened(peer: u32, next: NextProgram) -> Result<Program, Failure> {
    let NextProgram { path, formats } = next;
    formats.check(&path, &Formats::OWN)?;
    let root = Path::new("/proc").join(peer.to_string()).join("root");
    let at = root.join(path.strip_prefix("/").unwrap_or(&path));
    let name = path.printable().to_string();
    Program::open(&at, path).map_err(|error| Failure::failed(format!("cannot open the program {name}: {error}")))
}
