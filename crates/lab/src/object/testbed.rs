//! The store, its clients and the file systems that take turns, and where their figures go.

use anyhow::{Context, Result};

use super::bare::Bare;
use super::server::{Delay, Requests, Servers};
use super::subject::{PEERS, Subject};
use crate::harness::{Options, Series, rounds};
use crate::scratch::Scratch;
use crate::{fuse, interrupt};

/// The column of the store without a file system.
pub(super) const BARE: &str = "bare store";

/// Rounds in which file systems of others take part: their figures are for orientation, and some take minutes.
const ROUNDS_OF_PEERS: u32 = 3;

/// Everything that is measured. Dropped in this order: the mounts, then their stores, then their files.
pub(super) struct Testbed {
    pub(super) subjects: Vec<Subject>,
    pub(super) bares: Vec<(Delay, Bare)>,
    pub(super) s3: Servers,
    pub(super) series: Series,
    /// Which of others failed, and with what.
    pub(super) failures: Vec<String>,
    pub(super) home: Scratch,
}

/// One that takes its turn in a round.
#[derive(Copy, Clone, Debug)]
enum Turn {
    /// Number in [`Testbed::bares`].
    Bare(usize),
    /// Number in [`Testbed::subjects`].
    Subject(usize),
}

impl Testbed {
    /// Starts the servers, and mounts all that are installed.
    pub(super) fn start(options: &Options) -> Result<Self> {
        let home = Scratch::in_folder(&options.dir)?;
        let s3 = Servers::start(&home)?;
        let program = fuse::slackwater_with_object_volumes()?;
        let mut subjects = vec![Subject::dir(&program, home.subdirectory("dir")?)?];
        let (mut bares, mut failures) = (Vec::new(), Vec::new());
        for delay in Delay::ALL {
            let folder = |name: &str| home.subdirectory(&format!("{name}-{}", delay.tag()));
            bares.push((delay, Bare::connect(&s3, delay)?));
            subjects.push(Subject::ours(&program, &s3, delay, folder("ours")?)?);
            for name in PEERS {
                match Subject::peer(name, &s3, delay, folder(name)?) {
                    Ok(subject) => subjects.extend(subject),
                    Err(error) => failures.push(format!("{error:#}")),
                }
            }
        }
        Ok(Self { subjects, bares, s3, series: Series::default(), failures, home })
    }

    /// Prepares all subjects. One of others that fails has no further turn.
    pub(super) fn prepare(
        &mut self,
        what: &str,
        mut prepare: impl FnMut(&Subject, &Servers) -> Result<()>,
    ) -> Result<()> {
        for number in 0..self.subjects.len() {
            let prepared = prepare(&self.subjects[number], &self.s3);
            self.judge(what, number, prepared)?;
        }
        self.subjects.retain(Subject::is_mounted);
        Ok(())
    }

    /// Passes on the error of a subject's turn, unless it is one of others: its failure becomes a note, and it leaves.
    fn judge(&mut self, what: &str, number: usize, result: Result<()>) -> Result<()> {
        let subject = &mut self.subjects[number];
        let name = subject.delay().map_or_else(|| what.to_owned(), |delay| row(what, delay));
        match result {
            Err(error) if subject.is_peer() => {
                interrupt::check()?;
                let text = format!("{error:#}");
                let first_line = text.lines().next().unwrap_or_default();
                self.failures.push(format!("{} has failed ({name}): {first_line}", subject.column()));
                subject.abandon();
                Ok(())
            }
            result => result.with_context(|| format!("{}: {name}", subject.column())),
        }
    }

    /// Runs `count` rounds in which the bare stores and the subjects take turns.
    pub(super) fn rounds(
        &mut self,
        what: &'static str,
        count: u32,
        mut bare: impl FnMut(&Bare, &mut Cell<'_>) -> Result<()>,
        mut subject: impl FnMut(&mut Subject, &mut Cell<'_>) -> Result<()>,
    ) -> Result<()> {
        let bares = (0..self.bares.len()).map(Turn::Bare);
        let turns: Vec<Turn> = bares.chain((0..self.subjects.len()).map(Turn::Subject)).collect();
        rounds::run(what, count, &turns, |round, turn| match *turn {
            Turn::Bare(number) => {
                let (delay, client) = &self.bares[number];
                let (delays, s3) = (vec![*delay], &self.s3);
                bare(client, &mut Cell { column: BARE, delays, round, s3, series: &mut self.series })
            }
            Turn::Subject(number) => {
                let of = &mut self.subjects[number];
                if of.is_peer() && round >= ROUNDS_OF_PEERS || !of.is_mounted() {
                    return Ok(());
                }
                // A volume of a directory has no store, and is compared with both.
                let delays = of.delay().map_or_else(|| Delay::ALL.to_vec(), |delay| vec![delay]);
                let (column, s3) = (of.column(), &self.s3);
                let taken = subject(of, &mut Cell { column, delays, round, s3, series: &mut self.series });
                self.judge(what, number, taken)
            }
        })?;
        self.subjects.retain(Subject::is_mounted);
        Ok(())
    }

    /// Unmounts those of others.
    pub(super) fn end_peers(&mut self) {
        self.subjects.retain(|subject| !subject.is_peer());
    }

    /// Unmounts all.
    pub(super) fn end(&mut self) -> Result<()> {
        self.subjects.drain(..).try_for_each(Subject::end)
    }
}

/// The row of `what` at `delay`.
pub(super) fn row(what: &str, delay: Delay) -> String {
    format!("{what}, {}", delay.name())
}

/// Where the figures of a turn go.
pub(super) struct Cell<'t> {
    column: &'static str,
    delays: Vec<Delay>,
    pub(super) round: u32,
    pub(super) s3: &'t Servers,
    series: &'t mut Series,
}

impl Cell<'_> {
    pub(super) fn add(&mut self, what: &str, sample: f64) {
        for delay in &self.delays {
            self.series.add(&row(what, *delay), self.column, sample);
        }
    }

    /// Requests so far of all that have the same store.
    pub(super) fn requests(&self) -> Requests {
        match self.delays[..] {
            [delay] => self.s3.requests(delay),
            _ => Requests::default(),
        }
    }
}
