//! The notes and examples that follow the options in `--help` and in the manual page.
//!
//! Lines have at most 72 columns. A terminal of 80 columns then shows them unbroken, in the manual page too, which
//! indents them by 7.

pub(crate) const EXAMPLES: &str = "\
Examples:
  # Mount a directory and stay in the foreground; Ctrl-C unmounts it
  slackwater mount ~/data /mnt/data

  # The same in the background, with metrics for Prometheus on port 9810
  slackwater mount ~/data /mnt/data --background --metrics 9810

  # Set the size of the cache, and write data back after 5 seconds
  slackwater mount /srv/db /mnt/db --cache 2GiB --dirty-expire 5s

  # Write everything back and unmount, even with files open
  slackwater umount /mnt/data --force --deadline 2m

  # Make a volume in an object store and mount it
  slackwater mkfs s3://bucket/volume
  slackwater mount s3://bucket/volume /mnt/volume --background

  # Serve many volumes in one process, and add one to it
  slackwater daemon --config /etc/slackwater.toml
  slackwater mount --daemon /srv/web /mnt/web

  # Look at what is mounted: once, as a live view, as JSON for a script
  slackwater status
  slackwater top
  slackwater top --once --json --interval 5s

To mount from /etc/fstab, link this program as /sbin/mount.slackwater,
mount.fuse.slackwater, umount.slackwater and umount.fuse.slackwater:
  /srv/db  /mnt/db  slackwater  cache=2GiB,dirty-expire=5s,nofail  0 0
";

pub(crate) const LS_NOTES: &str = "\
UNWRITTEN is the data that is dirty, being written or not yet durable.

Examples:
  slackwater ls
  slackwater ls --json";

pub(crate) const TENANTS_NOTES: &str = "\
Examples:
  slackwater tenants
  slackwater tenants --json";

pub(crate) const EVENTS_NOTES: &str = "\
Prints mounts, unmounts, failures and warnings until it is interrupted.

Examples:
  slackwater events
  slackwater events --json";

pub(crate) const DOCTOR_NOTES: &str = "\
Each line begins with `ok`, `missing` or `FATAL`. Only FATAL keeps
slackwater from mounting. A missing feature has only the effect shown.

With a URL, checks the store instead: whether it can be reached with the
credentials in the environment, and whether it keeps the promises that a
volume relies on. It writes small objects below URL and deletes them.

Examples:
  slackwater doctor
  slackwater doctor s3://bucket/volume";

pub(crate) const MKFS_NOTES: &str = "\
URL is one of
  s3://BUCKET/PREFIX       Amazon S3, or any server with its protocol
  gs://BUCKET/PREFIX       Google Cloud Storage
  az://CONTAINER/PREFIX    Azure Blob Storage
  file:///DIRECTORY        a local directory, to try it out

Credentials and endpoints come from the environment, or from a file with
--credentials, never from the URL:
  s3  AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN,
      AWS_REGION, AWS_PROFILE (in ~/.aws), and AWS_ENDPOINT_URL with
      AWS_ALLOW_HTTP=true for a server of your own; on EC2 and EKS the
      role of the machine
  gs  GOOGLE_APPLICATION_CREDENTIALS (a file), or the machine's account
  az  AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY, or the
      machine's identity

A volume that exists is never overwritten. To delete one, unmount it and
delete the objects below its prefix with the tools of the store.

Examples:
  slackwater mkfs s3://bucket/volume
  AWS_ENDPOINT_URL=http://localhost:9000 AWS_ALLOW_HTTP=true \\
      slackwater mkfs s3://bucket/volume
  slackwater mkfs file:///srv/objects";

pub(crate) const FSCK_NOTES: &str = "\
Reads the whole tree of the volume, and compares it with the objects in
the store: every name leads to a file, every file has a name, and all
data that a file needs exists. Changes nothing without --repair, which
needs a volume that is not mounted for writing. A mounted volume is
checked as its last commit left it. If the last writer died, mount and
unmount the volume before --repair.

