//! Another process takes over on purpose.

use std::path::Path;

use slackwater_control::exit::Failure;
use slackwater_control::protocol::NextProgram;
use slackwater_host::Printable as _;

use crate::keeper::Program;
use crate::keeper::formats;
use crate::volume::session::Session;

impl Session {
    /// Lets another process take over, of the program `next` of the process `peer` if there is one.
    pub(super) fn restart(
        &self,
        peer: u32,
        next: Option<NextProgram>,
        tick: &mut dyn FnMut(u64, u64),
    ) -> Result<(), Failure> {
        let mountpoint = self.entry.mountpoint.printable();
        let Some(kept) = self.kept.as_ref().filter(|kept| kept.keeper().is_there()) else {
            return Err(Failure::usage(format!("{mountpoint} is not kept: it would end with its process"))
                .advise("only a mount or a daemon with --keep can be restarted or upgraded"));
        };
        if kept.keeper().is_silent() {
            return Err(Failure::busy(format!(
                "the keeper of {mountpoint} (pid {}) does not answer",
                kept.keeper().pid
            ))
            .advise("it may be stopped; kill -CONT continues it"));
        }
        let next = next.map(|next| next_program(peer, next)).transpose()?;
        let mounted = self.wait_mounted(None, tick)?;
        if let Some(removed) = self.removed() {
            // Only this process has them open.
            let failure = Failure::busy(format!("{mountpoint}: another process would not have the data of all files"));
            return Err(Failure { advice: removed.advice(), ..failure });
        }
        let state = self.state();
        if state.unmounting > 0 || mounted.is_unmounted() {
            return Err(Failure::busy(format!("{mountpoint} is being unmounted")));
        }
        kept.keeper().succession.ask(next)
    }
}

/// The file that the peer means, in whatever mount namespace it is.
pub(crate) fn next_program(peer: u32, next: NextProgram) -> Result<Program, Failure> {
    let NextProgram { path, formats } = next;
    formats.check(&path, &formats::OWN)?;
    let root = Path::new("/proc").join(peer.to_string()).join("root");
    let at = root.join(path.strip_prefix("/").unwrap_or(&path));
    let name = path.printable().to_string();
    Program::open(&at, path).map_err(|error| Failure::failed(format!("cannot open the program {name}: {error}")))
}
