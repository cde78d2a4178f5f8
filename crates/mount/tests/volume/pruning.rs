//! Memory pressure: inodes that only the kernel caches are pruned, and none that is in use.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;

use slackwater::Tunables;
use slackwater_testkit::pattern;

use crate::programs::until;
use crate::rig::{Rig, assert_same, new_home};

const FILES: usize = 20_000;
/// Open files, and files that are not yet written back.
const OPEN: usize = 3;
const DIRTY: usize = 10;

#[test]
fn inodes_that_were_only_looked_up_are_pruned_and_found_again() {
    let home = new_home();
    let source = home.join("source");
    fs::create_dir_all(source.join("folder")).unwrap();
    for number in 0..FILES {
        File::create(source.join(format!("folder/{number}"))).unwrap();
    }
    let rig = Rig::over(home, source, 32 << 20, Tunables::default());
    let name = |number: usize| rig.file(format!("folder/{number}"));
    let inodes = || rig.mounted.super_block().status().inodes;

    let open = |number: usize| {
        let file = OpenOptions::new().read(true).write(true).open(name(number)).unwrap();
        file.write_all_at(&pattern(number as u64, 5000), 0).unwrap();
        file
    };
    let open: Vec<File> = (0..OPEN).map(open).collect();
    for number in OPEN..OPEN + DIRTY {
        fs::write(name(number), pattern(number as u64, 5000)).unwrap();
    }
    // Repeated, since another test may make the kernel drop its caches.
    until("the kernel caches most of them", || {
        for number in 0..FILES {
            fs::metadata(name(number)).unwrap();
        }
        inodes() > FILES as u64 / 2
    });

    // The root, the folder of used files, and those files. Clean ones are pruned last; a program started by another
    // test may hold some for a moment.
    let used = 2 + OPEN + DIRTY;
    until("only inodes in use are in memory", || {
        rig.engine.shrink(0);
        inodes() <= used as u64
    });
    assert!(inodes() > OPEN as u64, "{}", inodes());

    let mut found = vec![0; 5000];
    for (number, file) in open.iter().enumerate() {
        file.read_exact_at(&mut found, 0).unwrap();
        assert_same(&found, &pattern(number as u64, 5000));
        file.write_all_at(b"still open", 0).unwrap();
    }
    for number in OPEN..OPEN + DIRTY {
        assert_same(&fs::read(name(number)).unwrap(), &pattern(number as u64, 5000));
    }
    for number in (0..FILES).step_by(100) {
        assert!(fs::metadata(name(number)).unwrap().is_file());
    }
    drop(open);
    rig.umount().unwrap();
    for number in 0..OPEN + DIRTY {
        let mut wanted = pattern(number as u64, 5000);
        if number < OPEN {
            wanted[..10].copy_from_slice(b"still open");
        }
        assert_same(&fs::read(rig.stored(format!("folder/{number}"))).unwrap(), &wanted);
    }
}

#[test]
fn p06_unused_names_are_bounded() {
    const FOLDERS: usize = 100;
    const EACH: usize = 100;
    const MOST: u64 = 1000;
    let home = new_home();
    let source = home.join("source");
    let paths: Vec<_> = (0..FOLDERS * EACH).map(|number| format!("{}/{}", number / EACH, number % EACH)).collect();
    for path in &paths {
        let path = source.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        File::create(path).unwrap();
    }
    let rig = Rig::over(home, source, 32 << 20, Tunables { inodes_max: MOST, ..Tunables::default() });
    let inodes = || rig.mounted.super_block().status().inodes;
    // An open file is found again without its name.
    let open = File::open(rig.file(&paths[0])).unwrap();
    for round in 0..2 {
        for path in &paths {
            assert!(fs::metadata(rig.file(path)).unwrap().is_file());
        }
        until("the count is within the bound", || inodes() <= MOST + MOST / 2);
        assert!(inodes() >= MOST / 2, "round {round}: {}", inodes());
    }
    assert!(open.metadata().unwrap().is_file());
    drop(open);
    rig.umount().unwrap();
}

#[test]
fn memory_pressure_does_not_disturb_programs_that_look_up_everything() {
    const EACH: usize = 150;
    let rig = Rig::new();
    let content = |program: usize, number: usize| pattern((program * EACH + number) as u64, 100);
    let use_all = |program: usize| {
        let name = |number: usize| rig.file(format!("{program}-{number}"));
        for round in 0..10 {
            for number in 0..EACH {
                if round == 0 || number % 10 == round {
                    fs::write(name(number), content(program, number)).unwrap();
                }
                assert_same(&fs::read(name(number)).unwrap(), &content(program, number));
            }
        }
    };
    std::thread::scope(|scope| {
        let programs = [0, 1].map(|program| scope.spawn(move || use_all(program)));
        while !programs.iter().all(|program| program.is_finished()) {
            rig.engine.shrink(0);
        }
    });
    rig.umount().unwrap();
    for (program, number) in [0, 1].into_iter().flat_map(|program| (0..EACH).map(move |number| (program, number))) {
        assert_same(&fs::read(rig.stored(format!("{program}-{number}"))).unwrap(), &content(program, number));
    }
}
