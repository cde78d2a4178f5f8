//! Frames of the arena, lent to the thread that reads a large WRITE.

use std::any::Any;
use std::io::IoSliceMut;

use slackwater::LandingFrames;
use slackwater_fuse::{Landed, LandingMemory};

/// Frames that the transport receives into.
#[derive(Debug)]
pub(super) struct Lent(pub(super) LandingFrames);

impl Lent {
    /// The frames with a payload.
    pub(super) fn frames<'a>(landed: &'a mut Landed<'_>) -> &'a mut LandingFrames {
        let memory: &mut dyn Any = landed.memory();
        let Some(Self(frames)) = memory.downcast_mut() else { unreachable!("a session lends no other memory") };
        frames
    }
}

impl LandingMemory for Lent {
    fn slices<'a>(&'a mut self, slices: &mut [IoSliceMut<'a>]) -> usize {
        let frames = slices.iter_mut().zip(self.0.slices_mut());
        frames.map(|(to, slice)| *to = IoSliceMut::new(slice)).count()
    }

    fn copy_to(&self, from: usize, to: &mut [u8]) {
        self.0.copy_to(from, to);
    }
}
