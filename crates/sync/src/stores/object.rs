//! A store of `object_store` as a [`Bucket`].
//!
//! Invariant: a key goes in and comes out as it is, whatever signs are in it, and nothing waits for ever.

use super::{failure::About, files, upload};
use crate::{
    Error, Result,
    bucket::{Bodies, Bucket, Object},
};
use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream::BoxStream};
use object_store::{GetOptions, GetResultPayload, ObjectStore, PutMode, PutOptions, PutPayload, path::Path};
use seawall_api::ErrorKind;
use std::{fmt, ops::Range, sync::Arc, time::Duration};
use tokio::time::timeout;

/// How long an answer, or the next part of one, may take.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of a second on the slowest line that is waited for.
const SLOWEST: u64 = 64 << 10;

pub struct ObjectBucket {
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) about: About,
    /// A folder, which keeps some names for itself.
    is_folder: bool,
}

impl fmt::Debug for ObjectBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Nothing of the store: it holds the credentials.
        f.debug_struct("ObjectBucket").field("place", &self.about.place).finish_non_exhaustive()
    }
}

impl ObjectBucket {
    pub(super) fn new(store: Arc<dyn ObjectStore>, about: About) -> ObjectBucket {
        ObjectBucket { store, about, is_folder: false }
    }

    pub(super) fn of_folder(store: Arc<dyn ObjectStore>, about: About) -> ObjectBucket {
        ObjectBucket { store, about, is_folder: true }
    }

    /// Parsed, not converted: a conversion would store `a%b` as `a%25b`, which other tools would not find.
    pub(super) fn path(&self, key: &str) -> Result<Path> {
        let name = match self.is_folder {
            true => files::stored(key),
            false => key.into(),
        };
        let unfit = |why: String| Error::invalid(format!("{key:?} cannot be the key of an object: {why}"));
        let path = Path::parse(&name).map_err(|error| unfit(error.to_string()).with_source(error))?;
        let parsed: &str = path.as_ref();
        let is_same = !parsed.is_empty() && *parsed == *name;
        match is_same {
            true => Ok(path),
            false => Err(unfit("a slash stands at its begin or end, or it is empty".to_owned())),
        }
    }

    fn key(&self, path: Path) -> String {
        let name = String::from(path);
        match self.is_folder {
            true => files::shown(&name).into_owned(),
            false => name,
        }
    }

    /// The folder that is named by what ends with a slash; none where that is the root.
    fn folder(prefix: &str) -> Result<Option<Path>> {
        let folder = prefix.trim_end_matches('/');
        let path = Path::parse(folder).map_err(|error| {
            Error::invalid(format!("{prefix:?} names no folder: {error}")).with_source(error)
        })?;
        Ok(Some(path).filter(|path| !path.is_root()))
    }

    /// Waits for what a request comes to. So many bytes go with it.
    pub(super) async fn answer<T>(
        &self,
        bytes: usize,
        work: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T> {
        let patience = patience(bytes);
        match timeout(patience, work).await {
            Ok(done) => done.map_err(|error| self.about.failure(error)),
            Err(_) => Err(self.about.silence(patience)),
        }
    }

    pub(super) async fn put_payload(&self, key: &str, body: PutPayload, mode: PutMode) -> Result<()> {
        let path = self.path(key)?;
        let bytes = body.content_length();
        let put = self.store.put_opts(&path, body, PutOptions::from(mode));
        self.answer(bytes, put).await.map(drop)
    }
}

pub fn patience(bytes: usize) -> Duration {
    PATIENCE + Duration::from_secs(bytes as u64 / SLOWEST)
}

#[async_trait]
impl Bucket for ObjectBucket {
    fn place(&self) -> String {
        self.about.place.clone()
    }

