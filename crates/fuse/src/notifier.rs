//! Notifications from the session to the kernel.
//!
//! The kernel handles most notifications inside the write(2). There it takes locks of inodes and directories that a
//! request in flight may hold until its reply. So a thread that holds a request must not send a notification: it queues
//! it, and a thread without a request sends it.
//!
//! # Invariants
//! N1. While the queue is not empty and a thread could be started, one is sending. It exits under the lock, and only
//!     when the queue is empty.
//! N2. `nodes_to_prune` counts the nodes in prune notifications that are queued or being sent.
//!
//! # Lock order
//! The queue's lock is a leaf; it is not held while sending.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::IoSlice;
use std::os::unix::ffi::OsStrExt;

use rustix::io::Errno;
use slackwater_sync::lock::{Mutex, MutexGuard};
use slackwater_sync::shim::{Arc, thread};

use crate::TRANSPORT;
use crate::abi::{InvalEntryOut, InvalInodeOut, NotifyCode, NotifyDeleteOut, NotifyPruneOut};
use crate::connection::Connection;

/// Limit of nodes in queued prune notifications: half a MiB of numbers. Beyond it the caller tries again later.
const TO_PRUNE_MAX: usize = 64 << 10;

/// A notification to the kernel.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Notification {
    /// Drops the node's cached attributes, and its cached pages from `offset` on after writing dirty ones back. `len` 0
    /// means to the end, a negative `offset` attributes only.
    InvalInode {
        /// The inode.
        node: u64,
        /// First byte.
        offset: i64,
        /// Bytes.
        len: i64,
    },
    /// Drops a cached name, so that it is looked up again.
    InvalEntry {
        /// The directory.
        parent: u64,
        /// The name.
        name: OsString,
    },
    /// The name was removed together with its node.
    Delete {
        /// The directory.
        parent: u64,
        /// The node it led to.
        child: u64,
        /// The name.
        name: OsString,
    },
    /// Drops the unused nodes among `nodes`, with the names that lead to them. A node stays if it is open, a mount
    /// point, a directory with cached names, or otherwise in use. For each dropped node a FORGET is sent. Needs minor
    /// version 45 of the protocol.
    Prune {
        /// The nodes; unknown ones are skipped.
        nodes: Vec<u64>,
    },
    /// Sends every request again that was read and not answered.
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
    /// N2.
    nodes_to_prune: usize,
    /// The kernel does not support [`Notification::Prune`], whatever its version says.
    refuses_to_prune: bool,
}

impl Notifier {
    pub(crate) fn new(connection: Arc<Connection>) -> Self {
        Self { shared: Arc::new(Shared { connection, queue: Mutex::new(TRANSPORT, Queue::default()) }) }
    }

    /// Sends a notification and waits until the kernel has acted on it.
    ///
    /// # Errors
    /// Those of the kernel. An unknown node or name is not an error, since nothing of it is cached. Neither is a page
    /// that is stored to again while it is invalidated.
    ///
    /// # Blocking
    /// Until requests in flight are answered. The caller holds no request and is not in a handler.
    pub fn send(&self, notification: &Notification) -> Result<(), Errno> {
        debug_assert!(!crate::pool::is_handling(), "a handler queues its notifications");
        self.shared.send(notification)
    }

    /// [`send`](Self::send) of [`Notification::InvalInode`] for the attributes alone.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Blocking
    /// For no page and no request. A handler may call this for the node of its request.
    pub fn inval_attributes(&self, node: u64) -> Result<(), Errno> {
        self.shared.send(&Notification::InvalInode { node, offset: -1, len: 0 })
    }

    /// [`send`](Self::send) of [`Notification::InvalInode`], for its effect on pages of shared mappings. Stores to these
    /// pages have arrived when this returns, except for those made meanwhile. If the mount is gone, that is not an
    /// error: the kernel has written everything back.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    ///
    /// # Blocking
    /// Until the kernel has the pages' locks, which only reads and write-backs of the node in flight hold. A handler
    /// may call this if another thread reads requests meanwhile and its own request is neither a read nor a write-back.
    pub fn flush_pages(&self, node: u64, offset: i64, len: i64) -> Result<(), Errno> {
        match self.shared.send(&Notification::InvalInode { node, offset, len }) {
            Err(Errno::NODEV | Errno::NOTCONN | Errno::CONNABORTED) => Ok(()),
            pushed => pushed,
        }
    }

