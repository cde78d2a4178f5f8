//! Reads one line from a peer that may send too much, too slowly, or nothing.

use std::io::{self, ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Reads up to the newline, without it; what follows stays in `buffer`. `None` if the peer closed before it sent a
/// byte.
///
/// # Errors
/// `TimedOut` if the line is not complete within the time, `InvalidData` if it is longer than `most`, `UnexpectedEof`
/// if it ends in the middle.
///
/// # Blocking
/// For the peer, at most `within`.
pub fn read(
    stream: &mut UnixStream,
    buffer: &mut Vec<u8>,
    most: usize,
    within: Option<Duration>,
) -> io::Result<Option<Vec<u8>>> {
    let deadline = within.map(|within| Instant::now() + within);
    let mut searched = 0;
    loop {
        if let Some(end) = buffer[searched..].iter().position(|byte| *byte == b'\n') {
            let mut line: Vec<u8> = buffer.drain(..=searched + end).collect();
            line.pop();
            return Ok(Some(line));
        }
        searched = buffer.len();
        if searched >= most {
            return Err(ErrorKind::InvalidData.into());
        }
        // A timeout of zero would mean none.
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(left)?;
        let mut part = [0; 16 << 10];
        match stream.read(&mut part) {
            Ok(0) if buffer.is_empty() => return Ok(None),
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => buffer.extend_from_slice(&part[..read]),
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;
    use slackwater_testkit::damage::cases;

    const SOON: Option<Duration> = Some(Duration::from_millis(50));
    const LATE: Option<Duration> = Some(Duration::from_secs(60));

    fn pair() -> (UnixStream, UnixStream) {
        UnixStream::pair().unwrap()
    }

    #[test]
    fn lines_come_one_by_one() {
        let (mut near, mut far) = pair();
        far.write_all(b"one\ntwo\n").unwrap();
        let mut buffer = Vec::new();
        assert_eq!(read(&mut near, &mut buffer, 100, LATE).unwrap().unwrap(), b"one");
        assert_eq!(read(&mut near, &mut buffer, 100, LATE).unwrap().unwrap(), b"two");
        drop(far);
        assert_eq!(read(&mut near, &mut buffer, 100, LATE).unwrap(), None);
    }

    #[test]
    fn an_incomplete_line_fails_at_the_timeout_or_at_the_close() {
        let (mut near, mut far) = pair();
        far.write_all(b"hal").unwrap();
        let mut buffer = Vec::new();
        assert_eq!(read(&mut near, &mut buffer, 100, SOON).unwrap_err().kind(), ErrorKind::TimedOut);
        drop(far);
        assert_eq!(read(&mut near, &mut buffer, 100, LATE).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_line_without_end_is_refused() {
        let (mut near, mut far) = pair();
        far.write_all(&[b'x'; 200]).unwrap();
        assert_eq!(read(&mut near, &mut Vec::new(), 100, LATE).unwrap_err().kind(), ErrorKind::InvalidData);
    }

    proptest! {
        #![proptest_config(cases())]

        /// The lines are the same, however the bytes are split.
        #[test]
        fn lines_come_whole_in_any_pieces(text in prop::collection::vec(prop_oneof![4 => any::<u8>(), 1 => Just(b'\n')], 0..400),
            pieces in prop::collection::vec(1_usize..50, 1..20)) {
            let (mut near, mut far) = pair();
            let (mut rest, mut lengths) = (&text[..], pieces.iter().cycle());
            let mut buffer = Vec::new();
            let mut lines = Vec::new();
            while !rest.is_empty() {
                let (piece, after) = rest.split_at((*lengths.next().unwrap()).min(rest.len()));
                far.write_all(piece).unwrap();
                rest = after;
                // As many as are complete by now.
                let whole = text[..text.len() - rest.len()].iter().filter(|byte| **byte == b'\n').count();
                while lines.len() < whole {
                    lines.push(read(&mut near, &mut buffer, 1000, LATE).unwrap().unwrap());
                }
            }
            drop(far);
            let mut expected: Vec<_> = text.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
            let last = expected.pop().unwrap();
            prop_assert_eq!(lines, expected);
            match read(&mut near, &mut buffer, 1000, LATE) {
                Ok(None) => prop_assert!(last.is_empty()),
                other => prop_assert_eq!(other.unwrap_err().kind(), ErrorKind::UnexpectedEof),
            }
        }
    }
}
