//! fsx: a random history of one file, each read compared with the expected bytes; mapped and unmapped.

use std::fs;

use super::ground::{Ground, make_open_directory};
use super::program::{Program, Running, cannot};
use super::tools::CargoTool;
use super::{Effort, Suite};

pub(super) const SUITE: Suite =
    Suite { name: "fsx", about: "random operations on one file, with mmap", needs: &[], run };

const TOOL: CargoTool = CargoTool { name: "fsx", version: "0.3.2" };

const SEEDS: [u32; 3] = [1, 42, 20_260_101];

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
    // All in parallel, each on its own file.
    let start = |seed: &u32| {
        // fsx saves the expected content here.
        let artifacts = ground.beside().join(format!("artifacts-{seed}"));
        make_open_directory(&artifacts)?;
        Program::new(&program)
            .arg("-f")
            .arg(&configuration)
            .args(&format!("-S {seed} -N {operations}"))
            .arg("-P")
            .arg(&artifacts)
            .arg(ground.path().join(format!("file-{seed}")))
            .seconds(effort.pick(1800, 200))
            .start(&ground.log().with_extension(format!("{seed}.log")))
    };
    let running = SEEDS.iter().map(start).collect::<Result<Vec<_>, _>>()?;
    let ends: Vec<_> = running.into_iter().map(Running::end).collect();
    for (seed, end) in SEEDS.iter().zip(ends) {
        end.map_err(|message| format!("seed {seed}: {message}"))?;
    }
    Ok(format!("{} seeds, {operations} operations each, no difference", SEEDS.len()))
}
