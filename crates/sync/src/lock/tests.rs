//! Ranked locks on real threads.

use std::time::Duration;

use super::*;
use crate::shim::{Arc, thread};

const OUTER: Rank = Rank::new(10, "OUTER");
const LIST: Rank = Rank::new(50, "LIST");

#[test]
fn locks_taken_in_rising_rank_are_allowed() {
    let (outer, list) = (RwLock::new(OUTER, 1), Mutex::new(LIST, 2));
    let read = outer.read();
    assert_eq!(*read + *list.lock(), 3);
    drop(read);
    *outer.write() += 1;
    assert_eq!(outer.into_inner(), 2);
    assert_eq!(list.into_inner(), 2);
}

#[test]
fn a_failed_try_leaves_the_lock_alone() {
    let list = Mutex::new(LIST, ());
    let held = list.lock();
    assert!(list.try_lock().is_none());
    drop(held);
    assert!(list.try_lock().is_some());

    let outer = RwLock::new(OUTER, ());
    let read = outer.read();
    assert!(outer.try_write().is_none());
    assert!(outer.try_read().is_some());
    drop(read);
    assert!(outer.try_write().is_some());
}

#[test]
fn lock_two_does_not_deadlock_with_the_opposite_order() {
    let pair = Arc::new((Mutex::keyed(LIST, 1, 0), Mutex::keyed(LIST, 2, 0)));
    let turns = 2000;
    let other = thread::spawn({
        let pair = Arc::clone(&pair);
        move || (0..turns).for_each(|_| *lock_two(&pair.1, &pair.0).0 += 1)
    });
    (0..turns).for_each(|_| *lock_two(&pair.0, &pair.1).1 += 1);
    other.join().unwrap();
    assert_eq!(*pair.1.lock(), 2 * turns);
}

#[test]
fn a_wait_for_a_condition_releases_the_lock() {
    let queue = Arc::new((Mutex::new(LIST, 0), Condvar::new()));
    let waiter = thread::spawn({
        let queue = Arc::clone(&queue);
        move || {
            let mut length = queue.0.lock();
            while *length == 0 {
                queue.1.wait(&mut length);
            }
            *length
        }
    });
    *queue.0.lock() = 3;
    queue.1.notify_all();
    assert_eq!(waiter.join().unwrap(), 3);
    assert!(queue.1.wait_timeout(&mut queue.0.lock(), Duration::from_millis(1)));
}

#[test]
fn a_writer_of_a_word_excludes_all_others() {
    let frame = Arc::new((RwWord::new(), [const { crate::shim::atomic::AtomicU32::new(0) }; 2]));
    let turns = 20_000;
    let threads: Vec<_> = (0..4)
        .map(|index| {
            let frame = Arc::clone(&frame);
            thread::spawn(move || {
                let (lock, halves) = &*frame;
                for _ in 0..turns {
                    if index % 2 == 0 {
                        lock.write();
                        for half in halves {
                            half.store(half.load(Relaxed) + 1, Relaxed);
                        }
                        lock.write_unlock();
                    } else {
                        lock.read();
                        assert_eq!(halves[0].load(Relaxed), halves[1].load(Relaxed));
                        lock.read_unlock();
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(frame.1[0].load(Relaxed), 2 * turns);
    assert!(!frame.0.is_locked());
}

#[test]
fn try_methods_of_a_word_respect_its_holders() {
    let word = RwWord::new();
    assert!(word.try_read() && word.try_read() && !word.try_write());
    word.read_unlock();
    word.read_unlock();
    assert!(word.try_write() && !word.try_write() && !word.try_read() && word.is_locked());
    word.write_unlock();
    assert!(!word.is_locked());
    assert_eq!(size_of::<RwWord>(), 4);
}

#[cfg(not(debug_assertions))]
#[test]
fn a_release_build_stores_no_rank() {
    assert_eq!(size_of::<Mutex<()>>(), 1);
    assert_eq!(size_of::<RwLock<()>>(), 8);
}

use crate::shim::atomic::Ordering::Relaxed;

#[cfg(debug_assertions)]
mod order {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::rcu::Domain;

    const INNER: Rank = Rank::new(60, "INNER");

    /// The message with which `f` panics.
    fn panic_of(f: impl FnOnce()) -> String {
        let panic = catch_unwind(AssertUnwindSafe(f)).expect_err("the order is wrong");
        panic.downcast_ref::<String>().cloned().unwrap_or_else(|| panic.downcast_ref::<&str>().unwrap().to_string())
    }

    #[test]
    fn a_wrong_order_names_both_ranks() {
        let (list, inner) = (Mutex::new(LIST, ()), Mutex::new(INNER, ()));
        let _held = inner.lock();
        let message = panic_of(|| drop(list.lock()));
        assert!(message.contains("LIST (50)") && message.contains("INNER (60)"), "{message}");
    }

    #[test]
    fn one_rank_is_taken_twice_by_rising_key_only() {
        let [a, b] = [1, 2].map(|key| Mutex::keyed(LIST, key, ()));
        let plain = Mutex::new(LIST, ());
        {
            let _a = a.lock();
            let _b = b.lock();
        }
        let _b = b.lock();
        panic_of(|| drop(a.lock()));
        panic_of(|| drop(plain.lock()));
    }

    #[test]
    fn two_classes_of_one_order_do_not_nest() {
        let (list, leaf) = (Mutex::keyed(LIST, 1, ()), Mutex::keyed(Rank::new(50, "OTHER"), 2, ()));
        let _list = list.lock();
        panic_of(|| drop(leaf.lock()));
    }

    #[test]
    fn a_try_in_any_order_is_recorded() {
        let (outer, list, inner) = (Mutex::new(OUTER, ()), Mutex::new(LIST, ()), Mutex::new(INNER, ()));
        let _inner = inner.lock();
        let tried = list.try_lock().unwrap();
        drop(_inner);
        panic_of(|| drop(outer.lock()));
        drop(tried);
        drop(outer.lock());
    }

    #[test]
    fn guards_may_be_dropped_in_any_order() {
        let (list, inner) = (RwLock::new(LIST, ()), RwLock::new(INNER, ()));
        let held_list = list.write();
        let held_inner = inner.write();
        drop(held_list);
        panic_of(|| drop(list.read()));
        drop(held_inner);
        drop(list.read());
    }

    #[test]
    fn lock_two_requires_two_keys_of_one_rank() {
        let (list, inner) = (Mutex::keyed(LIST, 1, ()), Mutex::keyed(INNER, 2, ()));
        panic_of(|| drop(lock_two(&list, &inner)));
        panic_of(|| drop(lock_two(&list, &list)));
    }

    #[test]
    fn a_wait_releases_one_lock_only() {
        let (list, inner) = (Mutex::new(LIST, ()), Mutex::new(INNER, ()));
        let condition = Condvar::new();
        let mut held_list = list.lock();
        let held_inner = inner.lock();
        panic_of(|| condition.wait(&mut held_list));
        drop(held_inner);
        assert!(condition.wait_timeout(&mut held_list, Duration::ZERO));
    }

    #[test]
    fn a_sleep_under_a_spin_lock_or_in_a_section_panics() {
        let (outer, list) = (Mutex::new(OUTER, ()), Mutex::new(LIST, ()));
        might_sleep();
        {
            let _outer = outer.lock();
            might_sleep();
            let _list = list.lock();
            let message = panic_of(might_sleep);
            assert!(message.contains("LIST (50)"), "{message}");
        }
        let domain = Domain::new();
        let _section = domain.read_lock();
        panic_of(might_sleep);
        panic_of(|| drop(outer.lock()));
        drop(list.lock());
    }
}
