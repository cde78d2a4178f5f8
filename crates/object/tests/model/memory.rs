//! The reference backend as a subject: it has no store that can go away, and shows that the model is right.

use std::sync::Arc;

use slackwater::backend::{Backend, MemBackend};

use crate::history::Dice;
use crate::world::Subject;

pub(crate) struct Memory(Arc<MemBackend>);

impl Subject for Memory {
    const CRASHES: bool = false;

    fn new() -> Self {
        Self(Arc::new(MemBackend::new()))
    }

    fn open(&mut self, _cut_after: Option<u64>) -> Option<Arc<dyn Backend>> {
        Some(self.0.clone())
    }

    fn cut(&self) -> Box<dyn Fn() -> bool + Send + Sync> {
        Box::new(|| false)
    }

    fn lose_memory(&mut self) {}

    fn fault(&mut self, _dice: &mut Dice) {}

    fn heal(&mut self) {}

    fn close(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn check(&mut self) {}
}
