//! Copies of a large tree by tar, rsync and cp, as root and as an ordinary user, compared with the original when
//! all data is written back.

use std::path::Path;

use super::ground::{Ground, make_open_directory};
use super::program::{Program, User};
use super::{Effort, Suite, real_tree};

pub(super) const SUITE: Suite = Suite {
    name: "trees",
    about: "10,000 files copied by tar, rsync and cp, as root and as `nobody`",
    needs: &["rsync", "tar", "setfacl", "setfattr"],
    run,
};

const USERS: [(&str, User); 2] = [("root", User::Root), ("nobody", User::Nobody)];

/// Each copies the directory TREE to COPY, which exists.
const COPIES: [(&str, &str); 3] = [
    (
        "tar",
        "tar -C \"$TREE\" --acls --xattrs --xattrs-include='*' -S -cf - . \
         | tar -C \"$COPY\" --acls --xattrs --xattrs-include='*' -xpf -",
    ),
    ("rsync", "rsync -aHAX \"$TREE/\" \"$COPY/\""),
    ("cp", "cp -a \"$TREE/.\" \"$COPY/\""),
];

fn run(ground: &mut Ground, effort: &Effort) -> Result<String, String> {
    let log = ground.log().to_owned();
    let limit = effort.pick(600, 180);
    let mut trees = Vec::new();
    for (name, user) in USERS {
        let folder = ground.beside().join(name);
        make_open_directory(&folder)?;
        trees.push((name, user, real_tree::make(&folder, user, &log)?));
    }
    for (name, user, tree) in &trees {
        let home = ground.path().join(name);
        make_open_directory(&home)?;
        for (method, script) in COPIES {
            let copy = home.join(method);
            Program::new("mkdir").arg(&copy).user(*user).run(&log)?;
            let program = Program::shell(script).env("TREE", tree).env("COPY", &copy).user(*user).seconds(limit);
            program.run(&log).map_err(|message| format!("{method} as {name}: {message}"))?;
        }
        // Read back through the mount, beside data that is still dirty.
        compare(tree, &home.join("rsync"), *user, &log)?;
    }
    let source = ground.settle()?;
    for (name, user, tree) in &trees {
        for (method, _) in COPIES {
            let copy = source.join(name).join(method);
            compare(tree, &copy, *user, &log).map_err(|message| format!("in the source: {message}"))?;
        }
    }
    Ok(format!("{} copies, each identical in the source", trees.len() * COPIES.len()))
}

/// Fails with the differences.
fn compare(tree: &Path, copy: &Path, user: User, log: &Path) -> Result<(), String> {
    let slashed = |path: &Path| format!("{}/", path.display());
    let rsync = Program::new("rsync").args("-aHAXin --checksum --delete").arg(slashed(tree)).arg(slashed(copy));
    let differences = rsync.user(user).output(log)?;
    if differences.is_empty() {
        return Ok(());
    }
    let shown: Vec<&str> = differences.lines().take(20).collect();
    let count = differences.lines().count();
    Err(format!("{} differs from the original in {count} names\n    {}", copy.display(), shown.join("\n    ")))
}
