//! Bodies on their way to the bucket. Each is hashed again here: the workspace's word is not taken for it.

use super::{
    Budget, Engine, Phase,
    body::{self, Allowance, Large, Outcome, Reason},
    pack::{self, Pack, Places},
};
use crate::{
    Error, Result,
    diff::Plan,
    retry::retry,
    sums::Strong,
    tree::{File, Node, Place, Tree},
    versions::{Body, Head},
    workspace::Piece,
};
use futures::{FutureExt, StreamExt, TryStreamExt, future::BoxFuture};
use seawall_api::files::FileName;
use std::{
    collections::{BTreeSet, HashSet},
    sync::{Arc, Mutex},
};

/// Bodies from this size on are objects of their own.
const LARGE: u64 = 4 << 20;
const PACK_SIZE: u64 = 8 << 20;
/// The most files of one request to a workspace.
const MAX_FILES: usize = 2000;
const AT_ONCE: usize = 4;
const LARGE_AT_ONCE: usize = 2;

/// What this sync has in the bucket beside the versions there.
#[derive(Debug)]
pub struct Uploads {
    places: Places,
    /// Bytes of bodies that this sync may still ask its workspace for, and that it may still store.
    may_take: u64,
    may_store: Arc<Allowance>,
    /// The end of the chain when they were known to be there.
    since: u64,
    /// Damaged in the bucket: the next version may not rely on them.
    distrusted: HashSet<Body>,
    /// Versions for which what a dead push left was looked for.
    resumed: BTreeSet<u64>,
    bytes: u64,
}

impl Uploads {
    pub fn new(budget: &Budget) -> Uploads {
        Uploads {
            places: Places::default(),
            may_take: budget.taken,
            may_store: Arc::new(Allowance::new(budget.stored)),
            since: 0,
            distrusted: HashSet::new(),
            resumed: BTreeSet::new(),
            bytes: 0,
        }
    }

