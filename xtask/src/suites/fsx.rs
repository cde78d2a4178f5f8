//! fsx: random histories of files, each read compared with the expected bytes; mapped and unmapped. The volume has two
//! mount points. One file is used at the first, one at the second, and one at both in turn: each `close_open` may change
//! the mount point.

use crate::folders::cannot;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::ground::{Ground, make_open_directory};
use super::program::{Program, Running};
use super::tools::CargoTool;
use super::{Effort, Suite};

pub(super) const SUITE: Suite =
    Suite { name: "fsx", about: "random operations on one file, with mmap", needs: &[], run };

const TOOL: CargoTool = CargoTool { name: "fsx", version: "0.3.2" };

const SEEDS: [u32; 3] = [1, 42, 20_260_101];

/// How long the link leads to one mount point.
const PERIOD: Duration = Duration::from_millis(5);

/// Operations of each seed.
const OPERATIONS: (u32, u32) = (100_000, 6_000);

/// Every operation that fsx knows. The file is large beside a unit of write-back, and most operations are not
/// a multiple of a page.
const CONFIGURATION: &str = "\
flen = 2097152
[opsize]
max = 262144
[weights]
close_open = 1
invalidate = 1
mapread = 10
mapwrite = 10
read = 10
write = 10
truncate = 5
fsync = 1
fdatasync = 1
posix_fallocate = 1
punch_hole = 2
sendfile = 2
posix_fadvise = 1
copy_file_range = 2
";

fn run(ground: &mut Ground, effort: &Effort) -> Result<String, String> {
    let program = TOOL.program()?;
    let configuration = ground.beside().join("fsx.toml");
    fs::write(&configuration, CONFIGURATION).map_err(|error| cannot(&configuration, &error))?;
    let operations = effort.pick(OPERATIONS.0, OPERATIONS.1);
    let first = ground.path().to_path_buf();
    let second = ground.second_path()?.unwrap_or(&first).to_path_buf();
    let in_turn = InTurn::start(ground.beside().join("in-turn"), [first.clone(), second.clone()])?;
    let folders = [&first, &second, &in_turn.link];
    // All in parallel, each on its own file.
    let start = |(seed, folder): (&u32, &&PathBuf)| {
        // fsx saves the expected content here.
        let artifacts = ground.beside().join(format!("artifacts-{seed}"));
        make_open_directory(&artifacts)?;
        Program::new(&program)
            .arg("-f")
            .arg(&configuration)
            .args(&format!("-S {seed} -N {operations}"))
            .arg("-P")
            .arg(&artifacts)
            .arg(folder.join(format!("file-{seed}")))
            .seconds(effort.pick(1800, 200))
            .start(&ground.log().with_extension(format!("{seed}.log")))
    };
    let running = SEEDS.iter().zip(&folders).map(start).collect::<Result<Vec<_>, _>>()?;
    let ends: Vec<_> = running.into_iter().map(Running::end).collect();
    for (seed, end) in SEEDS.iter().zip(ends) {
        end.map_err(|message| format!("seed {seed}: {message}"))?;
    }
    drop(in_turn);
    let places = if first == second { "" } else { ", at two mount points" };
    Ok(format!("{} seeds, {operations} operations each{places}, no difference", SEEDS.len()))
}

/// A link that leads to one folder, then to the other, and so on.
struct InTurn {
    link: PathBuf,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl InTurn {
    fn start(link: PathBuf, folders: [PathBuf; 2]) -> Result<Self, String> {
        symlink(&folders[0], &link).map_err(|error| cannot(&link, &error))?;
        let is_over = Arc::new(AtomicBool::new(false));
        let (ends, path) = (Arc::clone(&is_over), link.clone());
        let thread = thread::spawn(move || {
            for folder in folders.iter().cycle().take_while(|_| !ends.load(Ordering::Relaxed)) {
                thread::sleep(PERIOD);
                turn(&path, folder);
            }
        });
        Ok(Self { link, is_over, thread: Some(thread) })
    }
}

/// Lets the link lead to `folder`, without a moment at which it does not exist.
fn turn(link: &Path, folder: &Path) {
    let next = link.with_extension("next");
    // If it fails, the link leads to the same folder for longer.
    let _ = symlink(folder, &next).and_then(|()| fs::rename(&next, link));
}

impl Drop for InTurn {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
