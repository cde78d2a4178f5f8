//! The object backend over a store in memory, which fails and goes away as the history wants.

use std::sync::Arc;
use std::time::Duration;

use slackwater::backend::Backend;
use slackwater_object::layers::{Failure, Fault, Operation, Rule};
use slackwater_object::{FsckOptions, GcOptions, ObjectBackend, fsck, gc};

use crate::bucket::{Bucket, kill};
use crate::history::Dice;
use crate::world::Subject;

pub(crate) struct Object {
    bucket: Bucket,
    /// The faults of this process.
    fault: Arc<Fault>,
    /// The request at which the store goes away, and whether it is carried out before.
    cut: Option<(u64, bool)>,
    backend: Option<Arc<ObjectBackend>>,
}

impl Object {
    /// The first rule: it sees every request.
    fn add_cut(&self) {
        if let Some((request, is_carried_out)) = self.cut {
            let rule = if is_carried_out { Rule::crash_after() } else { Rule::crash_before() };
            self.fault.add(rule.nth(request.saturating_sub(self.fault.requests()).max(1)));
        }
    }

    fn die(&mut self) {
        kill(&self.fault);
        self.backend = None;
    }
}

impl Subject for Object {
    const CRASHES: bool = true;

    fn new() -> Self {
        Self { bucket: Bucket::new(), fault: Arc::new(Fault::new()), cut: None, backend: None }
    }

    fn open(&mut self, cut_after: Option<u64>) -> Option<Arc<dyn Backend>> {
        self.die();
        self.fault = Arc::new(Fault::new());
        self.cut = cut_after.map(|half_requests| (1 + half_requests / 2, half_requests % 2 == 1));
        self.add_cut();
        match self.bucket.open(&self.fault) {
            Ok(backend) => {
                self.backend = Some(backend.clone());
                Some(backend)
            }
            Err(_) if self.fault.is_crashed() => None,
            Err(error) => panic!("cannot open the volume: {error}"),
        }
    }

    fn cut(&self) -> Box<dyn Fn() -> bool + Send + Sync> {
        let fault = self.fault.clone();
        Box::new(move || fault.is_crashed())
    }

    fn lose_memory(&mut self) {
        self.die();
        self.bucket.lose_memory();
    }

    fn fault(&mut self, dice: &mut Dice) {
        let failures = [Failure::Throttled, Failure::Server, Failure::Timeout, Failure::Unreachable];
        let rule = match dice.below(8) {
            0 | 1 => Rule::lose_reply(),
            2 => Rule::truncate(dice.below(2000)),
            3 => Rule::hang().on(dice.one_of(&[Operation::Put, Operation::Get])),
            _ => Rule::fail(dice.one_of(&failures)),
        };
        self.fault.add(rule.next(1 + dice.below(3)));
    }

    fn heal(&mut self) {
        self.fault.clear();
        self.add_cut();
        self.fault.release();
    }

    fn close(&mut self) -> Result<(), String> {
        let closed = self.backend.take().map_or(Ok(()), |backend| backend.close());
        closed.map_err(|error| error.to_string())
    }

    fn check(&mut self) {
        let location = self.bucket.location(&Arc::new(Fault::new()));
        let fsck = |when: &str| {
            let options = FsckOptions { repair: false, data: true };
            let report = fsck(&location, &options, &mut |_| {}).unwrap();
            let findings: Vec<_> = report.findings.iter().map(|finding| finding.text.as_str()).collect();
            assert!(findings.is_empty() && report.errors_left == 0, "{when}: {findings:#?}");
        };
        fsck("at the end");
        let collect = |dry_run| gc(&location, &GcOptions { dry_run, grace: Duration::ZERO }, &mut |_| {}).unwrap();
        collect(false);
        let left = collect(true);
        assert_eq!((left.deleted_objects, left.young_objects), (0, 0), "orphans after a collection");
        fsck("after a collection");
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        self.die();
    }
}
