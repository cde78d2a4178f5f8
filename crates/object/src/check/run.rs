//! The passes of a check in their order, and the rounds of a repair.

use object_store::ObjectStore;
use slackwater::BackendError;
use slackwater_sync::shim::Arc;

use crate::check::checksums::Verifier;
use crate::check::inodes::Nodes;
use crate::check::names;
use crate::check::problem::Problem;
use crate::check::repair::repair_one;
use crate::check::report::{FINDINGS_MAX, FsckFinding, FsckReport};
use crate::check::segments::Segments;
use crate::check::snapshot::{Now, Snapshot};
use crate::format::Key;
use crate::progress::Progress;
use crate::tree::{Counters, Tree};

/// A repair may show errors that were hidden before; after this many rounds it gives up.
const ROUNDS_MAX: u32 = 100;
/// Records between two reports of progress.
const PROGRESS_RECORDS: u64 = 1024;

/// The volume to check.
#[derive(Clone)]
pub(crate) struct Subject {
    /// Rooted at the prefix of the volume.
    pub(crate) store: Arc<dyn ObjectStore>,
    /// The salt of [`hash_of_name`](crate::format::hash_of_name).
    pub(crate) salt: u64,
    /// Whether to read all data too.
    pub(crate) data: bool,
}

/// The errors and counts that the passes collect.
pub(super) struct Findings<'a> {
    pub(super) report: FsckReport,
    /// At most [`FINDINGS_MAX`].
    pub(super) problems: Vec<Problem>,
    more: u64,
    /// A record of extents could not be read: what uses which bytes is not known.
    pub(super) lacks_extents: bool,
    /// A record of names could not be read: what has no name is not known.
    pub(super) lacks_names: bool,
    progress: &'a mut dyn FnMut(Progress),
    step: &'static str,
    done: u64,
}

impl Findings<'_> {
    pub(super) fn add(&mut self, problem: Problem) {
        self.lacks_extents |= matches!(problem, Problem::Undecodable(Key::Chunk { .. }, _));
        self.lacks_names |= matches!(problem, Problem::Undecodable(Key::Entries { .. }, _));
        if self.problems.len() < FINDINGS_MAX {
            self.problems.push(problem);
        } else {
            self.more += 1;
        }
    }

    /// Says that `records` more were read in a step.
    pub(super) fn step(&mut self, step: &'static str, records: u64) {
        if self.step != step {
            (self.step, self.done) = (step, 0);
        }
        if self.done.is_multiple_of(PROGRESS_RECORDS) {
            (self.progress)(Progress { step, done: self.done });
        }
        self.done += records;
    }
}

/// Checks a volume.
///
/// # Errors
/// The store's.
pub(crate) async fn check(subject: &Subject, progress: &mut dyn FnMut(Progress)) -> Result<FsckReport, BackendError> {
    Ok(examine(subject, progress).await?.0)
}

/// Checks a volume that `tree` has open for writing, and repairs what can be repaired.
///
/// # Errors
/// The store's, or those of a commit.
pub(crate) async fn repair(
    subject: &Subject,
    tree: &Tree,
    progress: &mut dyn FnMut(Progress),
) -> Result<FsckReport, BackendError> {
    let (mut repaired, mut more_repaired) = (Vec::new(), 0);
    let mut rounds = 0;
    loop {
        let (mut report, problems) = examine(subject, progress).await?;
        rounds += 1;
        let mut is_changed = false;
        for (problem, finding) in problems.iter().zip(&report.findings).filter(|_| rounds <= ROUNDS_MAX) {
            let attempt = tree.run(|view| repair_one(view, problem)).await;
            match attempt {
                Ok(true) => {
                    is_changed = true;
                    if repaired.len() < FINDINGS_MAX {
                        repaired.push(FsckFinding { is_repaired: true, ..finding.clone() });
                    } else {
                        more_repaired += 1;
                    }
                }
                Ok(false) => {}
                // The records that the repair needs are damaged themselves, and may be repaired in this round.
                Err(error) => tracing::warn!(%problem, %error, "not repaired"),
            }
        }
        tree.commit().await?;
        if !is_changed {
            report.findings.splice(0..0, repaired);
            report.more_findings += more_repaired;
            return Ok(report);
        }
    }
}

