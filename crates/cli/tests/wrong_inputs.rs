//! A hundred invalid inputs of the kind that users make. Each is refused with a fitting status and a message that names
//! what is wrong and says what to do, and leaves nothing behind.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod rig;

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rig::{Output, Scratch, need_fuse};

/// The words of a command line, its exit status, and parts of its message. `{}` stands for the test's directory, and
/// `{shm}` for the prefix of the test's names in /dev/shm.
type Case = (&'static [&'static str], i32, &'static [&'static str]);

const MOUNT: &[Case] = &[
    (&["mount"], 2, &["<SOURCE>", "<MOUNTPOINT>", "--help"]),
    (&["mount", "{}/source"], 2, &["<MOUNTPOINT>"]),
    (&["mount", "", "{}/mnt"], 2, &["<SOURCE>"]),
    (&["mount", "{}/source", ""], 2, &["<MOUNTPOINT>"]),
    (&["mount", "{}/source", "{}/mnt", "extra"], 2, &["unexpected argument 'extra'"]),
    (&["mount", "{}/nowhere", "{}/mnt"], 1, &["the source", "/nowhere does not exist", "mkdir -p"]),
    (&["mount", "{}/source", "{}/nowhere"], 1, &["the mount point", "/nowhere does not exist", "mkdir -p"]),
    (&["mount", "{}/file", "{}/mnt"], 1, &["the source", "/file is not a directory"]),
    (&["mount", "{}/source", "{}/file"], 1, &["the mount point", "/file is not a directory"]),
    (&["mount", "{}/fifo", "{}/mnt"], 1, &["the source", "/fifo is not a directory"]),
    (&["mount", "{}/dangling", "{}/mnt"], 1, &["/dangling does not exist"]),
    (&["mount", "{}/loop", "{}/mnt"], 1, &["/loop", "symbolic links"]),
    (&["mount", "{}/source", "{}/source"], 2, &["is the source itself", "another, empty directory"]),
    (&["mount", "{}/source", "{}/source/inner"], 2, &["is inside the source", "choose a mount point elsewhere"]),
    (&["mount", "{}/source/inner", "{}/source"], 2, &["is inside the mount point", "choose a mount point elsewhere"]),
    (&["mount", "/", "{}/mnt"], 2, &["is inside the source /"]),
    (&["mount", "{}/source", "/"], 2, &["is inside the mount point /"]),
    (&["mount", "{}/source", "{}/mnt", "--cache", "1KiB"], 2, &["1.0 KiB is too small", "at least 16.0 MiB"]),
    (&["mount", "{}/source", "{}/mnt", "--cache", "0"], 2, &["0 B is too small", "at least 16.0 MiB"]),
    (&["mount", "{}/source", "{}/mnt", "--cache", "64"], 2, &["64 B is too small"]),
    (&["mount", "{}/source", "{}/mnt", "--cache", "lots"], 2, &["lots", "--cache", "256MiB"]),
    (&["mount", "{}/source", "{}/mnt", "--cache", "100TiB"], 2, &["100 TiB", "/proc/meminfo", "choose a smaller"]),
    (&["mount", "{}/source", "{}/mnt", "--cache=64MiB", "--cache=32MiB"], 2, &["--cache", "multiple times"]),
    (&["mount", "{}/source", "{}/mnt", "--cach", "64MiB"], 2, &["--cach", "similar argument exists: '--cache'"]),
    (&["mount", "{}/source", "{}/mnt", "--dirty-expire", "1"], 2, &["--dirty-expire", "30s"]),
    (&["mount", "{}/source", "{}/mnt", "--dirty-expire", "later"], 2, &["--dirty-expire", "30s"]),
    (&["mount", "{}/source", "{}/mnt", "--dirty-ratio", "101"], 2, &["--dirty-ratio", "1..=100"]),
    (&["mount", "{}/source", "{}/mnt", "--tenant-by", "group"], 2, &["not one of cgroup, uid and volume"]),
    (
        &["mount", "{}/source", "{}/mnt", "--tenant-dontcache", "/a=maybe"],
        2,
        &["neither on nor off", "/containers/backup=on"],
    ),
    (&["mount", "{}/source", "{}/mnt", "--tenant-limit", "/a"], 2, &["--tenant-limit", "/containers/a=64MiB"]),
    (&["mount", "{}/source", "{}/mnt", "--tenant-limit", "/a=lots"], 2, &["256MiB"]),
    (
        &["mount", "{}/source", "{}/mnt", "--cache=16MiB", "--tenant-limit", "/a=1MiB"],
        2,
        &["/a is not a tenant", "--tenant-by volume", "is written as volume"],
    ),
    (
        &["mount", "{}/source", "{}/mnt", "--cache=16MiB", "--tenant-by=uid", "--tenant-limit", "/a=1MiB"],
        2,
        &["/a is not a tenant", "is written as uid:1000"],
    ),
    (
        &["mount", "{}/source", "{}/mnt", "--cache=16MiB", "--tenant-by=uid", "--tenant-limit", "uid:x=1MiB"],
        2,
        &["uid:x is not a tenant", "is written as uid:1000"],
    ),
    (
        &["mount", "{}/source", "{}/mnt", "--cache=16MiB", "--tenant-by=cgroup", "--tenant-limit", "relative=1MiB"],
        2,
        &["relative is not a tenant", "/containers/a"],
    ),
    (&["mount", "{}/source", "{}/mnt", "--metrics", "nowhere"], 2, &["--metrics", "127.0.0.1:9810"]),
    (&["mount", "{}/source", "{}/mnt", "--metrics", "99999"], 2, &["--metrics", "127.0.0.1:9810"]),
    (
        &["mount", "{}/source", "{}/mnt", "--metrics", "192.0.2.1:9810"],
        2,
        &["192.0.2.1 is not an address of this machine", "127.0.0.1"],
    ),
    (&["mount", "{}/source", "{}/mnt", "--name", "x"], 2, &["--daemon"]),
    (
        &["mount", "{}/source", "{}/mnt", "--daemon", "--cache", "1GiB"],
        2,
        &["--daemon", "cannot be used with '--cache"],
    ),
    (&["mount", "{}/source", "{}/mnt", "--foreground", "--background"], 2, &["--background"]),
    (&["mount", "{}/source", "{}/mnt", "--daemon"], 5, &["no daemon listens at", "start one (slackwater daemon)"]),
    (
        &["mount", "{}/source", "{}/mnt", "--daemon", "--socket", "{}/file"],
        5,
        &["no daemon listens at", "/file", "--socket PATH"],
    ),
    (&["mount", "{}/source", "{}/mnt", "--socket", "{}/no.sock"], 2, &["--socket names a daemon", "add --daemon"]),
    (&["mount", "{}/source", "{}/mnt", "-o", "bogus"], 2, &["unknown option bogus", "mount --help"]),
    (&["mount", "{}/source", "{}/mnt", "-o", "ro,bogus=1"], 2, &["unknown option bogus=1"]),
    (&["mount", "{}/source", "{}/mnt", "-o", "cache"], 2, &["option cache", "cache=VALUE"]),
    (&["mount", "{}/source", "{}/mnt", "-o", "cache=lots"], 2, &["cache=lots", "256MiB"]),
    (&["mount", "{}/source", "{}/mnt", "-o", "dirty-expire=1"], 2, &["dirty-expire=1", "30s"]),
    (&["mount", "{}/source", "{}/mnt", "-o", "strictatime"], 2, &["strictatime", "mount without it"]),
    (&["mount", "{}/source", "{}/mnt", "-o"], 2, &["-o"]),
];

