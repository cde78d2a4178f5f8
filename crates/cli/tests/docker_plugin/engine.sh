#!/bin/sh
# Volumes of the plugin in real containers: engine.sh docker|podman SLACKWATER DIRECTORY
#
# It runs in mount and pid namespaces of its own: everything that it starts ends with it.
set -eu
engine=$1 slackwater=$2 root=$3
export SLACKWATER_RUNTIME_DIR="$root/run"
cd "$root"
mkdir pool mine data exec

# Copies of what other tests have mounted would keep their volumes.
umount -l -a -t fuse.slackwater || true

start_plugin() {
    "$slackwater" docker-plugin --socket "$socket" --state "$root/state" --mounts "$root/mounts" --pool "$root/pool" & plugin=$!
    until [ -S "$socket" ]; do
        kill -0 $plugin
        sleep 0.1
    done
}

case $engine in
podman)
    # Its runtime wants one hierarchy of control groups.
    umount -R /sys/fs/cgroup
    mount -t cgroup2 none /sys/fs/cgroup
    socket=$root/slackwater.sock
    cat > containers.conf <<EOF
[containers]
cgroups = "disabled"
cgroupns = "host"
netns = "none"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
runtime = "crun"
[engine.volume_plugins]
slackwater = "$socket"
EOF
    export CONTAINERS_CONF="$root/containers.conf"
    engine() { podman --root "$root/data" --runroot "$root/exec" --storage-driver vfs "$@"; }
    ;;
docker)
    # The place of its plugins is fixed.
    mkdir -p /run/docker
    mount -t tmpfs none /run/docker
    socket=/run/docker/plugins/slackwater.sock
    export DOCKER_HOST="unix://$root/docker.sock"
    dockerd --data-root "$root/data" --exec-root "$root/exec" --host "$DOCKER_HOST" --pidfile "$root/docker.pid" --storage-driver vfs \
        --iptables=false --ip6tables=false --ip-forward=false --bridge=none --oom-score-adjust 0 > dockerd.log 2>&1 &
    until docker version > /dev/null 2>&1; do
        kill -0 $! || { cat dockerd.log; exit 1; }
        sleep 0.1
    done
    engine() { docker "$@"; }
    ;;
esac

run() { engine run --rm --network=none --log-driver=none --ulimit nofile=64:64 --ulimit nproc=1000:1000 "$@"; }

"$slackwater" daemon --cache 64MiB --arena "/dev/shm/$(basename "$root")-engine.arena" & daemon=$!
until "$slackwater" ls > /dev/null 2>&1; do
    kill -0 $daemon
    sleep 0.1
done
start_plugin

mkdir -p image/bin image/data
cp "$(command -v busybox)" image/bin/busybox
ln -s busybox image/bin/sh
tar -C image -cf image.tar .
engine import image.tar image

echo "STEP a volume is made, and a container has it"
engine volume create --driver slackwater --opt slackwater.dontcache=on made
mkfifo end
exec 3<> end
run --interactive --volume made:/data image sh -c 'echo one > /data/one && read line' < end & holder=$!
until ls mounts/*/one 2> /dev/null; do kill -0 $holder; sleep 0.1; done

echo "STEP the plugin is killed, and a second container has the volume"
kill -9 $plugin
wait $plugin || true
rm "$socket"
start_plugin
run --volume made:/data image sh -c 'test "$(busybox cat /data/one)" = one && echo two > /data/two'
kill -0 $holder
ls mounts/*/one

echo "STEP the last container ends: everything is in the pool, and nothing is mounted"
echo > end
wait $holder
"$slackwater" ls | grep "^No volumes"
test "$(cat pool/*/one pool/*/two | tr -d '\n')" = onetwo
engine volume ls
engine volume rm made
test -z "$(ls -A pool)"

echo "STEP a directory that exists stays"
engine volume create --driver slackwater --opt source="$root/mine" existing
run --volume existing:/data image sh -c 'echo three > /data/three'
engine volume rm existing
test "$(cat mine/three)" = three

echo "STEP a refused volume is named with the reason"
if engine volume create --driver slackwater --opt slackwater.dirty-limit=lots refused; then exit 1; fi
echo "STEP done"
