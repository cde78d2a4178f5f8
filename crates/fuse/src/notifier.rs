//! What the session tells the kernel unasked.
//!
//! The kernel handles most notifications inside the call, and takes locks of inodes and directories there, which a
//! request in flight may hold until its reply. So a thread that holds a request must not send one: it queues it, and a
//! thread that holds none sends it.
//!
//! # Invariants
//! N1. While the queue is not empty and a thread could be started, one is sending: it leaves under the lock, and only
//!     when the queue is empty.
//! N2. `nodes_to_prune` counts the nodes of all that waits or is being sent to be pruned.
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

/// Nodes that may wait to be pruned: half a MiB of numbers. Who has more of them asks again later.
const TO_PRUNE_MAX: usize = 64 << 10;

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
    /// Give up the nodes, and the names that lead to them, as far as nobody uses them: what is open, mounted on, a directory
    /// with names that are known in it, or in use otherwise stays. Each node that goes is forgotten in the ordinary way.
    /// From minor version 45 of the protocol on.
    Prune {
        /// The nodes; those that the kernel does not know are passed over.
        nodes: Vec<u64>,
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
    /// N2.
    nodes_to_prune: usize,
    /// The kernel does not know [`Notification::Prune`], whatever its version says.
    refuses_to_prune: bool,
}

impl Notifier {
    pub(crate) fn new(connection: Arc<Connection>) -> Self {
        Self { shared: Arc::new(Shared { connection, queue: Mutex::new(TRANSPORT, Queue::default()) }) }
    }

    /// Sends it and waits until the kernel has acted on it.
    ///
    /// # Errors
    /// As the kernel has it. It knowing neither node nor name is no error: then it caches nothing of it. Nor is a page that is
    /// stored to again while it is invalidated.
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

    /// Has the kernel write what it holds of the node for shared mappings. It has arrived when this returns, but for what is
    /// stored meanwhile. A mount that is gone is no error: then the kernel has written it all.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    ///
    /// # Blocking
    /// Until the kernel has the pages' locks, which reads and write-backs of the node in flight hold, and those alone: in
    /// a handler too, if another thread reads requests meanwhile and its own request is of neither kind.
    pub(crate) fn flush_pages(&self, node: u64) -> Result<(), Errno> {
        match self.shared.send(&Notification::InvalInode { node, offset: 0, len: 0 }) {
            Err(Errno::NODEV | Errno::NOTCONN | Errno::CONNABORTED) => Ok(()),
            pushed => pushed,
        }
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
        self.enqueue(self.shared.queue.lock(), notification);
    }

    /// [`queue`](Self::queue) of [`Notification::Prune`]. False, and the kernel is not asked, if it has refused that before,
    /// or while 65,536 nodes wait: it takes locks for each of them, and may be as slow as whoever holds those.
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

    /// Whether something that was queued is on its way.
    pub(crate) fn is_sending(&self) -> bool {
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
            tracing::debug!(%errno, nodes, "the kernel keeps the nodes that it was asked to give up");
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