const ARENAS: &[Case] = &[
    (&["mount", "{}/source", "{}/mnt", "--cache=16MiB", "--arena", ""], 2, &["--arena"]),
    (
        &["mount", "{}/source", "{}/mnt", "--cache=16MiB", "--arena", "{}/run"],
        2,
        &["/run is a directory", "name a file in it"],
    ),
    (
        &["mount", "{}/source", "{}/mnt", "--cache=16MiB", "--arena", "/dev/shm"],
        2,
        &["/dev/shm is a directory", "name a file in it"],
    ),
    (
        &["mount", "{}/source", "{}/mnt", "--cache=16MiB", "--arena", "{}/nowhere/x"],
        1,
        &["cannot use the arena", "/nowhere/x", "choose another --arena FILE"],
    ),
    (
        &["mount", "{}/source", "{}/mnt", "--cache=16MiB", "--arena", "{}/file"],
        1,
        &["/file must be a regular file of yours with mode 0600", "choose another"],
    ),
    (
        &["mount", "{}/source", "{}/mnt", "--cache=16MiB", "--arena", "{}/fifo"],
        1,
        &["/fifo must be a regular file of yours"],
    ),
    (
        &["mount", "{}/source", "{}/mnt", "--cache=16MiB", "--arena", "{}/dangling"],
        1,
        &["/dangling must be a regular file of yours"],
    ),
    (
        &["mount", "{}/source", "{}/mnt", "--cache=16MiB", "--arena", "/dev/null"],
        1,
        &["/dev/null must be a regular file of yours"],
    ),
    (
        &["mount", "{}/source", "{}/mnt", "--cache=16MiB", "--arena", "{shm}-garbage"],
        1,
        &["cannot use the arena", "nothing was changed", "mv "],
    ),
    (
        &["mount", "{}/source", "{}/mnt", "--cache=16MiB", "--arena", "{shm}-empty"],
        1,
        &["cannot use the arena", "nothing was changed", "mv "],
    ),
    (
        &["mount", "{}/source", "{}/mnt", "--cache=16MiB", "--arena", "{}/on-disk.arena"],
        2,
        &["on-disk.arena", "choose a file below /dev/shm"],
    ),
];

