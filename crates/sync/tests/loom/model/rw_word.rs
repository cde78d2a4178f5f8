//! `RwWord`.

use slackwater_sync::RwWord;
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::model::RaceCell;

use super::{PLAIN, Scenario, start_with};

pub(crate) const ALL: &[Scenario] = &[
    Scenario {
        name: "writers_follow_one_another",
        preemptions: None,
        asym: PLAIN,
        body: || {
            let frame = frame();
            let other = start_with(&frame, |frame| write(&frame));
            write(&frame);
            other.join().unwrap();
            assert_eq!(frame.1.get(), 2);
        },
    },
    Scenario {
        name: "a_writer_and_a_reader_do_not_overlap",
        preemptions: None,
        asym: PLAIN,
        body: || {
            let frame = frame();
            let reader = start_with(&frame, |frame| read(&frame));
            write(&frame);
            assert!(reader.join().unwrap() <= 1);
        },
    },
    Scenario {
        name: "readers_and_a_writer_all_get_the_lock",
        preemptions: Some(2),
        asym: PLAIN,
        body: || {
            let frame = frame();
            let reader = start_with(&frame, |frame| read(&frame));
            let writer = start_with(&frame, |frame| write(&frame));
            read(&frame);
            reader.join().unwrap();
            writer.join().unwrap();
            assert!(!frame.0.is_locked());
        },
    },
    Scenario {
        name: "writers_and_a_reader_all_get_the_lock",
        preemptions: Some(2),
        asym: PLAIN,
        body: || {
            let frame = frame();
            let reader = start_with(&frame, |frame| read(&frame));
            let writer = start_with(&frame, |frame| write(&frame));
            write(&frame);
            reader.join().unwrap();
            writer.join().unwrap();
            assert!(!frame.0.is_locked());
        },
    },
    Scenario {
        name: "a_lock_may_be_released_by_another_thread",
        preemptions: None,
        asym: PLAIN,
        body: || {
            let frame = frame();
            frame.0.write();
            frame.1.set(1);
            let finisher = start_with(&frame, |frame| frame.0.write_unlock());
            assert_eq!(read(&frame), 1);
            finisher.join().unwrap();
        },
    },
];

/// A lock and the value that it guards.
type Frame = (RwWord, RaceCell<u32>);

fn frame() -> Arc<Frame> {
    Arc::new((RwWord::new(), RaceCell::new(0)))
}

fn read((lock, bytes): &Frame) -> u32 {
    lock.read();
    let value = bytes.get();
    lock.read_unlock();
    value
}

fn write((lock, bytes): &Frame) {
    lock.write();
    bytes.set(bytes.get() + 1);
    lock.write_unlock();
}
