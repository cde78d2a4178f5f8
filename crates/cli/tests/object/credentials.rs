//! A file with the credentials of one volume, in place of the environment.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use crate::daemon::daemon;
use crate::rig::{Mount, Scratch, need_fuse, umount_when_free};
use crate::store::stores;

#[test]
fn each_command_and_each_process_of_a_mount_takes_the_credentials_from_the_file() {
    need_fuse();
    let scratch = Scratch::new();
    let Some(mut store) = stores(&scratch).into_iter().find(|store| store.objects.is_none()) else { return };
    let keys = store.move_environment_to_file(&scratch);
    let file = keys.to_str().unwrap();
    let [mountpoint] = store.mountpoints(&scratch);
    store.run(&scratch, &["mkfs", &store.url, "--credentials", file]).expect(0, &["Made an empty volume at"]);
    let refused = store.refused(&scratch, &mountpoint, &[]);
    refused.expect(1, &["slackwater doctor"]);
    store.run(&scratch, &["doctor", &store.url, "--credentials", file]).expect(0, &["ok"]);

    // A relative name is that of the directory where the command was called.
    let mut command = store.mount_command(&scratch, &mountpoint, &["--keep", "--credentials", "keys"]);
    command.current_dir(&scratch.path);
    let mut mount = Mount::start(command, &mountpoint);
    fs::write(mountpoint.join("file"), "kept").unwrap();
    // The next process claims the volume, with credentials of its own.
    scratch.run(["restart", mountpoint.to_str().unwrap()]).expect(0, &["Restarted"]);
    fs::write(mountpoint.join("second"), "written by the next process").unwrap();
    scratch.umount(&mountpoint);
    mount.wait().expect(0, &[]);

    let table = format!(
        "[volumes.one]\nsource = \"{}\"\nmountpoint = \"{}\"\ncredentials = \"{file}\"\n",
        store.url,
        mountpoint.display()
    );
    let config = scratch.path.join("config.toml");
    fs::write(&config, table).unwrap();
    let mut process = daemon(&scratch, &store, &config);
    assert_eq!(fs::read(mountpoint.join("second")).unwrap(), b"written by the next process");
    umount_when_free(|| scratch.run(["umount", "one"])).expect(0, &[]);
    let words = ["mount", "--daemon", &store.url, mountpoint.to_str().unwrap(), "--credentials", file, "--name", "one"];
    scratch.run(words).expect(0, &["Mounted"]);
    fs::write(mountpoint.join("file"), "left").unwrap();
    process.0.kill().unwrap();
    process.wait();
    // The next daemon writes back what is left, and its environment has no credentials either.
    let mut process = daemon(&scratch, &store, &config);
    assert_eq!(fs::read(mountpoint.join("file")).unwrap(), b"left");
    // Neither the mount table nor the registry has a key.
    let registry = fs::read_dir(scratch.path.join("run")).unwrap().flatten();
    let texts =
        registry.filter_map(|entry| fs::read(entry.path()).ok()).chain([fs::read("/proc/self/mountinfo").unwrap()]);
    let secret = fs::read_to_string(&keys).unwrap();
    let (_, secret) = secret.lines().find_map(|line| line.split_once("SECRET_ACCESS_KEY=")).unwrap();
    for text in texts {
        assert!(!String::from_utf8_lossy(&text).contains(secret));
    }
    process.signal(rustix::process::Signal::TERM);
    assert!(process.wait().success());
    assert_eq!(store.left(), Vec::<String>::new());
    for command in
        [&["fsck", &store.url, "--data", "--credentials", file][..], &["gc", &store.url, "--credentials", file]]
    {
        store.run(&scratch, command).expect(0, &[]);
        let without = store.run(&scratch, &command[..2]);
        assert!(without.code != Some(0) && without.text.contains("slackwater doctor"), "{}", without.text);
    }
}

#[test]
fn credentials_that_cannot_be_used_are_refused_and_not_shown() {
    need_fuse();
    let scratch = Scratch::new();
    let [source, mountpoint] = ["source", "mnt"].map(|name| scratch.dir(name, 0o755).display().to_string());
    let keys = scratch.path.join("keys");
    let keys_name = keys.to_str().unwrap();
    let refused = |place: &str, parts: &[&str]| {
        let output = scratch.run(["mount", place, &mountpoint, "--credentials", keys_name]);
        output.expect(2, parts);
        assert!(!output.text.contains("hush"), "{}", output.text);
    };
    refused("s3://bucket/volume", &["No such file"]);
    fs::write(&keys, "AWS_SECRET_ACCESS_KEY=hush\n").unwrap();
    fs::set_permissions(&keys, Permissions::from_mode(0o640)).unwrap();
    refused("s3://bucket/volume", &["other users", "chmod 600"]);
    refused(&source, &["--credentials is for object volumes"]);
    fs::set_permissions(&keys, Permissions::from_mode(0o600)).unwrap();
    fs::write(&keys, "AWS_ACCESS_KEY_ID=x\nhush\n").unwrap();
    refused("s3://bucket/volume", &["line 2"]);
    // The role of the machine is not used instead.
    for (place, variable) in [("s3", "AWS_ACCESS_KEY_ID"), ("gs", "GOOGLE_"), ("az", "AZURE_STORAGE_ACCOUNT_KEY")] {
        fs::write(&keys, "AWS_REGION=hush-1\nAWS_SECRET_ACCESS_KEY=\n").unwrap();
        refused(&format!("{place}://bucket/volume"), &["have no key", variable]);
    }
    fs::write(&keys, "AWS_ACCESS_KEY_ID=x\nAWS_SECRET_ACCESS_KEY=\"hush\\n\"\n").unwrap();
    refused("s3://bucket/volume", &["AWS_SECRET_ACCESS_KEY", "line break"]);
}
