//! A small volume with one of everything, and a way to damage it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use slackwater::backend::{NewNode, Removal, XattrMode};
use slackwater_sync::shim::Arc;

use crate::check::run::{Subject, check, repair};
use crate::check::{FsckReport, Severity};
use crate::contents::map;
use crate::format::{
    Decode, Encode, Entries, Footer, Inode, Key, ROOT, SegmentId, SegmentPlace, SegmentRecord, Stored, hash_of_name,
};
use crate::names;
use crate::runtime;
use crate::segments::{FOLDER, path_of};
use crate::tree::{Place, Stop, Tree, TreeOptions, View};

const SALT: u64 = 7;
/// The bytes of the file whose data is an object.
pub(super) const BIG_BYTES: u32 = 200_000;

/// The volume.
///
/// ```text
/// /big         100 MiB, of which BIG_BYTES are stored in an object, with a large attribute
/// /dir/link    the same file
/// /dir/small   5,000 bytes in a blob
/// /dir/sub     an empty directory
/// /symlink
/// ```
/// and an orphan.
pub(super) struct Rig {
    pub(super) store: Arc<InMemory>,
    place: Place,
    pub(super) big: u64,
    pub(super) dir: u64,
    pub(super) small: u64,
    pub(super) sub: u64,
    pub(super) symlink: u64,
    pub(super) orphan: u64,
    /// The segment with the data of `big`.
    pub(super) object: SegmentId,
    /// The segment with the data of `small`.
    pub(super) blob: SegmentId,
}

pub(super) fn block_on<T>(test: impl Future<Output = T>) -> T {
    runtime::handle().expect("threads").block_on(test)
}