Exit status, as of fsck(8):
  0  no errors
  1  errors were found, and all are repaired
  4  errors are left
  8  the check itself failed, such as a store that cannot be reached
  2  wrong arguments

Examples:
  slackwater fsck s3://bucket/volume
  slackwater fsck s3://bucket/volume --repair
  slackwater fsck file:///srv/objects --data --json";

pub(crate) const GC_NOTES: &str = "\
A mounted volume deletes such objects itself, and this command refuses a
volume that is mounted for writing. If the last writer died, mount and
unmount the volume first. Readers that follow within --grace are safe.

Examples:
  slackwater gc s3://bucket/volume --dry-run
  slackwater gc s3://bucket/volume --grace 24h";

pub(crate) const COMPLETIONS_NOTES: &str = "\
Example:
  slackwater completions bash > /etc/bash_completion.d/slackwater";

pub(crate) const MAN_NOTES: &str = "\
Examples:
  slackwater man | man -l -
  slackwater man > /usr/local/share/man/man1/slackwater.1";

pub(crate) const DAEMON_NOTES: &str = "\
SIGTERM or Ctrl-C writes everything back, unmounts all volumes and ends
the daemon. Ctrl-C leaves volumes that are in use mounted; SIGTERM
unmounts them too. After SIGTERM, a volume whose source accepts nothing
for 30 s is given up: its unwritten data stays in the cache, and the
next daemon writes it back.

With --keep, programs on the volumes only wait if the daemon crashes:
the command stays as a small second process, the keeper, which starts
another daemon. `slackwater restart` and `slackwater upgrade` replace
the daemon on purpose. It goes on with its first configuration.

