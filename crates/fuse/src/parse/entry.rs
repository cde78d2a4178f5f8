//! Parsing the entries of a ring: the same requests in three pieces.

use super::{ParseError, Request, parse, parse_write};
use crate::abi::{InHeader, Opcode, URING_ENT_IN_OUT, URING_HEADER_BYTES, URING_OP_IN, UringEntInOut, Wire, WriteIn};
use crate::parse::Operation;
use crate::request::Payload;

const HEADER: usize = InHeader::SIZE;
const OP_IN_MAX: usize = URING_ENT_IN_OUT - URING_OP_IN;

/// The pieces of a request.
struct Pieces<'h, 'p> {
    header: &'h [u8],
    op_in: &'h [u8],
    payload: &'p [u8],
    unique: u64,
}

/// Parses the request in an entry with this header and payload. `message` is memory for the pieces in a row.
///
/// # Errors
/// As [`parse`]; and if the lengths contradict each other.
pub fn parse_entry<'a>(
    header: &[u8; URING_HEADER_BYTES],
    payload: &'a [u8],
    message: &'a mut Vec<u8>,
) -> Result<Request<'a>, ParseError> {
    if is_write(header) { parse_write_entry(header, payload) } else { parse(copy_entry(header, payload, message)?) }
}

/// Whether the entry has a WRITE.
pub(crate) fn is_write(header: &[u8; URING_HEADER_BYTES]) -> bool {
    InHeader::take(&mut &header[..]).is_some_and(|head| head.opcode == Opcode::Write as u32)
}

/// [`parse_entry`] of a WRITE, whose payload is borrowed.
///
/// # Errors
/// As there.
pub(crate) fn parse_write_entry<'a>(
    header: &[u8; URING_HEADER_BYTES],
    payload: &'a [u8],
) -> Result<Request<'a>, ParseError> {
    let Pieces { header, op_in, payload, unique } = pieces(header, payload)?;
    let mut head = [0; HEADER + WriteIn::SIZE];
    let op_in = op_in.first_chunk::<{ WriteIn::SIZE }>().ok_or(ParseError::Short { field: "write_in", unique })?;
    head[..HEADER].copy_from_slice(header);
    head[HEADER..].copy_from_slice(op_in);
    let (header, args) = parse_write(&head, payload.len())?;
    let payload = Payload::new(&payload[..args.size as usize]);
    Ok(Request { header, operation: Operation::Write(args), payload })
}

/// Copies the request in an entry to `message`, in the form that [`parse`] takes.
///
/// # Errors
/// The lengths contradict each other.
pub(crate) fn copy_entry<'a>(
    header: &[u8; URING_HEADER_BYTES],
    payload: &[u8],
    message: &'a mut Vec<u8>,
) -> Result<&'a [u8], ParseError> {
    let pieces = pieces(header, payload)?;
    message.clear();
    for piece in [pieces.header, pieces.op_in, pieces.payload] {
        message.extend_from_slice(piece);
    }
    Ok(message)
}

fn pieces<'h, 'p>(header: &'h [u8; URING_HEADER_BYTES], payload: &'p [u8]) -> Result<Pieces<'h, 'p>, ParseError> {
    let short = |field, unique| ParseError::Short { field, unique };
    let raw = InHeader::take(&mut &header[..]).ok_or(short("header", 0))?;
    let ends = UringEntInOut::take(&mut &header[URING_ENT_IN_OUT..]).ok_or(short("uring_ent_in_out", raw.unique))?;
    let payload = payload.get(..ends.payload_sz as usize).ok_or(short("payload", raw.unique))?;
    // The length of the first argument is not stated.
    let op_in_bytes = (raw.len as usize).checked_sub(HEADER + payload.len()).filter(|bytes| *bytes <= OP_IN_MAX);
    let actual = HEADER + payload.len();
    let op_in_bytes = op_in_bytes.ok_or(ParseError::Length { stated: raw.len, actual, unique: raw.unique })?;
    let op_in = &header[URING_OP_IN..URING_OP_IN + op_in_bytes];
    Ok(Pieces { header: &header[..HEADER], op_in, payload, unique: raw.unique })
}