const COMMANDS: &[Case] = &[
    (&[], 2, &["Usage"]),
    (&["mont"], 2, &["unrecognized subcommand 'mont'", "'mount'"]),
    (&["--bogus"], 2, &["--bogus"]),
    (&["umount"], 2, &["<MOUNTPOINT|NAME>"]),
    (&["umount", "{}/nowhere"], 5, &["/nowhere is not mounted", "slackwater status"]),
    (&["umount", "nowhere"], 5, &["nowhere is not mounted", "slackwater ls"]),
    (&["umount", "{}/file"], 5, &["/file is not mounted"]),
    (&["umount", "/proc"], 5, &["/proc is not a slackwater mount (proc)", "umount /proc"]),
    (&["umount", "{}/mnt", "--deadline", "60"], 2, &["--deadline", "30s"]),
    (&["umount", "{}/mnt", "--yes"], 2, &["--discard"]),
    (&["umount", "--all", "{}/mnt"], 2, &["--all", "cannot be used with"]),
    (&["umount", "web", "--socket", "{}/no.sock"], 5, &["no daemon listens at", "/no.sock"]),
    (&["sync"], 2, &["<MOUNTPOINT|NAME>"]),
    (&["sync", "{}/mnt"], 5, &["/mnt is not mounted"]),
    (&["sync", "nowhere"], 5, &["nowhere is not mounted"]),
    (&["sync", "--all", "{}/mnt"], 2, &["--all", "cannot be used with"]),
    (&["status", "{}/mnt"], 5, &["/mnt is not mounted"]),
    (&["status", "web", "--socket", "{}/no.sock"], 5, &["no daemon listens at"]),
    (&["status", "--socket", "{}/file"], 5, &["no daemon listens at", "/file"]),
    (&["ls"], 5, &["no daemon listens at", "--socket PATH"]),
    (&["ls", "extra"], 2, &["unexpected argument 'extra'"]),
    (&["tenants"], 5, &["no daemon listens at"]),
    (&["events"], 5, &["no daemon listens at"]),
    (&["set"], 2, &["<NAME|KEY=VALUE>"]),
    (&["set", "web"], 2, &["no setting given", "set --help"]),
    (&["set", "dontcache=on"], 2, &["no volume given", "slackwater set web dontcache=on"]),
    (&["set", "web", "dontcache"], 2, &["dontcache is not a setting", "dontcache=on"]),
    (&["set", "web", "dontcache=on"], 5, &["web is not mounted", "slackwater ls"]),
    (&["set", "--tenant", "/a"], 2, &["<NAME|KEY=VALUE>"]),
    (&["set", "--tenant", "/a", "limit"], 2, &["limit is not a setting"]),
    (&["set", "--tenant", "/a", "limit=1MiB"], 5, &["no daemon listens at"]),
    (&["top"], 2, &["standard output is not one", "top --once"]),
    (&["top", "--json"], 2, &["--once"]),
    (&["top", "--once", "--interval", "1ms"], 2, &["between 100ms and 1h"]),
    (&["doctor", "extra"], 2, &["extra is not the URL of an object volume", "s3://bucket/volume"]),
    (&["completions", "tcsh"], 2, &["tcsh", "possible values: bash"]),
    (&["man", "extra"], 2, &["unexpected argument 'extra'"]),
    (&["daemon", "extra"], 2, &["unexpected argument 'extra'"]),
    (&["daemon", "--cache", "1KiB"], 2, &["1.0 KiB is too small"]),
    (
        &["daemon", "--config", "{}/nowhere.toml"],
        2,
        &["cannot read the configuration", "/nowhere.toml", "No such file"],
    ),
    (&["daemon", "--config", "{}/run"], 2, &["cannot read the configuration", "Is a directory"]),
    (
        &["daemon", "--cache=16MiB", "--socket", "{}/file"],
        1,
        &["/file exists and is not a socket of yours", "--socket"],
    ),
    (&["daemon", "--cache=16MiB", "--socket", "{}/nowhere/x"], 1, &["/nowhere", "create the directory first"]),
    (&["daemon", "--cache=16MiB", "--arena", "{}/run"], 2, &["/run is a directory", "name a file in it"]),
];

