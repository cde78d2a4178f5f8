//! The report of a worker: each operation before it begins, and its return. One JSON object per line.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

/// See the [module documentation](self). Paths are relative to the outermost source.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Event {
    /// A slot of a file is about to be overwritten with the bytes of `number`.
    Slot {
        file: String,
        slot: u64,
        number: u64,
        by_nobody: bool,
    },
    /// The last slot was stored through a mapping at this time, in milliseconds, and nothing has acknowledged it yet.
    Stored(u64),
    /// All stores to this file are about to be made durable, or its mapping is about to end.
    Sync {
        file: String,
        call: String,
    },
    /// The mode of a file is about to change.
    Mode {
        file: String,
        mode: u32,
        number: u64,
    },
    /// Another user is about to truncate a file to its current size, which clears set-user-ID.
    Cut {
        file: String,
    },
    /// A file is about to be replaced by the bytes of `number`.
    Replace {
        file: String,
        number: u64,
        by_store: bool,
    },
    /// A file is about to be truncated to zero and rewritten.
    Anew {
        file: String,
        number: u64,
    },
    Remove {
        file: String,
    },
    /// The last operation has returned.
    Done,
}

impl Event {
    pub(crate) fn report(&self) {
        let line = serde_json::to_string(self).unwrap() + "\n";
        io::stderr().write_all(line.as_bytes()).unwrap();
    }

    /// The events of a report, up to the line in which its worker was killed.
    pub(crate) fn all(report: &str) -> Vec<Self> {
        let whole = report.rfind('\n').map_or("", |end| &report[..end]);
        whole
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("a worker says: {line}")))
            .collect()
    }
}