The configuration file is TOML:

  cache = \"2GiB\"           # for all volumes together
  dirty-expire = \"30s\"
  tenant-by = \"cgroup\"
  socket-group = \"adm\"     # may use ls, status, tenants, events, top
  web = \"127.0.0.1:9811\"   # a page with live figures

  [tenants.\"/containers/a\"]
  limit = \"64MiB\"

  [volumes.web]
  source = \"/srv/web\"
  mountpoint = \"/mnt/web\"
  noexec = true

  [volumes.archive]
  source = \"s3://bucket/archive\"
  mountpoint = \"/mnt/archive\"
  upload-limit = \"50MiB\"   # per second; follow = \"5s\" if read-only
  credentials = \"/etc/slackwater-archive.env\"

Examples:
  slackwater daemon --config /etc/slackwater.toml
  slackwater daemon --socket /run/slackwater/daemon.sock --cache 2GiB
  slackwater daemon --keep --config /etc/slackwater.toml
  slackwater mount --daemon /srv/db /mnt/db --name db
  slackwater umount db
  slackwater set --tenant /containers/a limit=128MiB";

pub(crate) const STATUS_NOTES: &str = "\
Shows all volumes of this user, whether served by a mount process or a
daemon. With --socket or SLACKWATER_SOCKET, shows the volumes of that
daemon; members of its socket-group may ask too.

Examples:
  slackwater status /mnt/data
  slackwater status --json
  slackwater status web --socket /run/slackwater/daemon.sock";

pub(crate) const SET_USAGE: &str = "\
slackwater set [OPTIONS] <NAME> <KEY=VALUE>...
       slackwater set [OPTIONS] --tenant <TENANT> <KEY=VALUE>...";

pub(crate) const SET_NOTES: &str = "\
Settings of a volume:
  dontcache=on|off         as --dontcache of mount
  dirty-limit=SIZE|none    the most bytes that are not durable; writers
                           wait at it
  dirty-expire=TIME|none   as --dirty-expire of mount, for this volume

Settings of a tenant:
  limit=SIZE|none          as --tenant-limit of mount
  dontcache=on|off|none    as --tenant-dontcache of mount
  name=NAMESPACE/POD|none  of a pod: its name where tenants are shown

These of a volume are options of mount, too. A change lasts until the
daemon ends.

Examples:
  slackwater set web dontcache=on
  slackwater set web dirty-limit=64MiB dirty-expire=5s
  slackwater set --tenant /containers/a limit=64MiB dontcache=none
  slackwater set --tenant pod:$UID name=default/web-0 limit=64MiB";

pub(crate) const SYNC_NOTES: &str = "\
On a Slackwater mount, sync(1), sync(2) and syncfs(2) return 0 but make
nothing durable, because Linux does not report them to FUSE servers. Use
this command instead. fsync(2), O_SYNC and O_DSYNC work as usual.

Examples:
  slackwater sync /mnt/data
  slackwater sync --all";

pub(crate) const RESTART_NOTES: &str = "\
The process of a mount with --keep exits, and its keeper starts another
one, which goes on with the same cache, open files and mount point.
Programs on the mount wait for some milliseconds and see no error. The
new process has the options of the first one, and is the same program,
even if its file was replaced on disk: `slackwater upgrade` changes it.
A volume of a daemon with --keep stands for all of them: the daemon has
one process.

Examples:
  slackwater restart /mnt/data
  slackwater restart --all";

pub(crate) const UPGRADE_NOTES: &str = "\
After an update of the package, mounts still run the program before, and
so does the successor of a process that crashes. This command replaces
the process of a mount with --keep by one of the new program. Programs
on the mount wait for some milliseconds and see no error.

A program that cannot read the data of the mount in memory is refused,
and nothing changes. If the new program fails before it serves the
mount, the program before serves it again, and `status` says why. After
success, each later process of the mount is the new program. The keeper,
the small process that starts the others, stays as it is.

Examples:
  slackwater upgrade /mnt/data
  slackwater upgrade --all
  slackwater upgrade --program /opt/slackwater-0.2/slackwater /mnt/data";

pub(crate) const MOUNT_NOTES: &str = "\
Unmounting: Ctrl-C or SIGTERM writes everything back and unmounts. After
SIGTERM the process also ends, with status 7, if the source accepts
nothing for 30 s; the next mount writes the rest back. fusermount3 -u
and umount(8) lose nothing either. They return at once, and the process
ends once everything is written back. umount(8) waits for that if the
mount was made by mount(8) and /sbin has its helpers (docs/FSTAB.md).

mount -o remount,ro writes everything back and makes the volume
read-only, unless files are open for writing; remount,rw undoes it.
Other options cannot change while it is mounted.

A source that a process or daemon of this user has mounted: as root,
the command makes one more mount point of the same volume and returns.
Options must be those of that volume. The volume ends with its last
mount point.

Crashes: written data survives the death of this process; the next mount
of SOURCE writes it back. A crash of the machine loses data that was not
synced and is younger than --dirty-expire plus a few seconds.

With --keep, programs do not notice the death of the process: they wait
until another process has taken the mount over, usually for less than
0.1 s. The command then stays as a small second process, the keeper,
which starts the mount process and forwards signals to it. If the keeper
itself dies, the mount goes on, but is kept no longer: status says so.

Object volumes: one process at a time may write. An attempt to mount the
volume elsewhere names that process; use --read-only there, or take the
volume over with --take-over. See docs/OBJECT.md.

Examples:
  slackwater mount ~/data /mnt/data
  slackwater mount /srv/db /mnt/db --cache 2GiB --background
  slackwater mount /srv/db /mnt/db --keep --background
  slackwater mount /srv/db /mnt/again    (the same volume, once more)
  slackwater mount /srv/db /mnt/db --tenant-by cgroup \\
      --tenant-limit /system.slice/backup.service=64MiB
  slackwater mount --daemon /srv/web /mnt/web --name web
  slackwater mount s3://bucket/volume /mnt/volume --upload-limit 50MiB
  slackwater mount s3://bucket/volume /mnt/copy --read-only --follow 5s
  slackwater mount s3://bucket/volume /mnt/volume --credentials keys.env";

pub(crate) const UMOUNT_NOTES: &str = "\
Without --force, a volume in use stays mounted, and the message names
the processes that use it. Ctrl-C only stops watching: the unmount goes
on until its deadline.

With --force, the mount point is free at the deadline even if the source
hangs or another mount namespace holds the volume. Data not written back
by then stays in the cache: the status is 7, and the next mount of the
source writes it back.

--park does the same for a volume that no program uses. A line says how
much is kept and where, and the status is 0.

umount(8) of a volume with much unwritten data returns at once, while
the process of the mount writes it back. Its helper umount.slackwater
waits as this command does, without a deadline; it is called for mounts
that were made by mount(8) or from /etc/fstab. See docs/FSTAB.md.

Examples:
  slackwater umount /mnt/data
  slackwater umount /mnt/data --park --deadline 5s
  slackwater umount web --lazy
  slackwater umount --all --force --deadline 2m";

pub(crate) const TOP_NOTES: &str = "\
Keys: d w p a n sort, r reverses, v switches between volumes and
tenants, f folds, ? explains the columns, q quits.

--once --json prints one object. Values that are not known are null.
  version       1
  interval_ms   time between the two samples
  volumes       pid, name (in a daemon), source, mountpoint, phase,
                failing (why write-back fails), role (of an object
                volume: writer, reader or fenced), fenced_by,
                cache_bytes, open_files, paused_writes and
                parked_writes (slowed down, and waiting for free
                frames), eta_ms (until an unmount in progress ends),
                figures, tenants, more_tenants (those that did not
                fit)
  tenants       of a volume: id, name, state, wants_room (it is at its
                limit), figures
  figures       held_bytes (unwritten), limit_bytes, dirty_bytes,
                writeback_bytes, unstable_bytes, written_bytes_per_s,
                paused_ms_per_s, oldest_ms, hit_percent (pages that
                reads found in the cache; the kernel answers some reads
                itself, and these are not counted)
  silent, dead  processes that do not answer, and processes that died
                and left an arena: pid, source, mountpoint, arena

Examples:
  slackwater top
  slackwater top --once
  slackwater top --once --json --interval 5s";

pub(crate) const CSI_NOTES: &str = "\
The plugin asks a running daemon to mount and unmount. It can be
restarted or killed at any time: mounts stay, and a repeated call goes
on where the first one stopped. Directories in requests are those of
kubelet: the daemon and the plugin must see them at the same paths.

One process per machine serves the node, with --mode node or all. Where
volumes are made in directories of the machine, each machine also has a
controller (all). Where pools can be reached from every machine, one
controller is enough (controller).

An unstage that succeeds has made everything durable. At the deadline it
fails and says how much is left; nothing is lost. docs/KUBERNETES.md has
parameters, calls and error codes.

Examples:
  slackwater csi --endpoint unix:///csi/csi.sock --pool fast=/srv/fast
  slackwater csi --endpoint /csi/csi.sock --mode node --node-id worker-1
  CSI_ENDPOINT=unix:///csi/csi.sock slackwater csi --mode controller \\
      --pool cold=s3://bucket/volumes";

pub(crate) const DOCKER_PLUGIN_NOTES: &str = "\
The plugin asks a running daemon to mount and unmount. It can be
restarted or killed at any time: mounts stay, and it knows afterwards
which containers have them. The containers must run in the mount
namespace of the daemon and the plugin.

Options of `docker volume create`:
  pool=PLACE            make the volume in this directory, or below
                        this URL as an object volume
  source=PLACE          use this directory or object volume, which
                        exists already; removal leaves it alone
  size=SIZE             its size, where the file system has quotas
  slackwater.KEY=VALUE  limits; docs/DOCKER.md lists them

An unmount that succeeds has made everything durable. docs/DOCKER.md
says what happens in each failure.

Examples:
  slackwater docker-plugin --pool /srv/volumes
  docker volume create --driver slackwater data
  docker volume create --driver slackwater -o source=/srv/www www";

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use crate::arguments::Arguments;

    #[test]
    fn notes_of_every_command_fit_72_columns() {
        let command = Arguments::command();
        let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
        for command in shown.chain([&command]) {
            let notes = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let long = notes.lines().find(|line| line.chars().count() > 72);
            assert_eq!(long, None, "{}", command.get_name());
            assert!(notes.contains("Example"), "{} has no example", command.get_name());
        }
    }
}
