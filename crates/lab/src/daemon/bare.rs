//! Mounts of a server that does nothing: what as many mounts cost the kernel.
//!
//! One thread in a process of its own makes the system calls of any server with many mounts. It has no pool and no sessions,
//! and keeps only the descriptors. Each mount has one file, whose writes are discarded.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use clap::Args;
use rustix::event::{PollFd, PollFlags, epoll, poll};
use slackwater_fuse::abi::{
    Attr, AttrOut, EntryOut, InHeader, InitOut, KERNEL_MINOR_VERSION, KERNEL_VERSION, Opcode, OpenOut, OutHeader,
    ROOT_ID, Wire, WriteIn, WriteOut, fopen,
};
use slackwater_fuse::mount::{MountOptions, mount, unmount};
use slackwater_fuse::{DevFuse, Errno, Transport};

use crate::fuse::{lab, tied};
use crate::harness::process::Process;
use crate::scratch::make_directory;

/// The hidden command.
const COMMAND: &str = "bare-mounts";
const READY: &str = "mounted";
const FILE: u64 = 2;
const FILE_BYTES: u64 = 1 << 30;
const DAY_S: u64 = 86_400;
const MAX_WRITE: u32 = 32 << 10;
/// The kernel requires space for a header beside the largest write.
const BUFFER_BYTES: usize = MAX_WRITE as usize + 4096;

#[derive(Args, Debug)]
pub(crate) struct BareArguments {
    /// Directory with the mount points 0, 1, ...
    folder: PathBuf,
    /// How many
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    mounts: u32,
}

/// A server and its mounts. Dropping it unmounts them and ends the server.
pub(super) struct BareServer {
    process: Process,
    points: Vec<PathBuf>,
    /// The file of each mount, open for writing.
    pub(super) files: Vec<File>,
}

impl BareServer {
    /// Starts a server with so many mounts in the empty directory `folder`.
    pub(super) fn start(folder: &Path, mounts: usize) -> Result<Self> {
        let points: Vec<PathBuf> = (0..mounts).map(|number| folder.join(number.to_string())).collect();
        points.iter().try_for_each(|point| make_directory(point))?;
        let mut command = tied(&lab()?, "KILL");
        command.arg(COMMAND).arg(folder).arg(mounts.to_string());
        let process = Process::start(command.stdout(Stdio::piped()))?;
        let mut server = Self { process, points, files: Vec::with_capacity(mounts) };
        let out = server.process.child().stdout.take().context("its output is a pipe")?;
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line).context("the bare server does not start")?;
        ensure!(line.trim() == READY, "a bare server with {mounts} mounts does not start");
        for point in &server.points {
            let file = OpenOptions::new().write(true).open(point.join("file"));
            server.files.push(file.with_context(|| format!("cannot open the file in {}", point.display()))?);
        }
        Ok(server)
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }
}

impl Drop for BareServer {
    fn drop(&mut self) {
        self.files.clear();
        for point in &self.points {
            let _ = unmount(point, true); // fails if it is not mounted any more
        }
    }
}

/// Mounts, prints that, and serves until all are unmounted.
pub(crate) fn run_bare(arguments: &BareArguments) -> Result<()> {
    crate::rig::raise_file_limit();
    let options = MountOptions { source: "bare".to_owned(), ..MountOptions::default() };
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("cannot create an epoll set")?;
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut devices = Vec::new();
    for number in 0..arguments.mounts {
        let point = arguments.folder.join(number.to_string());
        let device = mount(&point, &options).with_context(|| format!("cannot mount {}", point.display()))?;
        let device = DevFuse::new(device).context("cannot make the device non-blocking")?;
        shake_hands(&device, &mut buffer).context("the kernel did not start the session")?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, device.fd(), epoll::EventData::new_u64(u64::from(number)), flags).context("epoll_ctl")?;
        devices.push(Some(device));
    }
    println!("{READY}");
    let mut left = devices.len();
    while left != 0 {
        let mut space = [MaybeUninit::<epoll::Event>::uninit()];
        let (events, _) = match epoll::wait(&epoll, &mut space, None) {
            Err(Errno::INTR) => continue,
            outcome => outcome.context("epoll_wait")?,
        };
        let Some(place) = events.first().and_then(|event| devices.get_mut(event.data.u64() as usize)) else { continue };
        if place.as_ref().is_some_and(|device| !drain(device, &mut buffer)) {
            *place = None;
            left -= 1;
        }
    }
    Ok(())
}

