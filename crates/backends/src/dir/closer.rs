//! Closing nodes where the close may wait for a server.
//!
//! On FUSE, NFS, SMB and 9p the `close` of a file asks the server to flush it, and returns when the server has
//! answered, which may be never. The thread that drops a node may be an unmount with a deadline, or serve many volumes.
//! So on these file systems, a thread of the volume does nothing but close nodes. It starts with the first one, and
//! ends after ten seconds without any.
//!
//! # Invariants
//! K1. The thread that drops a node never waits, unless no closing thread can be started: then it closes the node
//!     itself.
//! K2. While a node is queued, there is a thread, which decides to end under the lock and with the queue empty.
//! K3. While more than [`BACKLOG_MAX`] nodes are queued, each call closes one before it begins: calls open nodes, and
//!     may wait for the server. So closing cannot fall so far behind opening that descriptors run out.
//! K4. The thread ends with the volume, when the queue is empty. A node that outlives its volume starts another thread,
//!     which ends at once.
//!
//! # Lock order
//! A leaf: no lock is taken and no node closed under it.

use std::collections::VecDeque;
use std::time::Duration;

use slackwater_sync::lock::{Condvar, Mutex, Rank};
use slackwater_sync::shim::{Arc, thread};

use super::node::DirNode;

/// The number of queued nodes above which calls help to close them.
const BACKLOG_MAX: usize = 256;

/// How long the end of a volume waits for its last nodes. Usually the source is unused afterwards and can be unmounted;
/// a server that does not answer causes only this delay.
const LAST_NODES_WITHIN: Duration = Duration::from_secs(1);

/// How long the thread waits for the next node before it ends.
const IDLE: Duration = Duration::from_secs(10);

/// A node may be dropped under any lock.
const CLOSING: Rank = Rank::new(85, "nodes to close");

/// The closing thread of a volume, while it is needed. Dropping it waits up to a second for queued nodes.
pub(super) struct Closer<T: Send + 'static = DirNode>(Arc<Queue<T>>);

/// The queue that dropped nodes are added to.
struct Queue<T> {
    state: Mutex<State<T>>,
    work: Condvar,
    drained: Condvar,
    idle: Duration,
}

struct State<T> {
    nodes: VecDeque<T>,
    has_thread: bool,
    /// The thread has taken one and not closed it yet.
    is_closing: bool,
    is_ended: bool,
}

/// The value of a [`Node`](slackwater::backend::Node) of this backend: a node that its volume's closer closes, if it
/// has one.
pub(super) struct OpenNode<T: Send + 'static = DirNode> {
    /// `Some` until it is dropped.
    node: Option<T>,
    closer: Option<Arc<Queue<T>>>,
}

impl<T: Send + 'static> OpenNode<T> {
    pub(super) fn new(node: T, closer: Option<&Closer<T>>) -> Self {
        Self { node: Some(node), closer: closer.map(|closer| Arc::clone(&closer.0)) }
    }

    pub(super) fn get(&self) -> Option<&T> {
        self.node.as_ref()
    }
}

impl<T: Send + 'static> Drop for OpenNode<T> {
    fn drop(&mut self) {
        if let (Some(closer), Some(node)) = (&self.closer, self.node.take()) {
            closer.close(node);
        }
    }
}

impl<T: Send + 'static> Closer<T> {
    pub(super) fn new() -> Self {
        Self::with_idle(IDLE)
    }

    fn with_idle(idle: Duration) -> Self {
        let state = State { nodes: VecDeque::new(), has_thread: false, is_closing: false, is_ended: false };
        let state = Mutex::new(CLOSING, state);
        Self(Arc::new(Queue { state, work: Condvar::new(), drained: Condvar::new(), idle }))
    }

    /// Closes a node before a call if too many are queued (K3).
    ///
    /// # Blocking
    /// For the server.
    pub(super) fn help(&self) {
        let mut state = self.0.state.lock();
        let node = (state.nodes.len() > BACKLOG_MAX).then(|| state.nodes.pop_front());
        drop(state);
        drop(node);
    }

    /// Waits until all nodes that were dropped are closed, at most `within`.
    pub(super) fn wait_closed(&self, within: Duration) {
        let mut state = self.0.state.lock();
        let mut is_late = false;
        while !is_late && (state.is_closing || !state.nodes.is_empty()) {
            is_late = self.0.drained.wait_timeout(&mut state, within);
        }
    }
}

impl<T: Send + 'static> Drop for Closer<T> {
    fn drop(&mut self) {
        self.0.state.lock().is_ended = true;
        self.0.work.notify_all();
        self.wait_closed(LAST_NODES_WITHIN);
    }
}

