//! Mounts that cannot be kept.

use crate::rig::{Scratch, need_fuse};

#[test]
fn mounts_that_cannot_be_kept_are_refused_before_anything_is_mounted() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let (from, to) = (source.to_str().unwrap(), mountpoint.to_str().unwrap());
    let refused: [(&[&str], &str); 3] = [
        (&["mount", "--keep", "memory:bucket/volume", to], "an object volume in memory ends with its process"),
        (&["mount", "--keep", "--transport", "uring", from, to], "over io_uring"),
        (&["mount", "--keep", "--daemon", from, to], "cannot be used with"),
    ];
    for (words, why) in refused {
        scratch.run(words).expect(2, &["--keep", why]);
        scratch.run([&words[..1], &["--background"], &words[1..]].concat()).expect(2, &["--keep"]);
    }
    scratch.run(["mount", "-o", "keep,transport=uring", from, to]).expect(2, &["over io_uring"]);
    scratch.run(["mount", "--kept", from, to]).expect(1, &["cannot communicate with the keeper"]);
    scratch.run(["status"]).expect(0, &["Nothing is mounted"]);
}