/// Checks once: the report, and the errors in the order of its findings.
async fn examine(
    subject: &Subject,
    progress: &mut dyn FnMut(Progress),
) -> Result<(FsckReport, Vec<Problem>), BackendError> {
    let mut snapshot = Snapshot::open(subject.store.clone()).await?;
    let result = examine_snapshot(subject, &mut snapshot, progress).await;
    snapshot.close().await;
    result
}

async fn examine_snapshot(
    subject: &Subject,
    snapshot: &mut Snapshot,
    progress: &mut dyn FnMut(Progress),
) -> Result<(FsckReport, Vec<Problem>), BackendError> {
    let findings = &mut Findings {
        report: FsckReport::default(),
        problems: Vec::new(),
        more: 0,
        lacks_extents: false,
        lacks_names: false,
        progress,
        step: "",
        done: 0,
    };
    for records in &mut snapshot.unknown {
        while let Some((_, _)) = records.next(|problem| findings.add(problem)).await? {}
    }
    let mut segments = Segments::read(snapshot, &*subject.store, findings).await?;
    let mut verifier = subject.data.then(|| Verifier::new(subject.store.clone(), snapshot.reader.clone()));
    let mut nodes = Nodes::read(snapshot, &mut segments, verifier.as_mut(), findings).await?;
    segments.find_unrecorded(&*subject.store, &snapshot.reader, findings).await?;
    drop_collected(subject, findings).await?;
    // Before the names: to repair those, new inodes may be needed.
    check_counters(snapshot, &nodes, findings);
    let mut paths = names::read(snapshot, subject.salt, &mut nodes, findings).await?;
    names::finish(&mut nodes, findings);
    segments.finish(findings);
    names::find_paths(snapshot, &nodes, &mut paths, findings).await?;

    let problems = std::mem::take(&mut findings.problems);
    let mut report = std::mem::take(&mut findings.report);
    report.more_findings = findings.more;
    report.errors_left = problems.len() as u64 + findings.more;
    report.findings = problems
        .iter()
        .map(|problem| {
            let path = problem.ino().and_then(|ino| paths.of(ino));
            let text = path.map_or_else(|| problem.to_string(), |path| format!("{}: {problem}", path.display()));
            FsckFinding { severity: problem.severity(), text, is_repaired: false }
        })
        .collect();
    Ok((report, problems))
}

/// Drops the lost extents whose files have changed since: a writer may have collected their segments during the check.
async fn drop_collected(subject: &Subject, findings: &mut Findings<'_>) -> Result<(), BackendError> {
    let is_lost = |problem: &Problem| matches!(problem, Problem::LostExtent { .. });
    if !findings.problems.iter().any(is_lost) {
        return Ok(());
    }
    let now = Now::open(subject.store.clone()).await?;
    for problem in std::mem::take(&mut findings.problems) {
        if let Problem::LostExtent { ino, index, at, len, segment, .. } = problem
            && !now.uses(Key::Chunk { ino, index }, at..at + len, segment).await?
        {
            continue;
        }
        findings.problems.push(problem);
    }
    now.close().await;
    Ok(())
}

fn check_counters(snapshot: &Snapshot, nodes: &Nodes, findings: &mut Findings<'_>) {
    if snapshot.counters.is_none() {
        findings.add(Problem::NoCounters);
    }
    // A tree without counters is opened with these.
    let counters = snapshot.counters.unwrap_or(Counters::EMPTY);
    let (is, should) = (counters.inodes, nodes.len());
    if is != should {
        findings.add(Problem::WrongInodes { is, should });
    }
    let (is, should) = (counters.data_bytes, nodes.data_bytes);
    if is != should && !findings.lacks_extents {
        findings.add(Problem::WrongDataBytes { is, should });
    }
    let (is, should) = (counters.next_ino, nodes.last().saturating_add(1).max(2));
    if is < should {
        findings.add(Problem::WrongNextIno { is, should });
    }
}
