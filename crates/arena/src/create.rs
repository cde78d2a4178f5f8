//! Creating an arena in a new file, with all its memory or with the first part of it.

use std::ops::ControlFlow;
use std::os::fd::AsFd;

use slackwater_host::{Scope, smallest_limit};
use slackwater_sync::shim::Arc;

use crate::arena::Arena;
use crate::config::ArenaConfig;
use crate::error::ArenaError;
use crate::filling::{Filler, Filling, Plan};
use crate::header;
use crate::layout::Layout;
use crate::mapping::Mapping;
use crate::source::{self, ArenaFile, ArenaSource, FileSystem, Watch};

impl Arena {
    /// Creates an arena, with all its memory.
    ///
    /// # Errors
    /// [`ArenaError::Config`] for sizes out of range; [`ArenaError::TooLarge`] if the machine or a cgroup
    /// allows less; [`ArenaError::FileSystem`] and [`ArenaError::NoSpace`] if the file cannot be held in
    /// memory there; [`ArenaError::Os`] otherwise, also if the file exists.
    ///
    /// # Blocking
    /// Until all memory is allocated: up to a second per GiB.
    pub fn create(config: &ArenaConfig) -> Result<Arc<Self>, ArenaError> {
        Self::create_watched(config, &mut |_, _| ControlFlow::Continue(()))
    }

    /// Creates an arena as [`create`](Self::create) does. Several times per second, `watch` receives the number of
    /// allocated bytes and the total, and may cancel with [`ControlFlow::Break`].
    ///
    /// # Errors
    /// As for [`create`](Self::create), and [`ArenaError::GivenUp`].
    ///
    /// # Blocking
    /// As for [`create`](Self::create); if `watch` cancels, until the memory is freed.
    pub fn create_watched(
        config: &ArenaConfig,
        watch: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Arc<Self>, ArenaError> {
        let New { file, file_system, layout } = New::reserve(config)?;
        let mapping = match file_system {
            FileSystem::Tmpfs => {
                let (mapping, mut makes_huge) = (Mapping::of_hole(file.fd(), layout)?, true);
                source::in_steps(layout.file_bytes, watch, |part| mapping.fill(file.fd(), part, &mut makes_huge))?;
                mapping
            }
            FileSystem::Hugetlbfs => of_huge_pages(&file, layout, watch)?,
        };
        publish(&file, &mapping, &config.source)?;
        Ok(Self::assemble_new(mapping, file, Filling::over(layout)))
    }

    /// Creates an arena that can be used at once. Most of its memory is not allocated yet: call [`Filler::run`] on a
    /// thread. An allocation that comes before the filler waits for the next 2 MiB only.
    ///
    /// This checks that the memory is available; but another process may take it before it is allocated here.
    /// [`create`](Self::create) excludes that.
    ///
    /// # Errors
    /// As for [`create`](Self::create).
    ///
    /// # Blocking
    /// For the first MiB or so; on hugetlbfs, until all memory is allocated.
    pub fn create_unfilled(config: &ArenaConfig) -> Result<(Arc<Self>, Filler), ArenaError> {
        let New { file, file_system, layout } = New::reserve(config)?;
        let (mapping, filling) = match file_system {
            FileSystem::Tmpfs => {
                let (mapping, plan) = (Mapping::of_hole(file.fd(), layout)?, Plan::new(layout));
                for part in &plan.first {
                    mapping.fill(file.fd(), part.clone(), &mut false)?;
                }
                (mapping, Filling::new(plan))
            }
            FileSystem::Hugetlbfs => {
                let watch: &mut Watch<'_> = &mut |_, _| ControlFlow::Continue(());
                (of_huge_pages(&file, layout, watch)?, Filling::over(layout))
            }
        };
        publish(&file, &mapping, &config.source)?;
        let arena = Self::assemble_new(mapping, file, filling);
        let filler = Filler::new(&arena);
        Ok((arena, filler))
    }
}

/// A file without a name and without memory.
struct New {
    file: ArenaFile,
    file_system: FileSystem,
    layout: Layout,
}

impl New {
    /// Checks that the memory is available.
    fn reserve(config: &ArenaConfig) -> Result<Self, ArenaError> {
        check(config.frames_bytes, Scope::Machine)?;
        config.layout(1)?; // Before a file is touched.
        let (fd, file_system, block_bytes) = source::make(&config.source)?;
        let layout = config.layout(block_bytes)?;
        check(
            layout.file_bytes,
            match file_system {
                FileSystem::Tmpfs => Scope::Charged,
                FileSystem::Hugetlbfs => Scope::Machine,
            },
        )?;
        source::set_length(fd.as_fd(), layout.file_bytes)?;
        Ok(Self { file: ArenaFile::lock(fd)?, file_system, layout })
    }
}

/// Refuses `needed_bytes` if they exceed a limit of `scope`. The memory of an arena never shrinks, so one that does not
/// fit would cause an OOM kill at some later time.
fn check(needed_bytes: u64, scope: Scope) -> Result<(), ArenaError> {
    match smallest_limit(scope) {
        Some(limit) if needed_bytes > limit.bytes => {
            Err(ArenaError::TooLarge { needed_bytes, limit_bytes: limit.bytes, limit_name: limit.name })
        }
        _ => Ok(()),
    }
}

/// Allocates a file on hugetlbfs, whose huge pages must exist before they are mapped.
fn of_huge_pages(file: &ArenaFile, layout: Layout, watch: &mut Watch<'_>) -> Result<Mapping, ArenaError> {
    source::in_steps(layout.file_bytes, watch, |part| source::fill(file.fd(), part, layout.file_bytes))?;
    Mapping::new(file.fd(), layout)
}

/// Marks a file as an arena, and gives it its name.
fn publish(file: &ArenaFile, mapping: &Mapping, source: &ArenaSource) -> Result<(), ArenaError> {
    source::seal(file.fd(), source)?;
    mapping.header().set(&header::words_of(mapping.layout()));
    source::publish(file, source)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed step fails the test")]
mod tests {
    use std::ops::ControlFlow;

    use crate::{Arena, ArenaConfig, ArenaError};

    #[test]
    fn a_watcher_sees_all_bytes_and_can_cancel() {
        let config = ArenaConfig::memfd(200 << 20);
        let mut heard = Vec::new();
        let arena = Arena::create_watched(&config, &mut |done, of| {
            heard.push((done, of));
            ControlFlow::Continue(())
        });
        assert_eq!(arena.unwrap().frames(), 200 << 8);
        let (last, of) = *heard.last().unwrap();
        assert!(heard.len() > 2 && heard.is_sorted() && last == of && of > 200 << 20, "{heard:?}");
        let mut steps = 0;
        let given_up = Arena::create_watched(&config, &mut |_, _| {
            steps += 1;
            ControlFlow::Break(())
        });
        assert!(matches!(given_up.map(drop), Err(ArenaError::GivenUp)));
        assert_eq!(steps, 1);
    }

    #[test]
    fn more_memory_than_the_machine_has_is_refused() {
        for bytes in [u64::MAX, 100 << 40] {
            let refused = Arena::create(&ArenaConfig::memfd(bytes)).map(drop);
            assert!(matches!(refused, Err(ArenaError::TooLarge { .. })), "{refused:?}");
        }
    }
}