/// A build without object stores says so.
#[cfg(not(feature = "object"))]
const WITHOUT_OBJECT_STORES: &[Case] = &[
    (&["mount", "s3://bucket/volume", "{}/mnt"], 2, &["has no object stores", "--features object"]),
    (&["mount", "file://{}/source", "{}/mnt"], 2, &["has no object stores", "a released binary"]),
    (&["mkfs", "s3://bucket/volume"], 2, &["has no object stores"]),
    (&["fsck", "s3://bucket/volume"], 2, &["has no object stores"]),
    (&["gc", "s3://bucket/volume"], 2, &["has no object stores"]),
    (&["doctor", "s3://bucket/volume"], 1, &["FATAL", "has no object stores"]),
];
#[cfg(feature = "object")]
const WITHOUT_OBJECT_STORES: &[Case] = &[];

/// Invalid configurations, with parts of the daemon's message.
const CONFIGURATIONS: &[(&str, &[&str])] = &[
    ("cache = \"1GiB\"\nchace = \"1GiB\"", &["line 2", "unknown field `chace`", "`cache`"]),
    ("cache = 5", &["line 1", "expected a string"]),
    ("cache = \"lots\"", &["line 1", "256MiB"]),
    ("cache = \"2GiB", &["line 1", "invalid basic string"]),
    ("dirty-expire = \"30\"", &["line 1", "30s"]),
    ("dirty-ratio = 0", &["line 1", "from 1 to 100"]),
    ("tenant-by = \"group\"", &["not one of cgroup, uid and volume"]),
    ("metrics = \"nowhere\"", &["127.0.0.1:9810"]),
    ("socket-group = \"no-such-group\"", &["no group named no-such-group", "name an existing group"]),
    ("[tenants.\"/a\"]\nlimit = \"none\"", &["line 2", "256MiB"]),
    ("[volumes.web]\nsource = \"/srv\"", &["missing field `mountpoint`"]),
    ("[volumes.web]\nsource = \"srv\"\nmountpoint = \"/mnt\"", &["volumes.web.source", "srv is not an absolute path"]),
    (
        "[volumes.\"a/b\"]\nsource = \"/srv\"\nmountpoint = \"/mnt\"",
        &["\"a/b\" is not a valid volume name", "letters, digits"],
    ),
    ("[volumes.web]\nsource = \"/srv\"\nmountpoint = \"/mnt\"\nnoexce = true", &["unknown field `noexce`"]),
];

