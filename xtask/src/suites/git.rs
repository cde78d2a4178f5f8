//! git: many small files, renames over lock files, hard links, mapped packs; and its own checksums at the end.

use super::ground::Ground;
use super::program::Program;
use super::{Effort, Suite};

pub(super) const SUITE: Suite = Suite { name: "git", about: "commits, clones, packs, fsck", needs: &["git"], run };

/// Files of the first commit.
const FILES: (u32, u32) = (5_000, 400);
/// Commits after it.
const COMMITS: (u32, u32) = (50, 10);

/// Works in the current directory. `clone --local` makes hard links.
const WORK: &str = r#"
git init -q -b main repository
cd repository
for ((i = 0; i < FILES; i++)); do
    d=$((i % 20))/$((i % 7))
    mkdir -p $d
    seq $i $((i + i % 500 + 1)) > $d/file-$i
done
git add .
git commit -q -m first
for ((c = 0; c < COMMITS; c++)); do
    for ((i = c; i < FILES; i += 11)); do echo "change $c" >> $((i % 20))/$((i % 7))/file-$i; done
    git mv $((c % 20))/$((c % 7))/file-$c renamed-$c
    git commit -q -a -m "change $c"
done
git checkout -q -b side HEAD~3
echo side > side
git add side
git commit -q -m side
git merge -q -m merge main
git checkout -q main
git stash list
git reset -q --hard HEAD~1
git merge -q --ff-only side
cd ..
git clone -q --local repository linked
git clone -q --no-local repository copied
for r in repository linked copied; do
    git -C $r gc -q --aggressive --prune=now
    git -C $r fsck --full --strict
    test -z "$(git -C $r status --porcelain)"
done
git -C copied worktree add -q ../worktree HEAD~2
cd copied
git repack -q -a -d -f
rm -rf 0
git checkout -q -- .
"#;

/// Checks the repositories in the source after the unmount.
const CHECK: &str = r#"
for r in repository linked copied; do
    git -C $r fsck --full --strict
    git -C $r update-index -q --refresh
    test -z "$(git -C $r status --porcelain)"
done
test "$(git -C repository rev-parse HEAD)" = "$(git -C linked rev-parse HEAD)"
test "$(git -C repository rev-parse HEAD^{tree})" = "$(git -C copied rev-parse HEAD^{tree})"
"#;

fn run(ground: &mut Ground, effort: &Effort) -> Result<String, String> {
    let (files, commits) = (effort.pick(FILES.0, FILES.1), effort.pick(COMMITS.0, COMMITS.1));
    // At a takeover, the ctime of a file may change: the source sets it when data or a time is written back once more. git
    // would see such a file as changed, until it has read it again.
    let trusts_ctime = if ground.is_killed() { "false" } else { "true" };
    // No settings of the user or the system.
    let git = |script: &str| {
        let mut program = Program::shell(script).seconds(effort.pick(900, 120)).env("HOME", "/nonexistent");
        for name in ["GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"] {
            program = program.env(name, "suite");
        }
        program = program.env("GIT_CONFIG_COUNT", "1").env("GIT_CONFIG_KEY_0", "core.trustctime");
        program = program.env("GIT_CONFIG_VALUE_0", trusts_ctime);
        program.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null")
    };
    let log = ground.log().to_owned();
    let numbers = format!("FILES={files} COMMITS={commits}\n");
    git(&(numbers + WORK)).within(ground.path()).run(&log)?;
    git(CHECK).within(ground.path()).run(&log)?;
    let source = ground.settle()?;
    git(CHECK).within(source).run(&log).map_err(|message| format!("in the source: {message}"))?;
    Ok(format!("{files} files, {commits} commits, 3 repositories sound in the source too"))
}
