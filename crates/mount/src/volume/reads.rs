//! Reads, and other operations on the data of an open file: holes, allocation, copies.

use std::io::IoSlice;
use std::ops::Range;

use rustix::io::Errno;
use slackwater::backend::{FallocateMode, SeekWhence};
use slackwater::{Memcg, PAGE_BYTES, ReadFlags, ReadRequest, WaitFor, WriteRequest, Written};
use slackwater_fuse::abi::{CopyFileRangeIn, FallocateIn, LseekIn, ReadIn};
use slackwater_fuse::{Reply, RequestHeader};
use slackwater_sync::shim::Arc;

use crate::volume::Volume;
use crate::volume::answer::Answer;
use crate::volume::errno::Failure;
use crate::volume::kernel_pages::bytes_of;
use crate::volume::nodes::Node;
use crate::volume::open_files::OpenFile;
use crate::volume::read_buffer::ReadBuffer;

/// Slices of a 1 MiB read that does not begin on a page.
const SLICES_MAX: usize = 257;
/// Bytes copied at a time.
const COPY_CHUNK_BYTES: u64 = 1 << 20;

/// Modes of fallocate(2).
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 16;
/// lseek(2) with data and holes; the kernel handles the other modes.
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

impl Volume {
    /// READ from the cache, straight from its frames. Returns the reply if some page is not cached.
    pub(super) fn read_cached(open: &OpenFile, flags: ReadFlags, args: &ReadIn, reply: Reply) -> Option<Reply> {
        let mut reply = Some(reply);
        open.file.peek(ReadRequest::at(args.offset).flags(flags), args.size as usize, |slices| {
            let mut parts = [IoSlice::new(&[]); SLICES_MAX];
            for (part, slice) in parts.iter_mut().zip(slices) {
                *part = IoSlice::new(slice);
            }
            reply.take().map(|reply| reply.io_slices(&parts[..slices.len()]))
        });
        reply
    }

    /// READ through the backend.
    pub(super) fn read(
        &self,
        open: &OpenFile,
        charged: &Arc<Memcg>,
        flags: ReadFlags,
        args: &ReadIn,
    ) -> Result<Answer, Failure> {
        let size_bytes = open.node.inode.size_bytes();
        let len = u64::from(args.size).min(size_bytes.saturating_sub(args.offset)) as usize;
        let mut buffer = ReadBuffer::take(len);
        let len = open.file.read(ReadRequest::at(args.offset).memcg(charged).flags(flags), &mut buffer)?;
        buffer.truncate(len);
        Ok(Answer::Data(buffer))
    }

    /// LSEEK for data and holes.
    pub(super) fn lseek(&self, open: &OpenFile, args: &LseekIn) -> Result<Answer, Failure> {
        let whence = match args.whence {
            SEEK_DATA => SeekWhence::Data,
            SEEK_HOLE => SeekWhence::Hole,
            _ => return Err(Errno::INVAL.into()),
        };
        Ok(Answer::Offset(open.file.seek(args.offset, whence)?.ok_or(Errno::NXIO)?))
    }

    /// FALLOCATE.
    pub(super) fn fallocate(
        &self,
        open: &OpenFile,
        args: &FallocateIn,
        header: &RequestHeader,
    ) -> Result<Answer, Failure> {
        const PUNCH: u32 = PUNCH_HOLE | KEEP_SIZE;
        const ZERO_KEEP: u32 = ZERO_RANGE | KEEP_SIZE;
        let mode = match args.mode {
            0 => FallocateMode::Allocate,
            KEEP_SIZE => FallocateMode::AllocateKeepSize,
            PUNCH => FallocateMode::PunchHole,
            ZERO_RANGE => FallocateMode::Zero,
            ZERO_KEEP => FallocateMode::ZeroKeepSize,
            _ => return Err(Errno::OPNOTSUPP.into()),
        };
        self.kill_suidgid_for(&open.node, header)?;
        let changed = if args.mode & (PUNCH_HOLE | ZERO_RANGE) == 0 { 0 } else { args.length };
        let fallocate = || self.unfrozen(|| open.file.fallocate(mode, args.offset, args.length));
        open.node.kernel_pages.write(args.offset, fallocate, |()| changed)?;
        self.drop_cut_pages(&open.node, args.offset..args.offset + changed);
        Ok(Answer::Done)
    }

