//! A takeover on purpose: by `slackwater restart` or `slackwater upgrade`.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use slackwater_control::exit::Failure;

use crate::keeper::programs::Program;

/// Whether another process is to take over, and of which program.
#[derive(Debug, Default)]
pub(crate) struct Succession {
    /// The successor's program, once a takeover was asked for. `Some(None)`: the program of this process.
    next: Mutex<Option<Option<Arc<Program>>>>,
    asked: Condvar,
}

impl Succession {
    fn next(&self) -> MutexGuard<'_, Option<Option<Arc<Program>>>> {
        // It is set as a whole.
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets another process take over, of `program` if that is another one.
    ///
    /// # Errors
    /// `Busy`, if another takeover has been asked for that may have another program.
    pub(crate) fn ask(&self, program: Option<Program>) -> Result<(), Failure> {
        let mut next = self.next();
        match (&*next, &program) {
            (None, _) => {
                *next = Some(program.map(Arc::new));
                self.asked.notify_all();
                Ok(())
            }
            (Some(_), None) => Ok(()),
            (Some(_), Some(_)) => Err(Failure::busy("another process already takes over").advise("try again")),
        }
    }

    /// Whether another process is to take over.
    pub(crate) fn is_asked(&self) -> bool {
        self.next().is_some()
    }

    /// Waits until another process is to take over. Returns its program, if that is another one.
    ///
    /// # Blocking
    /// Usually for ever.
    pub(crate) fn wait(&self) -> Option<Arc<Program>> {
        let waited = self.asked.wait_while(self.next(), |next| next.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).clone().flatten()
    }
}
