//! A directory with many real files to copy, and a few of each kind of object that a file system can hold.

use std::path::{Path, PathBuf};

use super::ground::make_open_directory;
use super::program::{NOBODY, Program, User};

/// Files at least.
const FILES: u32 = 10_000;

/// Takes FILES small files of this machine into the current directory: documentation of Rust, the system's, and what
/// cargo unpacked. On a machine with few files it copies them repeatedly.
const TAKE: &str = r#"
for ((n = 0; n < 100; n++)); do
    for source in "$(rustc --print sysroot)/share/doc" /usr/share /usr/include "${CARGO_HOME:-$HOME/.cargo}/registry/src"; do
        left=$((FILES - $(find . -type f | wc -l)))
        if ((left <= 0)); then exit; fi
        if ! [ -d "$source" ]; then continue; fi
        part=$PWD/$n${source//\//-}
        mkdir "$part"
        { find "$source/" -xdev -type f -size -1024k -printf '%P\0' || true; } | { head -z -n $left > "$LIST"; cat > /dev/null; }
        tar -C "$source" --null -T "$LIST" -cf - | tar -C "$part" -xpf -
    done
done
echo "there are not $FILES files to be copied"
false
"#;

/// Makes the rare kinds in the current directory, for any user.
const RARE: &str = r#"
mkdir rare
cd rare
umask 022
long=$(printf 'n%.0s' {1..255})
echo long > "$long"
deep=.
for ((i = 0; i < 60; i++)); do deep=$deep/directory-number-$i; done
mkdir -p $deep
echo deep > $deep/file
printf 'a\tb\\c"d e' > $'odd \n name \xff'
ln -s target-that-is-not-there dangling
ln -s "$(printf 's%.0s' {1..1000})" symlink
echo linked > one
ln one two
mkdir names
ln one names/three
mkfifo fifo
: > empty
truncate -s 20M hole
truncate -s 10M sparse
for ((i = 0; i < 10; i++)); do echo $i | dd of=sparse bs=1 seek=$((i * 1000003)) conv=notrunc status=none; done
head -c 5000001 /dev/urandom > random
setfattr -n user.colour -v red one
setfattr -n user.bytes -v 0x00ff00 names
head -c 2000 /dev/zero | tr '\0' v | { read -r v || true; setfattr -n user.long -v "$v" sparse; }
setfacl -m u:daemon:rw,g:daemon:r random
setfacl -d -m u:daemon:rwx names
chmod 400 empty
chmod 1777 names
chmod 6755 two
touch -d '1960-02-03 04:05:06.789' random
touch -h -d '2100-01-01 00:00:00.000000001' dangling
touch -d '2001-02-03 04:05:06.123456789' .
"#;

/// The objects that only root may make or own.
const RARE_OF_ROOT: &str = r#"
cd rare
chmod 0 random
mknod null c 1 3
mknod disk b 7 200
mkdir other
echo other > other/file
chown -R daemon:nogroup other
setfattr -n trusted.mark -v seen other/file
chmod 4711 other/file
"#;

/// Makes a directory `tree` in `folder` with real files and rare ones, all owned by `user`.
pub(super) fn make(folder: &Path, user: User, log: &Path) -> Result<PathBuf, String> {
    let tree = folder.join("tree");
    make_open_directory(&tree)?;
    let list = folder.join("list");
    Program::shell(&format!("FILES={FILES}{TAKE}")).env("LIST", &list).within(&tree).run(log)?;
    if user == User::Nobody {
        // Before anything has an ACL, or a bit that a change of owner clears.
        Program::new("chown").args(&format!("-R {NOBODY}:{NOBODY}")).arg(&tree).run(log)?;
    }
    Program::shell(RARE).within(&tree).user(user).run(log)?;
    if user == User::Root {
        Program::shell(RARE_OF_ROOT).within(&tree).run(log)?;
    }
    Ok(tree)
}