    /// Has the kernel drop the pages that `range`, which was cleared, covers in part (W3 of `kernel_pages`). The kernel
    /// itself drops the others.
    fn drop_cut_pages(&self, node: &Node, range: Range<u64>) {
        let Some(notifier) = self.notifier.get() else { return };
        for page in cut_pages(range).into_iter().flatten().filter(|page| node.kernel_pages.has_read(*page)) {
            if let Err(errno) = notifier.flush_pages(node.id(), page as i64, PAGE_BYTES as i64) {
                tracing::warn!(%errno, "cannot drop a page that was cleared in part: stores to that part may be lost");
            }
        }
    }

    /// Clears setuid and setgid on a file that a user other than root changes. For these requests the kernel does not
    /// report whether the caller may keep them.
    fn kill_suidgid_for(&self, node: &Node, header: &RequestHeader) -> Result<(), Failure> {
        if header.uid != 0 {
            self.unfrozen(|| self.sb.kill_suidgid(&node.inode))?;
        }
        Ok(())
    }

    /// COPY_FILE_RANGE within the volume, through the cache. If there is no frame for a single byte, the request is
    /// refused, and the kernel copies by reads and writes instead: its writes can be parked, this request cannot. The
    /// same applies to a part of a page of a destination that may be mapped: after a copy the kernel drops the whole
    /// page, with all stores to the rest of it.
    pub(super) fn copy_file_range(
        &self,
        args: &CopyFileRangeIn,
        header: &RequestHeader,
        charged: Option<&Arc<Memcg>>,
    ) -> Result<Answer, Failure> {
        let (from, to) = (self.open_file(args.fh_in)?, self.open_file(args.fh_out)?);
        let unit = if to.node.kernel_pages.can_be_mapped() { PAGE_BYTES } else { 1 };
        if !args.off_out.is_multiple_of(unit) {
            return Err(Errno::OPNOTSUPP.into());
        }
        let (reads, writes) = (self.read_flags(&from.node, header), self.write_flags(&to.node, header));
        let charged = charged.unwrap_or_else(|| to.file.memcg());
        self.kill_suidgid_for(&to.node, header)?;
        // The count has 32 bits, and should be a whole number of chunks.
        let len = args.len.min(u64::from(u32::MAX) & !(COPY_CHUNK_BYTES - 1));
        let mut piece = vec![0; len.min(COPY_CHUNK_BYTES) as usize];
        let mut done = 0;
        while done < len {
            let wanted = (len - done).min(COPY_CHUNK_BYTES) as usize;
            let request = ReadRequest::at(args.off_in + done).memcg(charged).flags(reads);
            let read = match from.file.read(request, &mut piece[..wanted]) {
                Ok(0) => break,
                Ok(read) if read as u64 >= unit => read - read % unit as usize,
                Ok(_) | Err(_) if done > 0 => break,
                Ok(_) => return Err(Errno::OPNOTSUPP.into()),
                Err(error) => return Err(error.into()),
            };
            let request = WriteRequest::at(args.off_out + done).memcg(charged).flags(writes).wait(WaitFor::Backend);
            let write = || to.file.write(request, &piece[..read]);
            match to.node.kernel_pages.write(args.off_out + done, || self.unfrozen(write), bytes_of) {
                Ok(Written::Bytes(bytes)) => {
                    done += bytes as u64;
                    if bytes < read {
                        break;
                    }
                }
                Ok(_) | Err(_) if done > 0 => break,
                Ok(_) => return Err(Errno::OPNOTSUPP.into()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Answer::Written(done as u32))
    }
}

/// Offsets of the pages that `range` covers in part: at most the first and the last.
fn cut_pages(range: Range<u64>) -> [Option<u64>; 2] {
    let [first, last] = [range.start, range.end].map(|at| at - at % PAGE_BYTES);
    let covers_first = range.start == first && range.end >= first + PAGE_BYTES;
    [(!range.is_empty() && !covers_first).then_some(first), (last > first && last < range.end).then_some(last)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_most_the_first_and_the_last_page_of_a_range_are_cut() {
        const PAGE: u64 = PAGE_BYTES;
        for (range, cut) in [
            (100..100, [None, None]),
            (0..PAGE, [None, None]),
            (PAGE..3 * PAGE, [None, None]),
            (1..PAGE, [Some(0), None]),
            (PAGE..PAGE + 1, [Some(PAGE), None]),
            (PAGE + 1..PAGE + 2, [Some(PAGE), None]),
            (2048..10_240, [Some(0), Some(2 * PAGE)]),
            (2048..2 * PAGE, [Some(0), None]),
            (0..PAGE + 1, [None, Some(PAGE)]),
        ] {
            assert_eq!(cut_pages(range.clone()), cut, "{range:?}");
        }
    }
}
