//! A mount unit of systemd, with the helpers of mount(8) and umount(8).

use std::fs;

use super::systemd::Home;
use crate::rig::slackwater;

/// Stops a unit with much unwritten data.
const SCRIPT: &str = r#"
mount -t tmpfs none /sbin && mkdir -p /run/mount && mount -t tmpfs none /run/mount || exit 77
for name in mount.slackwater mount.fuse.slackwater umount.slackwater umount.fuse.slackwater; do
    ln -s "$BINARY" /sbin/$name
done
unit=$(systemd-escape --path --suffix=mount "$1/mnt")
show() { timeout 20 systemctl --user show "$unit" -p "$1" --value; }
for nth in 1 2; do
    timeout 60 systemctl --user start "$unit" || { cat manager.log; exit 1; }
    echo "started: $(show ActiveState)"
    head -c 60M /dev/zero | tr '\0' $nth > mnt/much
    timeout 60 systemctl --user stop "$unit"
    # Nothing is flushed behind the stop, where systemd would kill it after a while.
    echo "$(stat -c %s source/much) bytes, $(ls run/*.json 2> /dev/null | wc -l) processes"
    echo "stopped: $(show ActiveState), $(show Result)"
    grep -q "$1/mnt" /proc/self/mounts && echo "still mounted"
done
"#;

#[test]
fn stopping_a_mount_unit_writes_everything_back() {
    let Some(home) = Home::new() else { return };
    let scratch = &home.scratch.path;
    let (own, run) = (scratch.file_name().unwrap().to_string_lossy(), scratch.join("run"));
    let options = format!("cache=256MiB,dirty-ratio=90,dirty-expire=1h,arena=/dev/shm/{own}-unit.arena");
    let unit = format!(
        "[Mount]\nWhat={0}/source\nWhere={0}/mnt\nType=slackwater\nOptions={options}\n\
            Environment=SLACKWATER_RUNTIME_DIR={1}\n",
        scratch.display(),
        run.display()
    );
    // As systemd-escape names it.
    let name = scratch.join("mnt").to_string_lossy().replace('-', "\\x2d").replace('/', "-");
    fs::write(home.units.join(format!("{}.mount", name.trim_start_matches('-'))), unit).unwrap();
    let script = SCRIPT.replace("$BINARY", slackwater());
    let Some(output) = home.run(&script) else { return };
    output.expect(0, &["started: active", "62914560 bytes, 0 processes", "stopped: inactive, success"]);
    assert!(!output.text.contains("still mounted"), "{}", output.text);
    assert!(fs::read(scratch.join("source/much")).unwrap().iter().all(|byte| *byte == b'2'));
}