fn with_places(word: &str, scratch: &Scratch) -> String {
    let shm = scratch.arena("x").to_str().unwrap().trim_end_matches("-x.arena").to_owned();
    word.replace("{shm}", &shm).replace("{}", scratch.path.to_str().unwrap())
}

fn stage(scratch: &Scratch) {
    let path = |name: &str| scratch.path.join(name);
    for dir in ["source/inner", "mnt"] {
        fs::create_dir_all(path(dir)).unwrap();
    }
    fs::write(path("file"), "text").unwrap();
    std::os::unix::fs::symlink("nowhere", path("dangling")).unwrap();
    std::os::unix::fs::symlink("loop", path("loop")).unwrap();
    let fifo = (rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o600));
    rustix::fs::mknodat(rustix::fs::CWD, path("fifo"), fifo.0, fifo.1, 0).unwrap();
    for (name, text) in [("{shm}-garbage", &[7; 9000][..]), ("{shm}-empty", &[])] {
        let path = with_places(name, scratch);
        fs::write(&path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    }
}

/// Names in a directory.
fn names(dir: &Path) -> Vec<OsString> {
    let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    names
}

/// Files and mounts that are left, besides locks and the log of a process that could not start.
fn left(scratch: &Scratch) -> Vec<String> {
    let own = scratch.path.file_name().unwrap().to_str().unwrap().to_owned();
    let in_run = names(&scratch.path.join("run")).into_iter().map(|name| name.into_string().unwrap());
    let in_run = in_run.filter(|name| !name.ends_with("lock"));
    let in_shm = names(Path::new("/dev/shm")).into_iter().filter_map(|name| name.into_string().ok());
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mounts: Vec<_> = mounts.lines().filter(|line| line.contains(&own)).map(str::to_owned).collect();
    in_run.chain(in_shm.filter(|name| name.starts_with(&own))).chain(mounts).collect()
}

#[track_caller]
fn check(what: &dyn std::fmt::Debug, output: &Output, code: i32, words: &[&str]) {
    assert_eq!(output.code, Some(code), "{what:?}: {}", output.text);
    for word in words {
        assert!(output.text.contains(word), "{what:?}: {word:?} is not in: {}", output.text);
    }
    assert!(!output.text.contains("panicked"), "{what:?}: {}", output.text);
}

#[test]
fn a_hundred_wrong_inputs_are_refused_with_advice_and_leave_nothing() {
    need_fuse();
    let scratch = Scratch::new();
    stage(&scratch);
    let before = left(&scratch);
    for (words, code, said) in [MOUNT, ARENAS, COMMANDS, WITHOUT_OBJECT_STORES].concat() {
        let output = scratch.run(words.iter().map(|word| with_places(word, &scratch)));
        check(&words, &output, code, said);
        assert_eq!(left(&scratch), before, "{words:?} leaves something");
    }
    for (text, said) in CONFIGURATIONS {
        let config = scratch.path.join("config.toml");
        fs::write(&config, text).unwrap();
        let output = scratch.run(["daemon", "--cache=16MiB", "--config", config.to_str().unwrap()]);
        check(text, &output, 2, said);
        assert_eq!(left(&scratch), before, "{text:?} leaves something");
    }
    assert!(MOUNT.len() + ARENAS.len() + COMMANDS.len() + CONFIGURATIONS.len() >= 100);
    // The source is as good as before: nothing of all that is in the way.
    let mount = scratch.mount(&scratch.path.join("source"), &scratch.path.join("mnt"), &["--cache", "16MiB"]);
    scratch.umount(&scratch.path.join("mnt"));
    drop(mount);
}

#[test]
fn names_with_odd_bytes_are_named_on_one_line() {
    let scratch = Scratch::new();
    let odd = OsString::from_vec(b"a\n\x1b[31m\xff".to_vec());
    for words in [["mount".into(), odd.clone(), "/mnt".into()], ["umount".into(), odd.clone(), "--force".into()]] {
        let output = scratch.run(words);
        assert!(matches!(output.code, Some(1 | 5)), "{}", output.text);
        assert!(output.text.contains(r"a\n\u{1b}[31m\xff"), "{}", output.text);
        assert!(!output.text.contains('\x1b'), "{:?}", output.text);
    }
}