fn shake_hands(device: &DevFuse, buffer: &mut [u8]) -> Result<()> {
    poll(&mut [PollFd::new(&device.fd(), PollFlags::IN)], None).context("poll")?;
    let len = device.receive(&mut [IoSliceMut::new(buffer)]).context("INIT")?;
    let header = InHeader::take(&mut &buffer[..len]).context("a short request")?;
    ensure!(header.opcode == Opcode::Init as u32, "the first request has the opcode {}", header.opcode);
    let init = InitOut {
        major: KERNEL_VERSION,
        minor: KERNEL_MINOR_VERSION,
        max_write: MAX_WRITE,
        time_gran: 1,
        ..InitOut::default()
    };
    answer(device, header.unique, 0, &init.to_bytes());
    Ok(())
}

/// Answers all pending requests; false if the mount no longer exists.
fn drain(device: &DevFuse, buffer: &mut [u8]) -> bool {
    loop {
        match device.receive(&mut [IoSliceMut::new(buffer)]) {
            Ok(len) => serve(device, &buffer[..len]),
            Err(Errno::AGAIN) => return true,
            Err(Errno::INTR | Errno::NOENT) => {}
            Err(_) => return false,
        }
    }
}

fn serve(device: &DevFuse, message: &[u8]) {
    let mut rest = message;
    let Some(header) = InHeader::take(&mut rest) else { return };
    let ok = |body: &[u8]| answer(device, header.unique, 0, body);
    let no = |errno: Errno| answer(device, header.unique, -errno.raw_os_error(), &[]);
    #[allow(clippy::wildcard_enum_match_arm, reason = "no other requests are expected")]
    match Opcode::from_number(header.opcode) {
        Some(Opcode::Write) => {
            let size = WriteIn::take(&mut rest).map_or(0, |args| args.size);
            ok(&WriteOut { size, padding: 0 }.to_bytes());
        }
        Some(Opcode::Lookup) if rest == b"file\0" => {
            let entry = EntryOut { nodeid: FILE, entry_valid: DAY_S, attr_valid: DAY_S, ..EntryOut::default() };
            ok(&EntryOut { attr: attr(FILE), ..entry }.to_bytes());
        }
        Some(Opcode::Lookup) => no(Errno::NOENT),
        Some(Opcode::Getattr) => {
            ok(&AttrOut { attr_valid: DAY_S, attr: attr(header.nodeid), ..AttrOut::default() }.to_bytes());
        }
        Some(Opcode::Open) => {
            let open_flags = fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES;
            ok(&OpenOut { fh: 0, open_flags, backing_id: 0 }.to_bytes());
        }
        Some(Opcode::Forget | Opcode::BatchForget | Opcode::Interrupt) => {}
        Some(Opcode::Flush | Opcode::Release | Opcode::Destroy) => ok(&[]),
        _ => no(Errno::NOSYS),
    }
}

fn attr(node: u64) -> Attr {
    let (mode, size) = if node == ROOT_ID { (0o040_755, 0) } else { (0o100_666, FILE_BYTES) };
    Attr { ino: node, mode, size, nlink: 1, blksize: 4096, ..Attr::default() }
}

fn answer(device: &DevFuse, unique: u64, error: i32, body: &[u8]) {
    let header = OutHeader { len: (OutHeader::SIZE + body.len()) as u32, error, unique }.to_bytes();
    // Fails if the request was interrupted.
    let _ = device.send(&[IoSlice::new(&header), IoSlice::new(body)]);
}
