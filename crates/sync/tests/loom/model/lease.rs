//! `Lease`.

use slackwater_sync::shim::Arc;
use slackwater_sync::shim::model::RaceCell;
use slackwater_sync::{Joined, Lease};

use super::{PLAIN, Scenario, start_with};

pub(crate) const ALL: &[Scenario] = &[
    Scenario {
        name: "a_lease_has_one_holder_at_a_time",
        preemptions: None,
        asym: PLAIN,
        body: || {
            let duty = duty();
            let others = [0, 1].map(|_| start_with(&duty, |duty| serve(duty)));
            let served = serve(&duty) + others.into_iter().map(|other| other.join().unwrap()).sum::<u32>();
            assert_eq!(duty.1.get(), served);
        },
    },
    Scenario {
        name: "a_holder_is_alone",
        preemptions: None,
        asym: PLAIN,
        body: || {
            let duty = duty();
            let other = start_with(&duty, |duty| {
                let has_joined = duty.0.join();
                if has_joined {
                    duty.1.get();
                    duty.0.leave();
                }
            });
            if duty.0.join() {
                duty.1.get();
                match duty.0.try_take(Joined::Yes) {
                    true => {
                        duty.1.set(1);
                        duty.0.give_back();
                    }
                    false => duty.0.leave(),
                }
            }
            other.join().unwrap();
            assert!(duty.0.try_take(Joined::No), "no thread has joined or holds it");
        },
    },
    Scenario {
        name: "a_call_ends_or_is_revoked",
        preemptions: None,
        asym: PLAIN,
        body: || {
            let duty = duty();
            assert!(duty.0.try_take(Joined::No));
            let watcher = start_with(&duty, |duty| duty.0.call().is_some_and(|call| duty.0.revoke(call)));
            let call = duty.0.begin_call();
            let is_held = duty.0.end_call(call);
            assert_ne!(is_held, watcher.join().unwrap());
            assert_eq!(duty.0.is_held(), is_held);
        },
    },
    Scenario {
        name: "a_lost_lease_is_not_found_again_in_the_hands_of_another",
        preemptions: None,
        asym: PLAIN,
        body: || {
            let duty = duty();
            assert!(duty.0.try_take(Joined::No));
            let call = duty.0.begin_call();
            // The watcher revokes the lease and does the duty itself, in a call at the end.
            let watcher = start_with(&duty, |duty| {
                let is_mine = duty.0.call().is_some_and(|call| duty.0.revoke(call)) && duty.0.try_take(Joined::No);
                if is_mine {
                    duty.1.set(1);
                    let call = duty.0.begin_call();
                    assert!(duty.0.end_call(call), "no thread revokes this one");
                    duty.1.set(2);
                }
                is_mine
            });
            let is_held = duty.0.end_call(call);
            if is_held {
                duty.1.set(3);
            }
            assert_ne!(is_held, watcher.join().unwrap());
        },
    },
];

/// A lease, and what only its holder touches.
type Duty = (Lease, RaceCell<u32>);

fn duty() -> Arc<Duty> {
    Arc::new((Lease::new(), RaceCell::new(0)))
}

/// Does the duty once if the lease is free.
fn serve(duty: &Duty) -> u32 {
    if !duty.0.try_take(Joined::No) {
        return 0;
    }
    duty.1.set(duty.1.get() + 1);
    duty.0.give_back();
    1
}
