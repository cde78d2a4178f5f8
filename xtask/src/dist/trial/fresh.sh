# Makes $1, the archive of a minimal Debian of release $2 from the mirror $3, unless it is there and not older than a week.
# Two runs at once make it once.
set -eu
exec 9> "$1.lock"
flock 9
if [ -n "$(find "$1" -mtime -7 2> /dev/null)" ]; then
    exit
fi
# Its mounts end with it.
unshare --mount mmdebstrap --quiet --variant=minbase --include=systemd --format=tar "$2" "$1.new" "deb $3 $2 main"
mv "$1.new" "$1"
