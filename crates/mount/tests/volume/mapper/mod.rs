//! A program that maps files: this test binary in a process of its own, which runs commands line by line. In the
//! process of the volume, a page fault could wait for a thread that waits for the address space lock of that fault.

mod sys;
mod walk;

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Barrier;

use rustix::fs::fsync;
use rustix::io::Errno;

use crate::programs::wait;
use sys::Mapping;

const INSIDE: &str = "SLACKWATER_MAPPER";
const PAGE: usize = 4096;
/// Offsets in a page of the words stored and written in a race.
const PLACES: (usize, usize) = (0x400, 0x800);

/// The program's main loop.
#[test]
fn mapper() {
    if std::env::var_os(INSIDE).is_none() {
        return;
    }
    let (mut files, mut mappings) = (HashMap::new(), HashMap::new());
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<_> = line.split(' ').collect();
        let name = words[1].to_owned();
        let number = |nth: usize| words[nth].parse::<usize>().unwrap();
        let mut answer = String::new();
        match words[0] {
            "open" => drop(files.insert(name, File::options().read(true).write(true).open(words[2]).unwrap())),
            "map" => drop(mappings.insert(name.clone(), Mapping::new(&files[&name]))),
            "store" => mappings[&name].store(number(2), words[3].as_bytes()),
            "write" => files[&name].write_all_at(words[3].as_bytes(), number(2) as u64).unwrap(),
            "load" => answer = String::from_utf8(mappings[&name].load(number(2), number(3))).unwrap(),
            "fill" => (0..mappings[&name].len()).step_by(PAGE).for_each(|at| mappings[&name].store(at, b"filled")),
            "msync" => mappings[&name].sync().unwrap(),
            "result" => {
                answer = number_of(if words[2] == "msync" { mappings[&name].sync() } else { fsync(&files[&name]) })
            }
            "unmap" => drop(mappings.remove(&name)),
            "close" => drop(files.remove(&name)),
            "stores" => store(&mappings[&name]),
            "writes" => write(&files[&name]),
            "race" => race(&files[words[2]], &mappings[&name]),
            "walk" => walk::walk([words[3], words[4]], number(1) as u64, number(2)),
            "lost" => answer = lost(&files[words[2]], &mappings[&name]).to_string(),
            other => panic!("{other}?"),
        }
        println!("> {answer}");
    }
}

/// The number of an error; 0 for success.
fn number_of(result: Result<(), Errno>) -> String {
    result.err().map_or(0, Errno::raw_os_error).to_string()
}

/// The words that are stored and written to a page.
fn words(page: usize) -> ([u8; 8], [u8; 8]) {
    ((page as u64 + 1).to_ne_bytes(), (!(page as u64)).to_ne_bytes())
}

/// Stores a word to each page through the mapping.
fn store(mapping: &Mapping) {
    (0..mapping.len() / PAGE).for_each(|page| mapping.store(page * PAGE + PLACES.0, &words(page).0));
}

/// Writes a word to each page around the mapping.
fn write(file: &File) {
    for page in 0..file.metadata().unwrap().len() as usize / PAGE {
        file.write_all_at(&words(page).1, (page * PAGE + PLACES.1) as u64).unwrap();
    }
}

/// Does both concurrently.
fn race(file: &File, mapping: &Mapping) {
    let start = Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            start.wait();
            store(mapping);
        });
        start.wait();
        write(file);
    });
}

/// Number of pages that lost a word, in the mapping or in a read.
fn lost(file: &File, mapping: &Mapping) -> usize {
    let is_lost = |page: &usize| {
        let mut read = [[0; 8]; 2];
        let [stored, written] = &mut read;
        file.read_exact_at(stored, (page * PAGE + PLACES.0) as u64).unwrap();
        file.read_exact_at(written, (page * PAGE + PLACES.1) as u64).unwrap();
        let wanted = words(*page);
        let seen = (mapping.load(page * PAGE + PLACES.0, 8), mapping.load(page * PAGE + PLACES.1, 8));
        read != [wanted.0, wanted.1] || seen != (wanted.0.to_vec(), wanted.1.to_vec())
    };
    (0..mapping.len() / PAGE).filter(is_lost).count()
}

/// A running mapper program.
pub(crate) struct Mapper {
    pub(crate) child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Mapper {
    pub(crate) fn new() -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "mapper::mapper", "--nocapture"]).env(INSIDE, "1").current_dir("/");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input, output }
    }

    /// Starts one with `path` open and mapped as `a`.
    pub(crate) fn of(path: &Path) -> Self {
        let mut mapper = Self::new();
        mapper.run(&format!("open a {}", path.display()));
        mapper.run("map a");
        mapper
    }

    /// Runs a command and waits for its answer.
    pub(crate) fn run(&mut self, what: &str) -> String {
        self.begin(what);
        self.done()
    }

    /// Starts a command that may take long.
    pub(crate) fn begin(&mut self, what: &str) {
        writeln!(self.input, "{what}").unwrap();
    }

    /// Waits for the answer of a started command.
    pub(crate) fn done(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the program has ended");
            // The test harness prints other text too, also before the first answer on the same line.
            if let Some((_, answer)) = line.split_once("> ") {
                return answer.trim_end().to_owned();
            }
        }
    }

    /// Ends the program.
    pub(crate) fn end(self) {
        let Self { mut child, input, output } = self;
        drop(input);
        assert!(wait(&mut child).expect("it ends").success());
        drop(output); // the harness prints to it until here
    }

    /// Kills the program.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}