    /// Asks the kernel for every request again that was read and not answered, after taking over a connection. They
    /// arrive with [`is_resend`](crate::RequestHeader::is_resend).
    ///
    /// # Errors
    /// Those of the kernel; kernels before 6.9 refuse.
    pub fn resend(&self) -> Result<(), Errno> {
        self.send(&Notification::Resend)
    }

    /// Queues a notification, which another thread sends soon and in order. A failure is logged.
    ///
    /// # Blocking
    /// Never.
    pub fn queue(&self, notification: Notification) {
        self.enqueue(self.shared.queue.lock(), notification);
    }

    /// [`queue`](Self::queue) of [`Notification::Prune`]. Returns false without asking the kernel if it has refused
    /// that before, or while 65,536 nodes are queued. The kernel takes locks for each node, and may wait for their
    /// holders.
    ///
    /// # Blocking
    /// Never.
    pub fn queue_prune(&self, nodes: Vec<u64>) -> bool {
        let mut queue = self.shared.queue.lock();
        if queue.refuses_to_prune || queue.nodes_to_prune + nodes.len() > TO_PRUNE_MAX {
            return false;
        }
        queue.nodes_to_prune += nodes.len();
        self.enqueue(queue, Notification::Prune { nodes });
        true
    }

    /// Whether queued notifications are being sent.
    pub fn is_sending(&self) -> bool {
        self.shared.queue.lock().is_sending
    }

    fn enqueue(&self, mut queue: MutexGuard<'_, Queue>, notification: Notification) {
        queue.waiting.push_back(notification);
        let is_first = !std::mem::replace(&mut queue.is_sending, true);
        drop(queue);
        if !is_first {
            return;
        }
        let shared = self.shared.clone();
        if let Err(error) = thread::Builder::new().name("sw-fuse-notify".to_owned()).spawn(move || shared.send_all()) {
            tracing::error!(%error, "cannot start the notification thread; notifications wait for the next attempt");
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
            let sent = self.send(&next);
            if let Notification::Prune { nodes } = &next {
                self.pruned(nodes.len(), sent);
            } else if let Err(errno) = sent {
                tracing::warn!(%errno, ?next, "the kernel refused a notification");
            }
        }
    }

    fn pruned(&self, nodes: usize, sent: Result<(), Errno>) {
        let mut queue = self.queue.lock();
        queue.nodes_to_prune -= nodes;
        if let Err(errno) = sent {
            queue.refuses_to_prune |= errno == Errno::INVAL;
            drop(queue);
            tracing::debug!(%errno, nodes, "the kernel did not prune the nodes");
        }
    }

    fn send(&self, notification: &Notification) -> Result<(), Errno> {
        let sent = match notification {
            Notification::InvalInode { node, offset, len } => {
                let record = InvalInodeOut { ino: *node, off: *offset, len: *len };
                self.write(NotifyCode::InvalInode, &record.to_bytes(), &[])
            }
            Notification::InvalEntry { parent, name } => {
                let record = InvalEntryOut { parent: *parent, namelen: name.len() as u32, flags: 0 };
                self.write(NotifyCode::InvalEntry, &record.to_bytes(), &[name.as_bytes(), &[0]])
            }
            Notification::Delete { parent, child, name } => {
                let record = NotifyDeleteOut { parent: *parent, child: *child, namelen: name.len() as u32, padding: 0 };
                self.write(NotifyCode::Delete, &record.to_bytes(), &[name.as_bytes(), &[0]])
            }
            Notification::Prune { nodes } => {
                let record = NotifyPruneOut { count: nodes.len() as u32, padding: 0, spare: 0 };
                let numbers: Vec<u8> = nodes.iter().flat_map(|node| node.to_ne_bytes()).collect();
                self.write(NotifyCode::Prune, &record.to_bytes(), &[&numbers])
            }
            Notification::Resend => self.write(NotifyCode::Resend, &[], &[]),
        };
        match sent {
            Err(Errno::NOENT) => Ok(()),
            // A page was written back and stored to again in between.
            Err(Errno::BUSY) if matches!(notification, Notification::InvalInode { .. }) => Ok(()),
            other => other,
        }
    }

    fn write(&self, code: NotifyCode, record: &[u8], tail: &[&[u8]]) -> Result<(), Errno> {
        let parts: Vec<_> = [record].iter().chain(tail).map(|part| IoSlice::new(part)).collect();
        self.connection.send(0, code as i32, &parts)
    }
}
