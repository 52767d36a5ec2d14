//! Bodies on their way to the bucket. Each is hashed again here: the workspace's word is not taken for it.

use super::{
    Engine, Phase,
    pack::{self, Pack, Places},
};
use crate::{
    Error, Result,
    diff::Plan,
    retry::retry,
    sums::Hasher,
    tree::{File, Node, Place, Tree},
    versions::{Body, Head},
    workspace::Piece,
};
use bytes::Bytes;
use futures::{FutureExt, StreamExt, TryStreamExt, future::BoxFuture};
use seawall_api::files::FileName;
use std::{
    collections::{BTreeSet, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

/// Bodies from this size on are objects of their own.
const LARGE: u64 = 4 << 20;
const PACK_SIZE: u64 = 8 << 20;
/// The most files of one request to a workspace.
const MAX_FILES: usize = 2000;
const AT_ONCE: usize = 4;
const LARGE_AT_ONCE: usize = 2;

/// What this sync has in the bucket beside the versions there.
#[derive(Debug, Default)]
pub struct Uploads {
    places: Places,
    /// The end of the chain when they were known to be there.
    since: u64,
    /// Damaged in the bucket: the next version may not rely on them.
    distrusted: HashSet<Body>,
    /// Versions for which what a dead push left was looked for.
    resumed: BTreeSet<u64>,
    bytes: u64,
}

impl Uploads {
    /// Nothing refers to a condemned pack.
    pub fn forget(&mut self, condemned: &BTreeSet<Arc<str>>) {
        self.places.retain(|_, place| !condemned.contains(&place.object));
    }

    /// The first record that may speak of them; none where there is nothing to speak of.
    pub fn since(&self) -> Option<u64> {
        (!self.places.is_empty()).then_some(self.since)
    }

    pub fn known_until(&mut self, seq: u64) {
        self.since = seq;
    }

    pub fn distrust(&mut self, file: &File) {
        if let Some(Place { object, offset }) = &file.place {
            self.distrusted.insert(Body { object: object.clone(), offset: *offset, size: file.size });
        }
    }

    fn is_distrusted(&self, file: &File) -> bool {
        let body =
            |place: &Place| Body { object: place.object.clone(), offset: place.offset, size: file.size };
        file.place.as_ref().is_some_and(|place| self.distrusted.contains(&body(place)))
    }

    pub fn take_bytes(&mut self) -> u64 {
        std::mem::take(&mut self.bytes)
    }
}

/// A body that is to be uploaded: what it is, and a file that has it.
#[derive(Debug, Clone)]
struct Wanted {
    file: File,
    source: FileName,
}

impl Engine<'_> {
    /// Gives every file of the plan a place. The files that changed since the scan are returned.
    pub(super) async fn upload(
        &self,
        uploads: &mut Uploads,
        head: &Head,
        plan: &mut Plan,
        (local, remote): (&Tree, &Tree),
    ) -> Result<Vec<FileName>> {
        let seq = head.seq + 1;
        uploads.known_until(head.seq);
        let mut wanted = wanted(uploads, plan, local, remote);
        if !wanted.is_empty() && uploads.resumed.insert(seq) {
            self.resume(uploads, seq).await?;
            wanted = self::wanted(uploads, plan, local, remote);
        }
        for one in &wanted {
            tracing::debug!(path = %one.source, bytes = one.file.size, "a body is uploaded");
        }
        let bytes = wanted.iter().map(|wanted| wanted.file.size).sum();
        self.progress.phase(Phase::Uploading { files: wanted.len() as u64, bytes });
        let (large, small): (Vec<_>, Vec<_>) = wanted.into_iter().partition(|one| one.file.size >= LARGE);
        // Boxed, here and elsewhere: otherwise the compiler cannot see that a sync may move between threads.
        let packs: Vec<BoxFuture<'_, Result<Uploaded>>> =
            groups(small).into_iter().map(|group| self.upload_pack(seq, group).boxed()).collect();
        let mut done: Vec<Uploaded> =
            futures::stream::iter(packs).buffer_unordered(AT_ONCE).try_collect().await?;
        let alone: Vec<BoxFuture<'_, Result<Uploaded>>> =
            large.into_iter().map(|one| self.upload_large(seq, one).boxed()).collect();
        let alone: Vec<Uploaded> =
            futures::stream::iter(alone).buffer_unordered(LARGE_AT_ONCE).try_collect().await?;
        done.extend(alone);
        let mut changed = Vec::new();
        for Uploaded { places, bytes, changed: more } in done {
            uploads.places.extend(places);
            uploads.bytes += bytes;
            changed.extend(more);
        }
        if changed.is_empty() {
            settle(uploads, plan);
        }
        Ok(changed)
    }

    /// What a push for this version left when it died.
    async fn resume(&self, uploads: &mut Uploads, seq: u64) -> Result<()> {
        let (bucket, prefix) = (&*self.versions.bucket, pack::prefix(seq));
        let left = retry("looking for what is there already", || bucket.list(&prefix, None)).await?;
        let read = |object| {
            async move {
                match retry("reading a pack's list", || pack::contents(bucket, object)).await {
                    // Pruned since it was listed.
                    Err(error) if error.kind() == seawall_api::ErrorKind::NotFound => Ok(Places::new()),
                    read => read,
                }
            }
            .boxed()
        };
        let reads: Vec<BoxFuture<'_, Result<Places>>> = left.iter().map(read).collect();
        let found: Vec<Places> = futures::stream::iter(reads).buffer_unordered(AT_ONCE).try_collect().await?;
        for places in found {
            uploads.places.extend(places);
        }
        Ok(())
    }

    async fn upload_pack(&self, seq: u64, group: Vec<Wanted>) -> Result<Uploaded> {
        let sources = group.iter().map(|wanted| wanted.source.clone()).collect();
        let mut pieces = self.workspace.collect(sources).await.map_err(|error| error.during("reading"))?;
        let (mut pack, mut uploaded) = (Pack::default(), Uploaded::default());
        let mut body: Vec<u8> = Vec::new();
        while let Some(piece) = pieces.next().await {
            match piece.map_err(|error| error.during("reading"))? {
                Piece::Data(number, bytes) => {
                    let most = group.get(number).map_or(0, |wanted| wanted.file.size);
                    body.extend_from_slice(&bytes);
                    if body.len() as u64 > most {
                        return Err(liar("a body that is larger than it was"));
                    }
                }
                Piece::End(number) => {
                    let wanted = group.get(number).ok_or_else(|| liar("a file that nobody asked for"))?;
                    let found = crate::sums::Sums::of(&body);
                    match found.strong {
                        Some(strong) if found == wanted.file.sums => pack.add(strong, &body),
                        _ => uploaded.changed.push(wanted.source.clone()),
                    }
                    body.clear();
                }
                Piece::Changed(number) => {
                    let wanted = group.get(number).ok_or_else(|| liar("a file that nobody asked for"))?;
                    uploaded.changed.push(wanted.source.clone());
                    body.clear();
                }
            }
        }
        if pack.is_empty() {
            return Ok(uploaded);
        }
        let name = pack::name(seq, &self.versions.ids.next());
        let (bytes, places) = pack.finish(&name);
        retry("uploading", || self.versions.bucket.put(&name, bytes.clone()))
            .await
            .map_err(|error| error.on(shown(&group)))?;
        uploaded.bytes = bytes.len() as u64;
        self.progress.moved(uploaded.bytes);
        uploaded.places = places;
        Ok(uploaded)
    }

    /// A body that does not fit into memory: from the workspace to the store as it comes.
    async fn upload_large(&self, seq: u64, wanted: Wanted) -> Result<Uploaded> {
        let Some(strong) = wanted.file.sums.strong else { return Ok(Uploaded::default()) };
        let name = pack::large_name(seq, &self.versions.ids.next(), &strong);
        let moved = Arc::new(AtomicU64::new(0));
        let changed = Arc::new(AtomicBool::new(false));
        let done = retry("uploading", || async {
            moved.store(0, Ordering::Relaxed);
            let pieces = self.workspace.collect(vec![wanted.source.clone()]).await?;
            let body =
                checked(pieces, wanted.file.clone(), moved.clone(), changed.clone(), self.progress.clone());
            self.versions.bucket.upload(&name, body).await
        })
        .await;
        match done {
            Ok(()) => {
                let place = Place { object: name, offset: 0 };
                let places = Places::from([((strong, wanted.file.size), place)]);
                Ok(Uploaded { places, bytes: wanted.file.size, changed: Vec::new() })
            }
            Err(_) if changed.load(Ordering::Relaxed) => {
                Ok(Uploaded { changed: vec![wanted.source], ..Uploaded::default() })
            }
            Err(error) => Err(error.on(&wanted.source)),
        }
    }
}

/// Whether a body that is damaged in the bucket can be had from the workspace.
pub fn can_heal(uploads: &Uploads, plan: &Plan, local: &Tree) -> bool {
    let is_here = |path: &FileName, file: &File| {
        local.get(&plan.source(path)).and_then(Node::file).is_some_and(|here| same_body(here, file))
    };
    plan.merged.files().any(|(path, file)| uploads.is_distrusted(file) && is_here(path, file))
}

fn same_body(one: &File, other: &File) -> bool {
    one.size == other.size && one.sums.agree(&other.sums)
}

/// Bodies that are in no version yet, each once. What is somewhere gets its place.
fn wanted(uploads: &Uploads, plan: &mut Plan, local: &Tree, remote: &Tree) -> Vec<Wanted> {
    let lacks = |file: &File| file.size > 0 && (file.place.is_none() || uploads.is_distrusted(file));
    let lacking: Vec<FileName> =
        plan.merged.files().filter(|(_, file)| lacks(file)).map(|(path, _)| path.clone()).collect();
    if lacking.is_empty() {
        return Vec::new();
    }
    let known = places_of(uploads, remote);
    let (mut wanted, mut seen) = (Vec::new(), HashSet::new());
    for path in lacking {
        let source = plan.source(&path);
        let Some(Node::File(file)) = plan.merged.0.get_mut(&path) else { continue };
        // What an older writer knew by its MD5 alone is known better here.
        let Some(here) = local.get(&source).and_then(Node::file).filter(|here| same_body(here, file)) else {
            // Damaged there, and not here: it stays as it is.
            continue;
        };
        let Some(strong) = here.sums.strong else { continue };
        file.sums = here.sums;
        if let Some(place) = known.get(&(strong, file.size)) {
            file.place = Some(place.clone());
        } else if seen.insert((strong, file.size)) {
            wanted.push(Wanted { file: file.clone(), source });
        }
    }
    wanted
}

#[derive(Debug, Default)]
struct Uploaded {
    places: Places,
    bytes: u64,
    /// Files that are not what the scan saw.
    changed: Vec<FileName>,
}

fn liar(what: &str) -> Error {
    Error::new(seawall_api::ErrorKind::Protocol, format!("the sandbox sent {what}"))
}

fn shown(group: &[Wanted]) -> String {
    match group {
        [] => String::new(),
        [one] => one.source.to_string(),
        [first, rest @ ..] => format!("{} and {} more", first.source, rest.len()),
    }
}

/// The body of one file; the last part comes only when all of it is what it should be.
fn checked(
    pieces: crate::workspace::Pieces,
    file: File,
    moved: Arc<AtomicU64>,
    changed: Arc<AtomicBool>,
    progress: Arc<dyn super::Progress>,
) -> crate::bucket::Bodies {
    struct State {
        pieces: crate::workspace::Pieces,
        hasher: Option<Hasher>,
        held: Option<Bytes>,
    }
    let start = State { pieces, hasher: Some(Hasher::default()), held: None };
    let fail = move || {
        changed.store(true, Ordering::Relaxed);
        Error::conflict("it changed while it was read")
    };
    futures::stream::try_unfold(start, move |mut state| {
        let (file, moved, progress, fail) = (file.clone(), moved.clone(), progress.clone(), fail.clone());
        async move {
            loop {
                match state.pieces.next().await.transpose()? {
                    Some(Piece::Data(_, bytes)) => {
                        let Some(hasher) = &mut state.hasher else { return Err(liar("a body twice")) };
                        hasher.update(&bytes);
                        let size =
                            moved.fetch_add(bytes.len() as u64, Ordering::Relaxed) + bytes.len() as u64;
                        if size > file.size {
                            return Err(fail());
                        }
                        progress.moved(bytes.len() as u64);
                        // One part is held back, so that the store never has the whole of a wrong body.
                        if let Some(part) = state.held.replace(bytes) {
                            return Ok(Some((part, state)));
                        }
                    }
                    Some(Piece::End(_)) => {
                        let sums = state.hasher.take().map(Hasher::finish);
                        if sums != Some(file.sums) || moved.load(Ordering::Relaxed) != file.size {
                            return Err(fail());
                        }
                    }
                    Some(Piece::Changed(_)) => return Err(fail()),
                    None if state.hasher.is_some() => return Err(liar("half of a body")),
                    None => return Ok(state.held.take().map(|part| (part, state))),
                }
            }
        }
    })
    .boxed()
}

/// As many as fit into a pack.
fn groups(wanted: Vec<Wanted>) -> Vec<Vec<Wanted>> {
    let mut groups: Vec<Vec<Wanted>> = Vec::new();
    let mut size = 0;
    for one in wanted {
        match groups.last_mut() {
            Some(group) if group.len() < MAX_FILES && size + one.file.size <= PACK_SIZE => {
                size += one.file.size;
                group.push(one);
            }
            _ => {
                size = one.file.size;
                groups.push(vec![one]);
            }
        }
    }
    groups
}

/// Where bodies are that a new version may rely on.
fn places_of(uploads: &Uploads, remote: &Tree) -> Places {
    let trusted = |file: &&File| !uploads.is_distrusted(file);
    let place = |file: &File| Some(((file.sums.strong?, file.size), file.place.clone()?));
    let mut known: Places = remote.files().map(|(_, file)| file).filter(trusted).filter_map(place).collect();
    known.extend(uploads.places.iter().map(|(body, place)| (*body, place.clone())));
    known
}

/// Every file of the plan that was uploaded gets its place.
fn settle(uploads: &Uploads, plan: &mut Plan) {
    for node in plan.merged.0.values_mut() {
        let Node::File(file) = node else { continue };
        if file.size == 0 || (file.place.is_some() && !uploads.is_distrusted(file)) {
            continue;
        }
        let Some(strong) = file.sums.strong else { continue };
        if let Some(place) = uploads.places.get(&(strong, file.size)) {
            file.place = Some(place.clone());
        }
    }
}
