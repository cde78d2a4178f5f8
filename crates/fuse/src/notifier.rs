//! What the session tells the kernel unasked.
//!
//! The kernel handles most notifications inside the call, and takes locks of inodes and directories there, which a
//! request in flight may hold until its reply. So a thread that holds a request must not send one: it queues it, and a
//! thread that holds none sends it.
//!
//! # Invariants
//! N1. While the queue is not empty and a thread could be started, one is sending: it leaves under the lock, and only
//!     when the queue is empty.
//!
//! # Lock order
//! The queue's lock is a leaf; it is not held while sending.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io::IoSlice;
use std::os::unix::ffi::OsStrExt;

use rustix::io::Errno;
use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::{Arc, thread};

use crate::TRANSPORT;
use crate::abi::{InvalEntryOut, InvalInodeOut, NotifyCode, NotifyDeleteOut};
use crate::connection::Connection;

/// A message to the kernel.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Notification {
    /// Drop cached attributes of the node, and its cached pages from `offset` on, writing dirty ones back first. `len` 0 is
    /// "to the end", a negative `offset` "attributes only".
    InvalInode {
        /// The inode.
        node: u64,
        /// First byte.
        offset: i64,
        /// Bytes.
        len: i64,
    },
    /// Look the name up again.
    InvalEntry {
        /// The directory.
        parent: u64,
        /// The name.
        name: OsString,
    },
    /// The name is gone, and its node with it.
    Delete {
        /// The directory.
        parent: u64,
        /// The node it led to.
        child: u64,
        /// The name.
        name: OsString,
    },
    /// Send every request again that was read and not answered.
    Resend,
}

/// Sends notifications of one session. Cheap to clone.
#[derive(Clone)]
pub struct Notifier {
    shared: Arc<Shared>,
}

struct Shared {
    connection: Arc<Connection>,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Notification>,
    is_sending: bool,
}

impl Notifier {
    pub(crate) fn new(connection: Arc<Connection>) -> Self {
        Self { shared: Arc::new(Shared { connection, queue: Mutex::new(TRANSPORT, Queue::default()) }) }
    }

    /// Sends it and waits until the kernel has acted on it.
    ///
    /// # Errors
    /// As the kernel has it. It knowing neither node nor name is no error: then it caches nothing of it.
    ///
    /// # Blocking
    /// Until requests that are in flight are answered. The caller holds none, and is not in a handler.
    pub fn send(&self, notification: &Notification) -> Result<(), Errno> {
        debug_assert!(!crate::pool::is_handling(), "a handler queues its notifications");
        self.shared.send(notification)
    }

    /// [`send`](Self::send) of [`Notification::InvalInode`].
    ///
    /// # Errors
    /// As there.
    pub fn inval_inode(&self, node: u64, offset: i64, len: i64) -> Result<(), Errno> {
        self.send(&Notification::InvalInode { node, offset, len })
    }

    /// Asks the kernel for every request again that was read and not answered: after taking over a connection.
    /// They come with [`is_resend`](crate::RequestHeader::is_resend).
    ///
    /// # Errors
    /// As the kernel has it; kernels before 6.9 refuse.
    pub fn resend(&self) -> Result<(), Errno> {
        self.send(&Notification::Resend)
    }

    /// Has another thread send it, soon and in order. A failure is logged.
    ///
    /// # Blocking
    /// Never.
    pub fn queue(&self, notification: Notification) {
        let mut queue = self.shared.queue.lock();
        queue.waiting.push_back(notification);
        let is_first = !std::mem::replace(&mut queue.is_sending, true);
        drop(queue);
        if !is_first {
            return;
        }
        let shared = self.shared.clone();
        if let Err(error) = thread::Builder::new().name("sw-fuse-notify".to_owned()).spawn(move || shared.send_all()) {
            tracing::error!(%error, "no thread for notifications; they wait for the next one");
            self.shared.queue.lock().is_sending = false;
        }
    }
}

impl Shared {
    fn send_all(&self) {
        loop {
            let mut queue = self.queue.lock();
            let Some(next) = queue.waiting.pop_front() else {
                queue.is_sending = false;
                return;
            };
            drop(queue);
            if let Err(errno) = self.send(&next) {
                tracing::warn!(%errno, ?next, "the kernel refused a notification");
            }
        }
    }

    fn send(&self, notification: &Notification) -> Result<(), Errno> {
        let sent = match notification {
            Notification::InvalInode { node, offset, len } => {
                let record = InvalInodeOut { ino: *node, off: *offset, len: *len };
                self.write(NotifyCode::InvalInode, &record.to_bytes(), None)
            }
            Notification::InvalEntry { parent, name } => {
                let record = InvalEntryOut { parent: *parent, namelen: name.len() as u32, flags: 0 };
                self.write(NotifyCode::InvalEntry, &record.to_bytes(), Some(name))
            }
            Notification::Delete { parent, child, name } => {
                let record = NotifyDeleteOut { parent: *parent, child: *child, namelen: name.len() as u32, padding: 0 };
                self.write(NotifyCode::Delete, &record.to_bytes(), Some(name))
            }
            Notification::Resend => self.write(NotifyCode::Resend, &[], None),
        };
        match sent {
            Err(Errno::NOENT) => Ok(()),
            other => other,
        }
    }

    fn write(&self, code: NotifyCode, record: &[u8], name: Option<&OsStr>) -> Result<(), Errno> {
        let record = IoSlice::new(record);
        match name {
            None => self.connection.send(0, code as i32, &[record]),
            Some(name) => {
                self.connection.send(0, code as i32, &[record, IoSlice::new(name.as_bytes()), IoSlice::new(&[0])])
            }
        }
    }
}