    async fn create(&self, key: &str, body: Bytes) -> Result<bool> {
        match self.put_payload(key, body.into(), PutMode::Create).await {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn put(&self, key: &str, body: Bytes) -> Result<()> {
        self.put_payload(key, body.into(), PutMode::Overwrite).await
    }

    async fn upload(&self, key: &str, body: Bodies) -> Result<()> {
        upload::upload(self, key, body).await
    }

    async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Bodies> {
        let path = self.path(key)?;
        if range.as_ref().is_some_and(Range::is_empty) {
            return Ok(futures::stream::empty().boxed());
        }
        let options = GetOptions::new().with_range(range);
        let found = self.answer(0, self.store.get_opts(&path, options)).await;
        let found = found.map_err(|error| match error.kind() {
            ErrorKind::NotFound => error.on(key),
            _ => error,
        })?;
        let size = found.range.end - found.range.start;
        let parts = match found.payload {
            GetResultPayload::File(file, _) => files::parts(file, found.range),
            GetResultPayload::Stream(parts) => parts,
        };
        Ok(counted(parts, size, self.about.clone()))
    }

    async fn list(&self, prefix: &str, after: Option<&str>) -> Result<Vec<Object>> {
        // A store knows whole folders only; what does not begin with the rest of the prefix is left out here.
        let folder = Self::folder(prefix.rfind('/').map_or("", |at| &prefix[..=at]))?;
        let mut listed = match offset(prefix, after) {
            Some(offset) => self.store.list_with_offset(folder.as_ref(), &offset),
            None => self.store.list(folder.as_ref()),
        };
        let mut objects = Vec::new();
        while let Some(found) = next(&self.about, &mut listed).await? {
            let key = self.key(found.location);
            if key.starts_with(prefix) && after.is_none_or(|after| key.as_str() > after) {
                objects.push(Object { key, size: found.size });
            }
        }
        // Not every store has an order.
        objects.sort();
        Ok(objects)
    }

    async fn folders(&self, prefix: &str) -> Result<Vec<String>> {
        let folder = Self::folder(prefix)?;
        let listed = self.answer(0, self.store.list_with_delimiter(folder.as_ref())).await?;
        let name = |path: &Path| path.filename().map(str::to_owned);
        let mut names: Vec<String> = listed.common_prefixes.iter().filter_map(name).collect();
        names.sort();
        names.dedup();
        Ok(names)
    }

    async fn delete(&self, key: &str) -> Result<()> {
        let path = self.path(key)?;
        let mut deleted = self.store.delete_stream(futures::stream::iter([Ok(path)]).boxed());
        match self.answer(0, deleted.try_next()).await {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// A key that is not behind any that is asked for, and as near as a store can begin at; none: from the start.
fn offset(prefix: &str, after: Option<&str>) -> Option<Path> {
    // All but the last sign of the prefix sorts before everything that begins with all of it.
    let mut signs = prefix.chars();
    signs.next_back();
    let start = after.unwrap_or_default().max(signs.as_str());
    let path = Path::parse(start).ok().filter(|path| !path.is_root())?;
    let parsed: &str = path.as_ref();
    // Parsing takes slashes away, and what is left may be behind.
    let is_before = parsed <= start;
    is_before.then_some(path)
}

/// The next of a store's answer.
async fn next<T>(
    about: &About,
    stream: &mut BoxStream<'static, object_store::Result<T>>,
) -> Result<Option<T>> {
    match timeout(PATIENCE, stream.try_next()).await {
        Ok(next) => next.map_err(|error| about.failure(error)),
        Err(_) => Err(about.silence(PATIENCE)),
    }
}

/// A body that ends early is an error, not a shorter body.
fn counted(parts: BoxStream<'static, object_store::Result<Bytes>>, size: u64, about: About) -> Bodies {
    let start = (parts, size, about);
    futures::stream::try_unfold(start, |(mut parts, left, about)| async move {
        let Some(part) = next(&about, &mut parts).await? else {
            return match left {
                0 => Ok(None),
                _ => Err(Error::unavailable(format!("{} sent {left} bytes too few", about.place))),
            };
        };
        let Some(left) = left.checked_sub(part.len() as u64) else {
            return Err(Error::unavailable(format!("{} sent more than was asked for", about.place)));
        };
        Ok::<_, Error>(Some((part, (parts, left, about))))
    })
    .boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(prefix: &str, after: Option<&str>) -> Option<String> {
        offset(prefix, after).map(String::from)
    }

    #[test]
    fn lists_begin_near_what_is_asked_for_and_never_behind_it() {
        assert_eq!(begin("", None), None);
        assert_eq!(begin("a/", None).as_deref(), Some("a"));
        assert_eq!(begin(".packs/0007-", None).as_deref(), Some(".packs/0007"));
        assert_eq!(begin(".commits/", Some(".commits/0007.99")).as_deref(), Some(".commits/0007.99"));
        assert_eq!(begin("b/", Some("a/x")).as_deref(), Some("b"));
        // Without its slash it would be behind `0`.
        assert_eq!(begin("", Some("/a")), None);
        assert_eq!(begin("a//b", None), None);
    }

    #[test]
    fn a_slow_line_is_waited_for() {
        assert_eq!(patience(0), Duration::from_secs(60));
        assert_eq!(patience(8 << 20), Duration::from_secs(60 + 128));
    }

    #[test]
    fn keys_that_no_store_takes_are_refused() {
        let about = About { place: "memory".into(), access: None };
        let bucket = ObjectBucket::new(Arc::new(object_store::memory::InMemory::new()), about);
        for bad in ["", "/", "/a", "a/", "a//b", "a/../b", ".", "a\nb"] {
            assert_eq!(bucket.path(bad).unwrap_err().kind(), ErrorKind::Invalid, "{bad:?}");
        }
        for good in ["a", ".probe/x", "a b%25#?*\\\u{e4}", "a#1"] {
            assert_eq!(bucket.path(good).unwrap().to_string(), good);
        }
    }
}
