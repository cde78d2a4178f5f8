//! Where volumes are made.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};
use slackwater_control::exit::Failure;
use slackwater_control::name;

use crate::limits::shown;
use crate::object;

/// Where a volume is made. Two that are equal are the same place; the reverse holds only without symbolic links.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Pool {
    /// A directory: the volume is a directory in it.
    Directory(PathBuf),
    /// The URL of a prefix in an object store: the volume is an object volume below it.
    Store(String),
    /// The place of a volume without a pool: this directory, or the object volume at this URL. It exists already, and
    /// stays when the volume is removed.
    Existing(PathBuf),
}

impl Pool {
    /// Reads the absolute path of a directory, or a URL.
    ///
    /// # Errors
    /// The text is neither; or it is a URL, and this build has no object stores. Whether the place exists shows when a
    /// volume is made.
    pub(crate) fn parse(text: &str) -> Result<Self, Failure> {
        Ok(match place("pool", text)? {
            Place::Directory(path) => Self::Directory(path),
            Place::Url(url) => Self::Store(url),
        })
    }

    /// Reads the path or URL of a volume that exists already.
    ///
    /// # Errors
    /// As [`Pool::parse`].
    pub(crate) fn parse_existing(text: &str) -> Result<Self, Failure> {
        Ok(Self::Existing(match place("source", text)? {
            Place::Directory(path) => path,
            Place::Url(url) => url.into(),
        }))
    }

    /// The source of a new volume. That of an object volume never had another volume: a process that still writes to a
    /// removed one, which it lost to another process, does no harm to the next volume of the name.
    pub(super) fn source_of(&self, id: &str) -> String {
        match self {
            Self::Directory(pool) => pool.join(id).to_string_lossy().into_owned(),
            // The keys of a hasher are random.
            Self::Store(url) => format!("{url}/{id}-{:016x}", RandomState::new().build_hasher().finish()),
            Self::Existing(source) => source.to_string_lossy().into_owned(),
        }
    }

    /// Whether [`Pool::source_of`] can give this source.
    pub(super) fn has(&self, source: &str, id: &str) -> bool {
        match self {
            Self::Directory(_) | Self::Existing(_) => source == self.source_of(id),
            Self::Store(url) => {
                let rest = source.strip_prefix(url.as_str()).and_then(|rest| rest.strip_prefix('/'));
                let number = rest.and_then(|rest| rest.strip_prefix(id)).and_then(|rest| rest.strip_prefix('-'));
                number.is_some_and(|number| number.len() == 16 && number.bytes().all(|digit| digit.is_ascii_hexdigit()))
            }
        }
    }

    /// Whether the pool's volumes are object volumes.
    pub(super) fn is_store(&self) -> bool {
        match self {
            Self::Directory(_) => false,
            Self::Store(_) => true,
            Self::Existing(source) => name::is_url(source),
        }
    }
}

enum Place {
    Directory(PathBuf),
    Url(String),
}

/// The place that `text` means, which is the value of `key`.
fn place(key: &str, text: &str) -> Result<Place, Failure> {
    let path = Path::new(text);
    if name::is_url(path) {
        if name::is_in_memory(path) {
            return Err(Failure::usage(format!("{key}={}: a store in memory ends with its process", shown(text)))
                .advise(format!("write for example {key}=file:///srv/store or {key}=s3://bucket/prefix")));
        }
        return object::canonical_url(text).map(Place::Url);
    }
    let is_plain = path.is_absolute() && !text.contains('\0') && !path.components().any(|c| c == Component::ParentDir);
    if !is_plain {
        return Err(Failure::usage(format!(
            "{key}=\"{}\" is neither an absolute path without `..` nor a URL",
            shown(text)
        ))
        .advise(format!("write for example {key}=/srv/{key} or {key}=s3://bucket/prefix")));
    }
    // One spelling for each path.
    Ok(Place::Directory(path.components().collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_an_absolute_path_or_a_url() {
        for text in ["/srv/pool", "/srv//pool/", "/srv/./pool"] {
            assert_eq!(Pool::parse(text), Ok(Pool::Directory("/srv/pool".into())), "{text}");
        }
        for text in ["", "pool", "./pool", "/srv/../pool", "/srv/\0", "memory:x", "\u{1b}[2J"] {
            let refusal = Pool::parse(text).unwrap_err().to_string();
            assert!(refusal.contains("pool=") && !refusal.contains('\u{1b}'), "{text}: {refusal}");
        }
        assert!(Pool::parse_existing("x").unwrap_err().to_string().contains("source="));
    }

    #[test]
    #[cfg(feature = "object")]
    fn a_url_is_checked_and_has_one_spelling() {
        assert_eq!(Pool::parse("s3://bucket/prefix/"), Ok(Pool::Store("s3://bucket/prefix".into())));
        assert!(Pool::parse("s3://bucket/prefix").unwrap().is_store());
        assert!(Pool::parse_existing("s3://bucket/prefix").unwrap().is_store());
        for text in ["s3://", "ftp://host/x", "s3://key:secret@bucket/x"] {
            let refusal = Pool::parse(text).unwrap_err().to_string();
            assert!(!refusal.contains("secret"), "{text}: {refusal}");
        }
    }

    #[test]
    #[cfg(not(feature = "object"))]
    fn urls_are_refused_without_object_stores() {
        assert!(Pool::parse("s3://bucket/x").unwrap_err().to_string().contains("--features object"));
    }
}