impl<T: Send + 'static> Queue<T> {
    fn close(self: &Arc<Self>, node: T) {
        let mut state = self.state.lock();
        state.nodes.push_back(node);
        if std::mem::replace(&mut state.has_thread, true) {
            drop(state);
            self.work.notify_one();
            return;
        }
        drop(state);
        let queue = Arc::clone(self);
        let work = move || {
            while let Some(node) = queue.next() {
                drop(node);
            }
        };
        if thread::Builder::new().name("slackwater-close".to_owned()).spawn(work).is_err() {
            let mut state = self.state.lock();
            state.has_thread = false; // the next one tries again
            let nodes = std::mem::take(&mut state.nodes);
            drop(state);
            drop(nodes); // K1
        }
    }

    /// Notes that the last node was closed, and waits for the next one. `None` when the thread should end.
    fn next(&self) -> Option<T> {
        let mut state = self.state.lock();
        state.is_closing = false;
        loop {
            if let Some(node) = state.nodes.pop_front() {
                state.is_closing = true;
                return Some(node);
            }
            self.drained.notify_all();
            let is_late = !state.is_ended && self.work.wait_timeout(&mut state, self.idle);
            if state.nodes.is_empty() && (state.is_ended || is_late) {
                state.has_thread = false; // K2
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread::ThreadId;

    use super::*;

    /// A node whose close takes until the test allows it.
    struct Slow {
        gate: Receiver<()>,
        closed: Sender<ThreadId>,
    }

    impl Drop for Slow {
        fn drop(&mut self) {
            self.gate.recv().ok();
            self.closed.send(thread::current().id()).ok();
        }
    }

    fn slow(closer: Option<&Closer<Slow>>) -> (OpenNode<Slow>, Sender<()>, Receiver<ThreadId>) {
        let ((let_go, gate), (closed, is_closed)) = (channel(), channel());
        (OpenNode::new(Slow { gate, closed }, closer), let_go, is_closed)
    }

    #[test]
    fn dropping_a_node_does_not_wait_for_the_server() {
        let closer = Closer::new();
        let nodes: Vec<_> = (0..3).map(|_| slow(Some(&closer))).collect();
        let (nodes, gates): (Vec<_>, Vec<_>) =
            nodes.into_iter().map(|(node, gate, closed)| (node, (gate, closed))).unzip();
        drop(nodes);
        for (_, is_closed) in &gates {
            assert!(is_closed.try_recv().is_err(), "the server has not answered");
        }
        for (let_go, is_closed) in gates {
            drop(let_go);
            assert_ne!(is_closed.recv().expect("it is closed"), thread::current().id());
        }
    }

    #[test]
    fn without_a_closer_a_node_is_closed_at_once() {
        let (node, let_go, is_closed) = slow(None);
        drop((let_go, node));
        assert_eq!(is_closed.try_recv(), Ok(thread::current().id()));
    }

    #[test]
    fn the_end_waits_for_closing_nodes_but_not_for_hung_ones() {
        let closer = Closer::new();
        let (quick, let_go, is_closed) = slow(Some(&closer));
        drop((let_go, quick));
        let begun = std::time::Instant::now();
        drop(closer);
        if begun.elapsed() < LAST_NODES_WITHIN {
            is_closed.try_recv().expect("K4: it was waited for");
        } else {
            is_closed.recv().expect("it is closed, on a slow machine"); // the wait is limited
        }

        let closer = Closer::new();
        let (hanging, let_go, is_closed) = slow(Some(&closer));
        let (late, let_late_go, is_late_closed) = slow(Some(&closer));
        drop(hanging);
        let queue = Arc::downgrade(&closer.0);
        drop(closer);
        assert!(is_closed.try_recv().is_err());
        drop((let_go, let_late_go));
        is_closed.recv().expect("it is closed after all");
        drop(late);
        is_late_closed.recv().expect("it outlived its volume");
        while queue.strong_count() > 0 {
            thread::yield_now(); // K4: the thread has it
        }
    }

    #[test]
    fn closing_nodes_are_waited_for_within_a_limit() {
        let closer = Closer::new();
        let (node, let_go, is_closed) = slow(Some(&closer));
        drop(node);
        closer.wait_closed(Duration::from_millis(1));
        assert!(is_closed.try_recv().is_err(), "the server has not answered");
        drop(let_go);
        closer.wait_closed(Duration::from_secs(600));
        is_closed.try_recv().expect("it was waited for");
    }

    #[test]
    fn the_thread_ends_when_idle_and_starts_again() {
        let closer = Closer::with_idle(Duration::from_millis(1));
        for _ in 0..20 {
            let (node, let_go, is_closed) = slow(Some(&closer));
            drop((let_go, node));
            is_closed.recv().expect("it is closed");
            while closer.0.state.lock().has_thread {
                thread::yield_now();
            }
        }
    }

    #[test]
    fn calls_help_when_closing_falls_behind() {
        let closer = Closer::new();
        let (first, let_go, is_closed) = slow(Some(&closer));
        drop(first);
        // One more than necessary, since the thread may or may not have taken one.
        let rest: Vec<_> = (0..BACKLOG_MAX + 2).map(|_| slow(Some(&closer))).collect();
        let mut closed = Vec::new();
        for (node, let_go, is_closed) in rest {
            drop((let_go, node));
            closed.push(is_closed);
        }
        while closer.0.state.lock().nodes.len() > BACKLOG_MAX + 2 {
            thread::yield_now();
        }
        closer.help();
        assert_eq!(closed[0].try_recv(), Ok(thread::current().id()));
        drop(let_go);
        for is_closed in &closed[1..] {
            is_closed.recv().expect("K2");
        }
        is_closed.recv().expect("K2");
    }
}
