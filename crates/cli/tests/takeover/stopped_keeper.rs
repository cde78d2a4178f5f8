//! A keeper that does not answer: stopped by a signal, as by a debugger or a frozen cgroup.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;

use rustix::process::{Signal, kill_process};

use super::kept::Kept;
use crate::rig::wait_until;

/// Removals of open files waited for the keeper, for 10 s, and everything in the directory behind them. Then the mount was not
/// kept any more, for ever.
#[test]
fn a_stopped_keeper_holds_up_no_removal_and_has_the_file_when_it_goes_on() {
    let mut kept = Kept::new(&["--dirty-expire", "1h"]);
    let path = |number: u32| kept.mountpoint.join(format!("file{number}"));
    let files: Vec<File> = (0..5)
        .map(|number| {
            fs::write(path(number), format!("content {number}")).unwrap();
            File::open(path(number)).unwrap()
        })
        .collect();
    kept.mount.process.stop();
    (0..5).for_each(|number| fs::remove_file(path(number)).unwrap());
    kept.run(&["status"]).expect(0, &["which DOES NOT ANSWER"]);
    kept.run(&["restart"]).expect(3, &["does not answer", "kill -CONT"]);
    kept.mount.wait_said("the keeper does not answer", 1);
    // One that is closed meanwhile is needed no longer.
    let mut files = files.into_iter();
    drop(files.next());
    kill_process(kept.keeper(), Signal::CONT).unwrap();
    wait_until("the keeper answers", || kept.status()["kept"]["is_silent"].is_null());
    kept.mount.wait_said("the keeper answers again", 1);
    assert_eq!(kept.status()["kept"]["is_kept"].as_bool(), Some(true));

    kept.replace_server();
    for (number, mut file) in (1..).zip(files) {
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, format!("content {number}"));
        file.read_at(&mut [0], 0).unwrap();
    }
    kept.umount().expect(0, &["everything is written back"]);
}
