# A service of systemd on a fresh Debian: the mount unit of fstab, and the daemon.
set -euo pipefail
fail() { echo "failed: $*"; cat /root/daemon.log; exit 1; }
state() { systemctl show "$1" --property ActiveState --value; }

systemctl start mnt-data.mount
[ "$(state mnt-data.mount)" = active ] || fail "the mount unit is $(state mnt-data.mount)"
echo three > /mnt/data/file
systemctl stop mnt-data.mount
[ "$(state mnt-data.mount)" = inactive ] || fail "the mount unit is $(state mnt-data.mount)"
[ "$(cat /srv/data/file)" = three ] || fail "the data of the mount unit is not written back"

mkdir -p /srv/served /mnt/served
# Tenants by cgroup need the process namespace of the machine, which the trial does not have.
cat > /etc/slackwater.toml <<'END'
cache = "64MiB"
tenant-by = "volume"
[volumes.served]
source = "/srv/served"
mountpoint = "/mnt/served"
END
[ "$(state slackwater)" = inactive ] || fail "the service runs without having been started"
# Here is no journal.
mkdir -p /run/systemd/system/slackwater.service.d
printf '[Service]\nStandardError=append:/root/daemon.log\n' > /run/systemd/system/slackwater.service.d/trial.conf
systemctl daemon-reload
systemctl enable --quiet slackwater
systemctl start slackwater || fail "the service does not start: $(systemctl show slackwater --property Result)"
[ "$(state slackwater)" = active ] || fail "the service is $(state slackwater)"
echo four > /mnt/served/file
systemctl stop slackwater
[ "$(cat /srv/served/file)" = four ] || fail "the stopped service has not written everything back"
rm -r /srv/served /mnt/served
echo "systemd: the mount unit of fstab, the service"