    /// Those that this sync may ask for, in their order, and the bodies of the others.
    fn within_budget(&mut self, wanted: Vec<Wanted>) -> (Vec<Wanted>, HashSet<BodyId>) {
        let (mut within, mut beyond) = (Vec::new(), HashSet::new());
        for one in wanted {
            match self.may_take.checked_sub(one.file.size) {
                Some(left) => {
                    self.may_take = left;
                    within.push(one);
                }
                None => beyond.extend(one.body()),
            }
        }
        (within, beyond)
    }

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
        if let Some(Place { object, offset, .. }) = &file.place {
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

/// What a body is known by: its hash and its size.
type BodyId = (Strong, u64);

impl Wanted {
    fn body(&self) -> Option<BodyId> {
        Some((self.file.sums.strong?, self.file.size))
    }
}

/// Files of the workspace that were not uploaded.
#[derive(Debug, Default)]
pub struct Missed {
    /// They are not what the scan saw.
    pub changed: Vec<FileName>,
    /// They are more than one sync takes.
    pub beyond: Vec<FileName>,
}

impl Missed {
    pub fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.beyond.is_empty()
    }
}

impl Engine<'_> {
    /// Gives every file of the plan a place. Where files are returned, not all have one.
    pub(super) async fn upload(
        &self,
        uploads: &mut Uploads,
        head: &Head,
        plan: &mut Plan,
        (local, remote): (&Tree, &Tree),
    ) -> Result<Missed> {
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
        let (wanted, mut beyond) = uploads.within_budget(wanted);
        let allowance = &uploads.may_store;
        let (large, small): (Vec<_>, Vec<_>) = wanted.into_iter().partition(|one| one.file.size >= LARGE);
        // Boxed, here and elsewhere: otherwise the compiler cannot see that a sync may move between threads.
        let packs: Vec<BoxFuture<'_, Result<Uploaded>>> =
            groups(small).into_iter().map(|group| self.upload_pack(seq, group, allowance).boxed()).collect();
        let mut done: Vec<Uploaded> =
            futures::stream::iter(packs).buffer_unordered(AT_ONCE).try_collect().await?;
        let alone: Vec<BoxFuture<'_, Result<Uploaded>>> =
            large.into_iter().map(|one| self.upload_large(seq, one, allowance).boxed()).collect();
        let alone: Vec<Uploaded> =
            futures::stream::iter(alone).buffer_unordered(LARGE_AT_ONCE).try_collect().await?;
        done.extend(alone);
        let mut missed = Missed::default();
        for Uploaded { places, bytes, changed, beyond: more } in done {
            uploads.places.extend(places);
            uploads.bytes += bytes;
            missed.changed.extend(changed);
            beyond.extend(more);
        }
        missed.beyond = with_bodies(plan, &beyond);
        if missed.is_empty() {
            settle(uploads, plan);
        }
        Ok(missed)
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

    async fn upload_pack(&self, seq: u64, group: Vec<Wanted>, allowance: &Allowance) -> Result<Uploaded> {
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
        if !allowance.take(bytes.len() as u64) {
            uploaded.beyond = places.into_keys().collect();
            return Ok(uploaded);
        }
        retry("uploading", || self.versions.bucket.put(&name, bytes.clone()))
            .await
            .map_err(|error| error.on(shown(&group)))?;
        uploaded.bytes = bytes.len() as u64;
        self.progress.moved(uploaded.bytes);
        uploaded.places = places;
        Ok(uploaded)
    }

    /// A body that does not fit into memory: from the workspace to the store as it comes.
    async fn upload_large(&self, seq: u64, wanted: Wanted, allowance: &Arc<Allowance>) -> Result<Uploaded> {
        let Some(body) = wanted.body() else { return Ok(Uploaded::default()) };
        let name = pack::large_name(seq, &self.versions.ids.next(), &body.0);
        let outcome = Arc::new(Mutex::new(Outcome::default()));
        let done = retry("uploading", || async {
            let before = std::mem::take(&mut *body::lock(&outcome));
            allowance.give_back(before.stored);
            let large = Large {
                file: wanted.file.clone(),
                allowance: allowance.clone(),
                outcome: outcome.clone(),
                progress: self.progress.clone(),
            };
            let pieces = self.workspace.collect(vec![wanted.source.clone()]).await?;
            self.versions.bucket.upload(&name, body::checked(large, pieces)).await
        })
        .await;
        let outcome = std::mem::take(&mut *body::lock(&outcome));
        match (done, outcome.missed) {
            (Ok(()), _) => {
                let place = Place { object: name, offset: 0, sparse: outcome.sparse.map(Box::new) };
                let places = Places::from([(body, place)]);
                Ok(Uploaded { places, bytes: outcome.stored, ..Uploaded::default() })
            }
            (Err(_), Some(Reason::Changed)) => {
                Ok(Uploaded { changed: vec![wanted.source], ..Uploaded::default() })
            }
            (Err(_), Some(Reason::Beyond)) => Ok(Uploaded { beyond: vec![body], ..Uploaded::default() }),
            (Err(error), None) => Err(error.on(&wanted.source)),
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
    /// Bodies that are more than this sync may store.
    beyond: Vec<BodyId>,
}

/// The files of the workspace that have these bodies.
fn with_bodies(plan: &Plan, bodies: &HashSet<BodyId>) -> Vec<FileName> {
    if bodies.is_empty() {
        return Vec::new();
    }
    let is_one = |file: &File| file.sums.strong.is_some_and(|strong| bodies.contains(&(strong, file.size)));
    plan.merged.files().filter(|(_, file)| is_one(file)).map(|(path, _)| plan.source(path)).collect()
}

pub(super) fn liar(what: &str) -> Error {
    Error::new(seawall_api::ErrorKind::Protocol, format!("the sandbox sent {what}"))
}

fn shown(group: &[Wanted]) -> String {
    match group {
        [] => String::new(),
        [one] => one.source.to_string(),
        [first, rest @ ..] => format!("{} and {} more", first.source, rest.len()),
    }
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
