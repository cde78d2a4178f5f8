# Unpacks the Debian of the archive $1/fresh.tar, and runs the trial in it with the package $2, and with the RPM $3 if that
# is given. All mounts and processes end with the namespaces of this script, and the system is in memory.
set -euo pipefail
folder=$1 root=$1/root package=$2 rpm=${3-} begin=$SECONDS

mkdir -p "$root"
mount -t tmpfs -o mode=755 none "$root"
tar --extract --directory "$root" --file "$folder/fresh.tar" --exclude './dev/*'
mount -t proc none "$root/proc"
mount -t sysfs none "$root/sys"
mount -t tmpfs -o mode=755 none "$root/dev"
for device in null zero full random urandom tty fuse; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
ln -s /proc/self/fd "$root/dev/fd"
mkdir "$root/dev/shm"
for place in dev/shm run tmp; do
    mount -t tmpfs -o mode=1777 none "$root/$place"
done
chmod 755 "$root/run"

# The README's first command has made the package already.
mkdir -p "$root/root/target/dist"
cp "$package" "$root/root/target/dist/"
cp "$folder"/*.sh "$root/root/"
echo 'APT::Get::Assume-Yes "true";' > "$root/etc/apt/apt.conf.d/90trial"
echo 'APT::Install-Recommends "false";' >> "$root/etc/apt/apt.conf.d/90trial"
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
unset SLACKWATER_RUNTIME_DIR SLACKWATER_SOCKET XDG_RUNTIME_DIR TMPDIR

in_root() { chroot "$root" bash /root/trial.sh "$@"; }
in_root install
in_root fstab

# systemd as the first process of the system. It moves all processes that it sees in its root cgroup to another one, so it
# must see no other processes: it gets a cgroup of its own, and a namespace of that.
groups=$folder/groups
mkdir -p "$groups"
group=$groups/$(basename "$folder")-$(date +%N)
leave() {
    find "$group" -depth -type d -exec rmdir {} + 2> /dev/null || true
    umount "$groups" || true
}
trap leave EXIT
trap 'exit 1' TERM
if mount -t cgroup2 none "$groups" && mkdir "$group"; then
    in_root unit
    (
        echo "$BASHPID" > "$group/cgroup.procs"
        grep -q "^0::.*/$(basename "$group")\$" /proc/self/cgroup
        container=trial exec timeout --kill-after=5 100 unshare --cgroup --pid --fork --kill-child --mount \
            bash -c 'mount -t cgroup2 none "$1/sys/fs/cgroup" && mount -t proc none "$1/proc" &&
                exec chroot "$1" /lib/systemd/systemd --unit=trial.service' systemd "$root"
    ) > "$folder/systemd.log" 2>&1 || true
fi
if [ -e "$root/root/result" ]; then
    cat "$root/root/result"
    grep -q '^systemd: ' "$root/root/result"
else
    echo "skipped: systemd cannot run here: $(tail -n 3 "$folder/systemd.log" || true)"
fi
in_root remove

# The program rpm of this machine installs in the directory; the scripts of the package run in the system.
of_rpm() { command rpm --root "$root" --dbpath /var/lib/rpm "$@" 2> "$folder/rpm.log" || { cat "$folder/rpm.log"; return 1; }; }
if [ -n "$rpm" ]; then
    of_rpm --initdb
    of_rpm --install --nodeps "$rpm"
    of_rpm --verify --nodeps slackwater
    chroot "$root" slackwater --version > /dev/null
    of_rpm --erase --nodeps slackwater
    in_root removed-rpm
fi
echo "the trial: $((SECONDS - begin)) s"
