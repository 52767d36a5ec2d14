//! A folder as a store. What it says is stored is on the disk: files are synced, and so are the folders' entries.
//!
//! `LocalFileSystem` writes each object beside its place, as `name#1`, and gives it its name when it is whole: by a
//! rename, or by a hard link where it may not be there yet, which the kernel refuses if it is.

use super::{failure::About, object::ObjectBucket};
use crate::{Error, Result};
use bytes::Bytes;
use futures::{StreamExt, stream::BoxStream};
use object_store::local::LocalFileSystem;
use seawall_api::ErrorKind;
use std::{
    borrow::Cow,
    fs::{DirBuilder, File},
    io,
    ops::Range,
    os::unix::fs::{DirBuilderExt, FileExt},
    path::{Path, PathBuf},
    sync::Arc,
};

/// What is read at once. The library's own 8 KiB cost a thread's time each.
const PART: u64 = 256 << 10;

pub async fn open(folder: PathBuf) -> Result<ObjectBucket> {
    let opened = tokio::task::spawn_blocking(move || open_now(&folder)).await;
    opened.map_err(|error| Error::new(ErrorKind::Internal, "opening a folder failed").with_source(error))?
}

fn open_now(folder: &Path) -> Result<ObjectBucket> {
    let shown = folder.display();
    let unfit = |error: io::Error| {
        let kind = match error.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => ErrorKind::Denied,
            _ => ErrorKind::Invalid,
        };
        let why =
            format!("the folder {shown} cannot be made or opened: {error}; name one that can be written to");
        Error::new(kind, why).with_source(error)
    };
    make(folder).map_err(unfit)?;
    let folder = folder.canonicalize().map_err(unfit)?;
    // The library takes names for granted that it can write down.
    let Some(name) = folder.to_str() else {
        return Err(Error::invalid(format!(
            "the folder {shown} has a name that is not UTF-8; choose another"
        )));
    };
    let store = LocalFileSystem::new_with_prefix(&folder)
        .map_err(|error| Error::invalid(format!("{shown} cannot be a store: {error}")).with_source(error))?;
    let store = store.with_fsync(true).with_automatic_cleanup(true);
    let about = About { place: format!("file://{name}"), access: None };
    Ok(ObjectBucket::of_folder(Arc::new(store), about))
}

/// For nobody else, and there after a crash.
fn make(folder: &Path) -> io::Result<()> {
    let missing: Vec<&Path> = folder.ancestors().take_while(|above| !above.exists()).collect();
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    for parent in missing.iter().filter_map(|made| made.parent()) {
        File::open(parent)?.sync_all()?;
    }
    Ok(())
}

/// What a key is called on the disk. One whose name the library keeps for itself gets one more `#`.
pub fn stored(key: &str) -> Cow<'_, str> {
    match is_reserved(key) {
        true => format!("{key}#").into(),
        false => key.into(),
    }
}

/// The key of what is called so on the disk.
pub fn shown(path: &str) -> Cow<'_, str> {
    match path.strip_suffix('#') {
        Some(key) if is_reserved(key) => key.into(),
        _ => path.into(),
    }
}

/// Names that the library does not take, and the same with more `#` behind them.
fn is_reserved(key: &str) -> bool {
    let name = key.rsplit('/').next().unwrap_or(key).trim_end_matches('#');
    // `C:` at the end of a path is a drive of Windows to it, everywhere, and gets a slash.
    let drive = matches!(name.as_bytes(), [.., letter, b':' | b'|'] if letter.is_ascii_alphabetic());
    is_unfinished(name) || drive
}

/// Whether a file of a folder's store is being written, or was when a process died: `name#12`. No object has such a name.
pub fn is_unfinished(name: &str) -> bool {
    name.split_once('#')
        .is_some_and(|(_, behind)| !behind.is_empty() && behind.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The bytes of a range of a file.
pub fn parts(file: File, range: Range<u64>) -> BoxStream<'static, object_store::Result<Bytes>> {
    let start = (Arc::new(file), range);
    futures::stream::try_unfold(start, |(file, range)| async move {
        if range.is_empty() {
            return Ok(None);
        }
        let (at, end) = (range.start, range.end.min(range.start + PART));
        let reader = file.clone();
        let part = tokio::task::spawn_blocking(move || {
            let mut part = vec![0u8; (end - at) as usize];
            reader.read_exact_at(&mut part, at).map(|()| Bytes::from(part))
        });
        let part = part
            .await?
            .map_err(|error| object_store::Error::Generic { store: "files", source: error.into() })?;
        Ok::<_, object_store::Error>(Some((part, (file, end..range.end))))
    })
    .boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_is_taken_for_what_the_library_keeps_for_itself() {
        for (key, name) in [
            ("a", "a"),
            ("a#", "a#"),
            ("a#1", "a#1#"),
            ("a#1#", "a#1##"),
            ("d#1/a", "d#1/a"),
            ("d/#12", "d/#12#"),
            ("a#1b", "a#1b"),
            ("a##1", "a##1"),
            ("a#1#2", "a#1#2"),
            ("d/TODO:", "d/TODO:#"),
            ("TODO:#", "TODO:##"),
            ("C|", "C|#"),
            ("C:/a", "C:/a"),
            ("12:", "12:"),
        ] {
            assert_eq!(stored(key), name);
            assert_eq!(shown(name), key);
        }
    }

    #[tokio::test]
    async fn a_folder_that_cannot_be_made_is_told() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = open(file.path().join("x")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("name one that can be written to"), "{error}");
    }
}
