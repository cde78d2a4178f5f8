//! Dispatch of calls to methods.

use slackwater::ErrorKind;
use slackwater::backend::Call;

use super::volume::Volume;

impl Volume {
    /// Runs `call` and answers it.
    pub(super) fn serve(&self, call: Call) {
        if let Some(closer) = &self.closer {
            closer.help();
        }
        match call {
            Call::Root { done } => done.complete(self.open_root()),
            Call::Lookup { dir, name, done } => done.complete(self.lookup(&dir, &name)),
            Call::Reopen { handle, id, nameless, done } => done.complete(self.reopen(&handle, id, nameless)),
            Call::Parent { dir, done } => done.complete(self.parent(&dir)),
            Call::Getattr { node, done } => done.complete(self.getattr(&node)),
            Call::Setattr { node, change, done } => {
                done.complete(self.changed(&[&node], self.setattr(&node, change)));
            }
            Call::Make { dir, name, what, mode, creator, done } => {
                let made = self.changed(&[&dir], self.make(&dir, &name, &what, mode, creator));
                done.complete(made.and_then(|found| {
                    let node = found.node.clone();
                    self.changed(&[&node], Ok(found))
                }));
            }
            Call::Link { node, dir, name, done } => {
                done.complete(self.changed(&[&node, &dir], self.link(&node, &dir, &name)));
            }
            Call::Remove { dir, name, removal, done } => {
                done.complete(self.removed(&[&dir], self.remove(&dir, &name, removal)));
            }
            Call::Rename { from_dir, from, to_dir, to, mode, done } => {
                let renamed = self.rename((&from_dir, &from), (&to_dir, &to), mode);
                done.complete(self.removed(&[&from_dir, &to_dir], renamed));
            }
            Call::Readlink { node, done } => done.complete(self.readlink(&node)),
            Call::Readdir { node, cookie, done } => done.complete(self.readdir(&node, cookie)),
            Call::Read(mut unit) => {
                let read = self.read(&mut unit);
                unit.complete(read);
            }
            Call::Write(unit) => {
                let written = self.changed(&[unit.node()], self.write(&unit));
                unit.complete(written);
            }
            Call::Sync { node, scope, done } => done.complete(self.sync(&node, scope)),
            Call::SyncVolume { done } => done.complete(self.sync_volume()),
            Call::Statfs { done } => done.complete(self.statfs()),
            Call::Tmpfile { dir, mode, creator, done } => done.complete(self.tmpfile(&dir, mode, creator)),
            Call::ReaddirPlus { node, cookie, done } => done.complete(self.readdir_plus(&node, cookie)),
            Call::Getxattr { node, name, done } => done.complete(self.getxattr(&node, &name)),
            Call::Setxattr { node, name, value, mode, done } => {
                done.complete(self.changed(&[&node], self.setxattr(&node, &name, &value, mode)));
            }
            Call::Listxattr { node, done } => done.complete(self.listxattr(&node)),
            Call::Removexattr { node, name, done } => {
                done.complete(self.changed(&[&node], self.removexattr(&node, &name)));
            }
            Call::Getflags { node, done } => done.complete(self.getflags(&node)),
            Call::Setflags { node, flags, done } => {
                done.complete(self.changed(&[&node], self.setflags(&node, flags)));
            }
            Call::Fallocate { node, mode, offset_bytes, len_bytes, done } => {
                let allocated = self.fallocate(&node, mode, offset_bytes, len_bytes);
                done.complete(self.changed(&[&node], allocated));
            }
            Call::Seek { node, offset_bytes, whence, done } => done.complete(self.seek(&node, offset_bytes, whence)),
            other => other.fail(ErrorKind::Unsupported.into()),
        }
    }
}