impl Rig {
    /// Makes the volume.
    pub(super) async fn new() -> Self {
        let store = Arc::new(InMemory::new());
        let objects: Arc<dyn ObjectStore> = store.clone();
        let place = Place::alone(objects);
        let tree = open(&place).await;
        let object = tree.new_segment_id();
        let data: Bytes = (0..BIG_BYTES).map(|at| (at * 7 + at / 4096) as u8).collect();
        let crc32c = data.chunks(64 << 10).map(crc32c::crc32c).collect();
        let stored = Stored { segment: object, offset: 0, stored_len: BIG_BYTES, skip: 0, crc32c };
        let body: Bytes = [data, Footer::default().to_bytes()].concat().into();
        store.put(&path_of(object), body.into()).await.expect("puts");

        let make = |view: &mut View<'_>, dir, name: &str, what: &NewNode| {
            Ok::<u64, Stop>(names::make(view, dir, OsStr::new(name), what, 0o755, None)?.0)
        };
        tree.run(|view| {
            names::make_root(view, 0o755, (0, 0));
            Ok(())
        })
        .await
        .expect("makes a root");
        let rig = tree
            .run(|view| {
                let big = make(view, ROOT, "big", &NewNode::File)?;
                let dir = make(view, ROOT, "dir", &NewNode::Directory)?;
                let small = make(view, dir, "small", &NewNode::File)?;
                let sub = make(view, dir, "sub", &NewNode::Directory)?;
                let symlink = make(view, ROOT, "symlink", &NewNode::Symlink("big".into()))?;
                let orphan = make(view, ROOT, "orphan", &NewNode::File)?;
                names::remove(view, ROOT, OsStr::new("orphan"), Removal::File)?;
                names::link(view, big, dir, OsStr::new("link"))?;
                names::setxattr(view, big, OsStr::new("user.large"), &[7; 20_000], XattrMode::Set)?;

                let record = SegmentRecord::new(SegmentPlace::Object, BIG_BYTES.into());
                view.put(Key::Segment(object), record.encode());
                map::write(view, big, 0, &stored)?;
                map::truncate(view, big, 100 << 20)?;
                let bytes = Bytes::from(vec![5; 5_000]);
                let crc = crc32c::crc32c(&bytes);
                let (blob, offset) = view.append_small(small, 0, crc, bytes);
                let stored = Stored { segment: blob, offset, stored_len: 5_000, skip: 0, crc32c: vec![crc] };
                map::write(view, small, 0, &stored)?;
                let (store, place) = (store.clone(), place.clone());
                Ok(Self { store, place, big, dir, small, sub, symlink, orphan, object, blob })
            })
            .await
            .expect("makes files");
        tree.commit().await.expect("commits");
        rig
    }

    fn subject(&self, store: Arc<dyn ObjectStore>) -> Subject {
        Subject { store, salt: SALT, data: true }
    }

    /// Changes records without care.
    pub(super) async fn damage(&self, mut damage: impl FnMut(&mut View<'_>, &Self) -> std::result::Result<(), Stop>) {
        let tree = open(&self.place).await;
        tree.run(|view| damage(view, self)).await.expect("damages");
        tree.commit().await.expect("commits");
    }

    pub(super) async fn check(&self) -> FsckReport {
        self.check_on(self.store.clone()).await
    }

    /// A check through another store on the same objects.
    pub(super) async fn check_on(&self, store: Arc<dyn ObjectStore>) -> FsckReport {
        check(&self.subject(store), &mut |_| ()).await.expect("checks")
    }

    pub(super) async fn repair(&self) -> FsckReport {
        self.repair_on(self.store.clone()).await
    }

    /// A repair through another store on the same objects.
    pub(super) async fn repair_on(&self, store: Arc<dyn ObjectStore>) -> FsckReport {
        let tree = open(&self.place).await;
        repair(&self.subject(store), &tree, &mut |_| ()).await.expect("repairs")
    }

    /// Finds an error whose text has `text`, repairs all errors, and finds none.
    pub(super) async fn is_repaired(&self, severity: Severity, text: &str) {
        let found = self.check().await;
        let is_found = found.findings.iter().any(|finding| finding.text.contains(text) && finding.severity == severity);
        assert!(is_found, "{severity:?} {text:?} is not in {found:#?}");
        assert_eq!(found.errors_left, found.findings.len() as u64);
        assert_eq!(self.check().await.findings, found.findings, "a check changes nothing");

        let report = self.repair().await;
        assert_eq!(report.errors_left, 0, "{report:#?}");
        assert!(report.findings.iter().all(|finding| finding.is_repaired), "{report:#?}");
        let clean = self.check().await;
        assert_eq!(clean.findings, [], "after the repair");
    }

    /// All paths from the root.
    pub(super) async fn tree(&self) -> BTreeMap<String, u64> {
        let tree = open(&self.place).await;
        let mut found = BTreeMap::new();
        let mut directories = vec![(String::new(), ROOT)];
        while let Some((path, dir)) = directories.pop() {
            for (entry, inode) in tree.run(|view| names::readdir_plus(view, dir, 0)).await.expect("lists") {
                let path = format!("{path}/{}", entry.name.display());
                found.insert(path.clone(), entry.ino);
                if inode.is_some_and(|inode| inode.mode & 0o170_000 == 0o040_000) {
                    directories.push((path, entry.ino));
                }
            }
        }
        found
    }

    pub(super) async fn inode(&self, ino: u64) -> Inode {
        open(&self.place).await.run(|view| names::inode(view, ino)).await.expect("it exists")
    }

    pub(super) fn hash(name: &str) -> u64 {
        hash_of_name(SALT, OsStr::new(name))
    }
}

/// A store whose listings of segments are empty.
#[derive(Debug)]
pub(super) struct NoListing(pub(super) Arc<InMemory>);

impl fmt::Display for NoListing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for NoListing {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.0.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(&self, path: &Path, options: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.0.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.0.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.0.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        match prefix.is_some_and(|prefix| prefix.as_ref() == FOLDER) {
            true => futures::stream::empty().boxed(),
            false => self.0.list(prefix),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.0.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.0.copy_opts(from, to, options).await
    }
}

/// Changes an inode alone.
pub(super) fn change_inode(
    view: &mut View<'_>,
    ino: u64,
    change: impl FnOnce(&mut Inode),
) -> std::result::Result<(), Stop> {
    let mut inode = names::inode(view, ino)?;
    change(&mut inode);
    names::put_inode(view, ino, &inode);
    Ok(())
}

/// Takes a name's entries away, and nothing else. Returns what was there.
pub(super) fn take_name(view: &mut View<'_>, dir: u64, name: &str) -> std::result::Result<Entries, Stop> {
    let key = Key::Entries { dir, hash: Rig::hash(name) };
    let entries = view.get(key)?.expect("the name exists");
    view.delete(key);
    Ok(Entries::decode(&entries).expect("valid"))
}

async fn open(place: &Place) -> Arc<Tree> {
    let options = TreeOptions {
        salt: SALT,
        commit_age: Duration::from_secs(100_000),
        sync_limit: Duration::from_secs(30),
        may_be_damaged: true,
        log: None,
    };
    Tree::open(place.clone(), options).await.expect("opens").0
}
