//! The state of a volume, and what each call has to answer in it.

use tonic::Code;

use crate::node::machine::{Call, TARGETS};

/// Whether the daemon has the volume.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
enum Stage {
    #[default]
    No,
    Yes,
    /// An unstage has removed the mount point, but directories of pods still show the volume.
    Elsewhere,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    exists: bool,
    stage: Stage,
    /// Where the volume is published; true is read-only.
    targets: [Option<bool>; TARGETS],
}

impl Model {
    /// The answer to a call, which changes the state. `Err(None)`: the call fails, with any code.
    pub(crate) fn answer(&mut self, call: Call) -> Result<(), Option<Code>> {
        let is_published = self.targets.iter().any(Option::is_some);
        match call {
            Call::Create => self.exists = true,
            Call::Delete if self.stage != Stage::No => return Err(Some(Code::FailedPrecondition)),
            Call::Delete => self.exists = false,
            Call::Stage if !self.exists => return Err(None),
            Call::Stage => self.stage = Stage::Yes,
            Call::Unstage if is_published => {
                self.stage = Stage::Elsewhere;
                return Err(Some(Code::FailedPrecondition));
            }
            Call::Unstage => self.stage = Stage::No,
            Call::Publish { .. } if self.stage != Stage::Yes => return Err(Some(Code::FailedPrecondition)),
            Call::Publish { target, read_only } => match self.targets[target] {
                Some(has) if has != read_only => return Err(Some(Code::AlreadyExists)),
                _ => self.targets[target] = Some(read_only),
            },
            Call::Unpublish { target } => {
                self.targets[target] = None;
                if self.stage == Stage::Elsewhere && self.targets.iter().all(Option::is_none) {
                    self.stage = Stage::No;
                }
            }
            Call::Stats { .. } if self.stage == Stage::Elsewhere => return Err(None),
            Call::Stats { target } if self.targets[target].is_none() => return Err(Some(Code::NotFound)),
            Call::Stats { .. } => {}
        }
        Ok(())
    }

    /// Whether the daemon has the volume.
    pub(crate) fn is_in_daemon(&self) -> bool {
        self.stage != Stage::No
    }

    pub(crate) fn exists(&self) -> bool {
        self.exists
    }

    /// The directories that show the volume, and whether they are read-only.
    pub(crate) fn published(&self) -> impl Iterator<Item = (usize, bool)> {
        self.targets.into_iter().enumerate().filter_map(|(target, access)| Some((target, access?)))
    }
}
