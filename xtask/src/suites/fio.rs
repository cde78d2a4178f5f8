//! fio: blocks with checksums, written and read back in several ways.

use super::ground::Ground;
use super::program::Program;
use super::{Effort, Suite};

pub(super) const SUITE: Suite = Suite { name: "fio", about: "blocks with checksums, read back", needs: &["fio"], run };

/// MiB that each job writes.
const MEBIBYTES: (u32, u32) = (1024, 64);

/// Names and options. Together the jobs write more than the cache holds.
const JOBS: [(&str, &str); 8] = [
    ("random", "--rw=randwrite --ioengine=psync --bs=4k --verify_backlog=1024"),
    ("sequential", "--rw=write --ioengine=psync --bs=1m"),
    ("mapped", "--rw=randwrite --ioengine=mmap --bs=4k"),
    ("odd", "--rw=randwrite --ioengine=psync --bs=5k --verify_backlog=512"),
    ("direct", "--rw=randwrite --ioengine=psync --bs=4k --direct=1"),
    ("direct-large", "--rw=write --ioengine=libaio --iodepth=8 --bs=256k --direct=1"),
    ("several", "--rw=randrw --ioengine=psync --bs=512-128k --bs_unaligned=1 --numjobs=3 --fsync=256"),
    ("synchronous", "--rw=randwrite --ioengine=psync --bs=16k --sync=dsync --number_ios=500"),
];

const ALWAYS: &str = "--verify=crc32c --verify_fatal=1 --end_fsync=1 --randrepeat=1 --thinktime=0 --group_reporting \
                      --output-format=terse";

fn run(ground: &mut Ground, effort: &Effort) -> Result<String, String> {
    let mebibytes = effort.pick(MEBIBYTES.0, MEBIBYTES.1);
    let log = ground.log().to_owned();
    for (name, options) in JOBS {
        let job = |folder: &std::path::Path| {
            let program = Program::new("fio").arg(format!("--name={name}")).arg("--directory").arg(folder);
            program.args(&format!("--size={mebibytes}m {options} {ALWAYS}")).seconds(effort.pick(900, 90))
        };
        // fio writes the state of its verification to the directory that it starts in.
        job(ground.path()).within(ground.beside()).run(&log)?;
    }
    Ok(format!("{} jobs of {mebibytes} MiB", JOBS.len()))
}
