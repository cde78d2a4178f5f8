//! `object`: volumes in an object store whose requests take 1 ms and 30 ms, beside the store itself, a volume of a
//! directory, and file systems of others on the same store.
//!
//! Two S3 servers in this process keep objects as files on this machine, one for each delay, and count the requests of
//! all clients. Every subject has its turn in each round.

mod parts;
mod results;
mod store;

use anyhow::{Context, Result};

use self::parts::Amounts;
use self::store::{Bare, Delay, PEERS, Requests, Servers, Subject};
use crate::harness::{Options, Report, Series, rounds};
use crate::scratch::Scratch;
use crate::{fuse, interrupt};

/// Runs the experiment.
pub(crate) fn run(options: &Options, report: &mut Report) -> Result<()> {
    let mut testbed = Testbed::start(options)?;
    let amounts = Amounts { rounds: options.rounds(), ..Amounts::of(options) };
    parts::streams(&mut testbed, amounts)?;
    parts::small_writes(&mut testbed, amounts, options.seed)?;
    parts::syncs(&mut testbed, amounts)?;
    parts::list(&mut testbed, amounts)?;
    if let Some(archive) = report.optional("a source tree", parts::archive(&testbed.home))? {
        parts::unpack(&mut testbed, amounts, &archive)?;
    }
    testbed.subjects.retain(|subject| !subject.is_peer());
    let idle = parts::idle(&testbed, amounts)?;
    let peaks = parts::memory(&mut testbed, amounts)?;
    testbed.subjects.drain(..).try_for_each(Subject::end)?;
    testbed.failures.drain(..).for_each(|failure| report.note(failure));
    report.series = testbed.series;
    results::publish(report, amounts, &idle, &peaks);
    Ok(())
}

/// The column of the store without a file system.
const BARE: &str = "bare store";

/// Rounds in which file systems of others take part: their figures are for orientation, and some take minutes.
const ROUNDS_OF_PEERS: u32 = 3;

/// Everything that is measured. Dropped in this order: the mounts, then their stores, then their files.
struct Testbed {
    subjects: Vec<Subject>,
    bares: Vec<(Delay, Bare)>,
    s3: Servers,
    series: Series,
    /// Which file systems of others failed, and with what.
    failures: Vec<String>,
    home: Scratch,
}

/// A store or subject that takes its turn in a round.
#[derive(Copy, Clone, Debug)]
enum Turn {
    /// Number in [`Testbed::bares`].
    Bare(usize),
    /// Number in [`Testbed::subjects`].
    Subject(usize),
}

impl Testbed {
    /// Starts the servers, and mounts all that are installed.
    fn start(options: &Options) -> Result<Self> {
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
    fn prepare(&mut self, what: &str, mut prepare: impl FnMut(&Subject, &Servers) -> Result<()>) -> Result<()> {
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
    fn rounds(
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
}

/// The row of `what` at `delay`.
fn row(what: &str, delay: Delay) -> String {
    format!("{what}, {}", delay.name())
}

/// Where the figures of a turn go.
struct Cell<'t> {
    column: &'static str,
    delays: Vec<Delay>,
    round: u32,
    s3: &'t Servers,
    series: &'t mut Series,
}

impl Cell<'_> {
    fn add(&mut self, what: &str, sample: f64) {
        for delay in &self.delays {
            self.series.add(&row(what, *delay), self.column, sample);
        }
    }

    /// Whether the subject has a store.
    fn has_store(&self) -> bool {
        self.delays.len() == 1
    }

    /// Requests so far of all that have the same store.
    fn requests(&self) -> Requests {
        match self.delays[..] {
            [delay] => self.s3.requests(delay),
            _ => Requests::default(),
        }
    }
}
