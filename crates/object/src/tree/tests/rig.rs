//! A store in memory, and trees on it.

use std::path::PathBuf;

use bytes::Bytes;
use object_store::memory::InMemory;
use slackwater::BackendError;
use slackwater_sync::shim::Arc;

use crate::format::Key;
use crate::runtime;
use crate::tree::{LogPlace, Place, Stop, Tree, TreeOptions, View};

/// A volume's place in a store that outlives its trees.
pub(super) struct Rig {
    pub(super) place: Place,
    pub(super) options: TreeOptions,
}

impl Rig {
    pub(super) fn new() -> Self {
        let store = Arc::new(InMemory::new());
        let (place, options) = (Place::alone(store), TreeOptions::by_hand());
        Self { place, options }
    }

    /// Gives the trees a local log, in a folder that goes with the returned value.
    pub(super) fn log(&mut self, name: &str) -> Folder {
        let folder = Folder::new(name);
        self.options.log = Some(LogPlace { folder: folder.0.clone(), volume: [9; 16], must_continue: false });
        folder
    }

    /// The machine dies, and with it the log.
    pub(super) fn lose_log(&self) {
        let Some(LogPlace { folder, .. }) = &self.options.log else { return };
        for entry in std::fs::read_dir(folder).expect("reads") {
            // A dying tree may remove it at the same moment.
            if let Err(error) = std::fs::remove_file(entry.expect("reads").path()) {
                assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}");
            }
        }
    }

    pub(super) async fn open(&self) -> Arc<Tree> {
        let (tree, set_aside) = Tree::open(self.place.clone(), self.options.clone()).await.expect("opens");
        assert!(set_aside.is_empty());
        tree
    }
}

/// Uses the first numbers of inodes up, so that tests may use them.
pub(super) async fn take_inos(tree: &Tree, count: usize) {
    let taken = tree.run(|view| {
        (0..count).for_each(|_| {
            view.new_ino();
        });
        Ok(())
    });
    taken.await.expect("takes");
}

/// Runs a test in the crate's runtime.
pub(super) fn block_on<T>(test: impl Future<Output = T>) -> T {
    runtime::handle().expect("threads").block_on(test)
}

pub(super) async fn put(tree: &Tree, key: Key, value: &'static [u8]) -> Result<(), BackendError> {
    tree.run(|view| {
        view.put(key, Bytes::from_static(value));
        Ok(())
    })
    .await
}

pub(super) async fn delete(tree: &Tree, key: Key) -> Result<(), BackendError> {
    tree.run(|view| {
        view.delete(key);
        Ok(())
    })
    .await
}

pub(super) async fn get(tree: &Tree, key: Key) -> Option<Bytes> {
    tree.run(|view| view.get(key)).await.expect("reads")
}

pub(super) fn all(view: &mut View<'_>, limit: usize) -> Result<Vec<(Key, Bytes)>, Stop> {
    view.scan(Key::Inode(0), Key::Inode(u64::MAX), limit)
}

/// A folder that goes with the test.
pub(in crate::tree) struct Folder(PathBuf);

impl Folder {
    pub(in crate::tree) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("slackwater-object-log-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).expect("a new folder");
        Self(path)
    }

    pub(in crate::tree) fn path(&self) -> &std::path::Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
