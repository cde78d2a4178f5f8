//! `Completion`.

use slackwater_sync::Completion;
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::model::RaceCell;

use super::{PLAIN, Scenario, start_with};

pub(crate) const ALL: &[Scenario] = &[
    Scenario {
        name: "a_waiter_sees_the_completed_work",
        preemptions: None,
        asym: PLAIN,
        body: || {
            let job = Arc::new((Completion::new(), RaceCell::new(0)));
            let finisher = start_with(&job, |job| {
                job.1.set(1);
                job.0.complete();
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
            let waiter = start_with(&done, |done| done.wait());
            let finisher = start_with(&done, |done| done.complete_all());
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
            let waiter = start_with(&done, |done| done.wait());
            let finisher = start_with(&done, |done| {
                done.complete();
                done.complete();
            });
            done.wait();
            waiter.join().unwrap();
            finisher.join().unwrap();
            assert!(!done.is_complete());
        },
    },
];
