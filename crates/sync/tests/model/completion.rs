//! `Completion`.

use slackwater_sync::Completion;
use slackwater_sync::shim::model::RaceCell;
use slackwater_sync::shim::{Arc, thread};

use super::{PLAIN, Scenario};

pub(crate) const ALL: &[Scenario] = &[
    Scenario {
        name: "a_waiter_sees_the_completed_work",
        preemptions: None,
        asym: PLAIN,
        body: || {
            let job = Arc::new((Completion::new(), RaceCell::new(0)));
            let finisher = thread::spawn({
                let job = Arc::clone(&job);
                move || {
                    job.1.set(1);
                    job.0.complete();
                }
            });
            job.0.wait();
            assert_eq!(job.1.get(), 1);
            finisher.join().unwrap();
        },
    },
    Scenario {
        name: "complete_all_lets_every_waiter_continue",
        preemptions: Some(3),
        asym: PLAIN,
        body: || {
            let done = Arc::new(Completion::new());
            let waiter = thread::spawn({
                let done = Arc::clone(&done);
                move || done.wait()
            });
            let finisher = thread::spawn({
                let done = Arc::clone(&done);
                move || done.complete_all()
            });
            done.wait();
            waiter.join().unwrap();
            finisher.join().unwrap();
            assert!(done.is_complete());
        },
    },
    Scenario {
        name: "each_completion_lets_one_waiter_continue",
        preemptions: Some(3),
        asym: PLAIN,
        body: || {
            let done = Arc::new(Completion::new());
            let waiter = thread::spawn({
                let done = Arc::clone(&done);
                move || done.wait()
            });
            let finisher = thread::spawn({
                let done = Arc::clone(&done);
                move || {
                    done.complete();
                    done.complete();
                }
            });
            done.wait();
            waiter.join().unwrap();
            finisher.join().unwrap();
            assert!(!done.is_complete());
        },
    },
];
