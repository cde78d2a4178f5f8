# The life of the package on a fresh Debian; one step per call.
set -euo pipefail
cd /root
fail() { echo "failed: $*"; exit 1; }
# All files but those of the trial, and those in which apt, dpkg and systemd remember what they did.
files() {
    find / -xdev \( -path /root -o -path /var/lib/apt -o -path /var/lib/dpkg -o -path /var/cache -o -path /var/log/apt \
        -o -path /var/log/dpkg.log -o -path /var/log/journal \) -prune -o -print | sort
}
is_mounted() { findmnt --noheadings "$1" > /dev/null; }
holds() { [ "$(cat "$1" 2> /dev/null)" = "$2" ]; }

case "$1" in
install)
    files > before
    # The commands of the README. The package is made already.
    cargo() { :; }
    . ./readme.sh > apt.log 2>&1 || { cat apt.log; fail "the commands of the README"; }
    slackwater --version
    slackwater doctor > doctor.log || { cat doctor.log; fail "doctor"; }
    for path in /sbin/{,u}mount.{,fuse.}slackwater /usr/share/man/man8/mount.slackwater.8.gz; do
        [ -e "$path" ] || fail "no $path"
    done
    [ ! -e /etc/systemd/system/multi-user.target.wants/slackwater.service ] || fail "installing enabled the service"
    (cd / && md5sum --quiet --check /var/lib/dpkg/info/slackwater.md5sums) || fail "files differ from the package"
    echo "installed"
    ;;
fstab)
    mkdir -p /srv/data /mnt/data
    echo '/srv/data /mnt/data slackwater cache=64MiB,nofail,_netdev,x-systemd.mount-timeout=30 0 0' >> /etc/fstab
    mount -a
    [ "$(findmnt --noheadings --output FSTYPE /mnt/data)" = fuse.slackwater ] || fail "mount -a"
    mount -a || fail "a second mount -a"
    echo one > /mnt/data/file
    df /mnt/data > df.log || fail "df"
    umount -a -t fuse.slackwater
    ! is_mounted /mnt/data || fail "umount -a"
    holds /srv/data/file one || fail "umount returns before the data is written back"
    echo "fstab: mount -a, umount -a"

    mount -t fuse.slackwater -o cache=64MiB /srv/data /mnt/data
    echo two > /mnt/data/file
    slackwater umount /mnt/data > umount.log
    holds /srv/data/file two || fail "slackwater umount returns before the data is written back"
    echo "mount -t fuse.slackwater"
    ;;
unit)
    # Runs the trial of systemd as the only unit, without those of a whole system.
    cat > /etc/systemd/system/trial.service <<'END'
[Unit]
DefaultDependencies=no
SuccessAction=exit-force
FailureAction=exit-force
[Service]
Type=oneshot
ExecStart=/bin/bash /root/service.sh
StandardOutput=append:/root/result
StandardError=append:/root/result
END
    ;;
remove)
    rm -f /etc/systemd/system/trial.service
    apt-get remove slackwater > remove.log 2>&1 || { cat remove.log; fail "remove"; }
    sed -i '\,^/srv/data,d' /etc/fstab
    rm -r /srv/data /mnt/data
    files > removed
    [ "$(comm -3 before removed | tr -d '[:blank:]')" = /etc/slackwater.toml ] ||
        { comm -3 before removed; fail "removal leaves other files than the configuration"; }
    apt-get purge slackwater > purge.log 2>&1 || { cat purge.log; fail "purge"; }
    files > purged
    diff before purged || fail "purge leaves something"
    [ -z "$(find /run /dev/shm /tmp -path /run/systemd -prune -o -name '*slackwater*' -print)" ] ||
        { find /run/slackwater* /dev/shm; fail "something is left in memory"; }
    echo "removed: the configuration is left; purged: nothing is left"
    ;;
removed-rpm)
    rm -r /var/lib/rpm
    files > removed
    # Directories that many packages share are a package of their own on Fedora, and on Debian of whoever has files there.
    left=$(comm -13 before removed | while read -r path; do [ -d "$path" ] || echo "$path"; done)
    [ -z "$left" ] || fail "the RPM leaves $left"
    echo "RPM: installed, verified, removed: nothing is left"
    ;;
esac
