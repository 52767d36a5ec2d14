//! Out of a sandbox. Nothing that it says is believed: not a name, not a size, not an order.

use super::{
    BULK, IN_FLIGHT, names,
    progress::Progress,
    target,
    tree::{Mtime, Tree},
};
use crate::attached;
use anyhow::{Context, Result, bail};
use seawall_api::{
    ErrorKind,
    files::{Entry, EntryKind, FileName, ListDir, MAX_PAGE, ReadFile},
};
use seawall_wire::{FileReader, Guest};
use std::{ffi::OsStr, path::Path, sync::Arc};
use tokio::{io::AsyncWriteExt, task::JoinSet};

/// No workspace has so many files; a sandbox that names more never ends.
const MAX_ENTRIES: usize = 10_000_000;
/// Files like those of /proc have no size until they are read.
const MAX_UNSIZED: u64 = 64 * 1024 * 1024;

pub async fn to_path(guest: &Guest, source: &FileName, to: &Path, progress: &Progress) -> Result<()> {
    let top = stat(guest, source, false).await?;
    match top.kind {
        EntryKind::Directory => {
            let tree = target::for_dir(to, source.as_bytes())?;
            directory(guest, source, &top, Arc::new(tree), progress).await
        }
        EntryKind::File => {
            let (tree, name) = target::for_file(to, source.as_bytes())?;
            progress.expect(top.size);
            file(guest, source, top.size, &tree, &[&name], progress).await
        }
        EntryKind::Symlink => {
            let (tree, name) = target::for_file(to, source.as_bytes())?;
            link(&tree, &[&name], &top)
        }
        kind => bail!("{source} is a {kind:?}, not a file: it cannot be copied"),
    }
}

pub async fn to_stdout(guest: &Guest, source: &FileName, progress: &Progress) -> Result<()> {
    let entry = stat(guest, source, true).await?;
    if entry.kind == EntryKind::Directory {
        bail!("{source} is a directory, and stdout takes one file: copy it to a local path");
    }
    progress.expect(entry.size);
    let mut body = Body::open(guest, source, entry.size).await?;
    let mut stdout = tokio::io::stdout();
    while let Some(bytes) = body.next().await? {
        attached::print(&mut stdout, &bytes).await?;
        progress.moved(bytes.len());
    }
    progress.file_done();
    Ok(())
}

async fn stat(guest: &Guest, path: &FileName, follow: bool) -> Result<Entry> {
    guest.stat(names::file(path), follow).await.with_context(|| format!("cannot copy {path}"))
}

async fn directory(
    guest: &Guest,
    source: &FileName,
    top: &Entry,
    tree: Arc<Tree>,
    progress: &Progress,
) -> Result<()> {
    let mut flight: JoinSet<Result<()>> = JoinSet::new();
    let mut directories: Vec<Entry> = Vec::new();
    let (mut after, mut count) = (None, 0);
    loop {
        let (dir, depth, limit) = (names::file(source), u32::MAX, MAX_PAGE);
        let page = guest.list(ListDir { dir, depth, after: after.clone(), limit }).await?;
        for (path, why) in &page.unreadable {
            progress.leave_out(&format!("{path} cannot be read ({why}): left out"));
        }
        count += page.entries.len();
        let empty = page.entries.is_empty();
        if count > MAX_ENTRIES {
            bail!("the sandbox names more than {MAX_ENTRIES} files: refused");
        }
        for entry in page.entries {
            if let Some(directory) = take(guest, source, entry, &tree, &mut flight, progress).await? {
                directories.push(directory);
            }
        }
        if empty && page.next.is_some() {
            bail!("the sandbox sends pages without files: refused");
        }
        match page.next {
            // The order is part of the promise, and keeps a listing from going round in circles.
            Some(next) if after.as_ref().is_some_and(|after| !comes_after(&next, after)) => {
                bail!("the sandbox lists its files in circles: refused")
            }
            Some(next) => after = Some(next),
            None => break,
        }
    }
    while let Some(done) = flight.join_next().await {
        done??;
    }
    finish(&tree, top, &directories)
}

/// Whether a path is listed behind another: name by name, so that a directory comes before what is in it
/// and both before the next name.
fn comes_after(path: &FileName, other: &FileName) -> bool {
    let names =
        |path: &'_ FileName| path.as_bytes().split(|b| *b == b'/').map(<[u8]>::to_vec).collect::<Vec<_>>();
    names(path) > names(other)
}

/// One entry of a listing. A directory comes back, to be finished when it is filled.
async fn take(
    guest: &Guest,
    source: &FileName,
    entry: Entry,
    tree: &Arc<Tree>,
    flight: &mut JoinSet<Result<()>>,
    progress: &Progress,
) -> Result<Option<Entry>> {
    let parts = names::parts(entry.path.as_bytes())?;
    match entry.kind {
        EntryKind::Directory => {
            tree.make_dir(&parts)?;
            return Ok(Some(entry));
        }
        EntryKind::Symlink => link(tree, &parts, &entry)?,
        EntryKind::File => {
            progress.expect(entry.size);
            while flight.len() >= IN_FLIGHT {
                if let Some(done) = flight.join_next().await {
                    done??;
                }
            }
            let (guest, tree, progress) = (guest.clone(), Arc::clone(tree), progress.clone());
            let path = names::join(source.as_bytes(), entry.path.as_bytes());
            flight.spawn(async move {
                let parts = names::parts(entry.path.as_bytes())?;
                match file(&guest, &path, entry.size, &tree, &parts, &progress).await {
                    Err(error) if is_denied(&error) => {
                        progress.leave_out(&format!("{} cannot be read: left out", entry.path));
                        Ok(())
                    }
                    other => other,
                }
            });
        }
        kind => progress.warn(&format!("{} is a {kind:?}: left out", entry.path)),
    }
    Ok(None)
}

/// One file that the sandbox's user may not read is no reason to lose the others.
fn is_denied(error: &anyhow::Error) -> bool {
    error.downcast_ref::<seawall_wire::Error>().is_some_and(|error| error.kind() == ErrorKind::Denied)
}

/// Deepest first: setting the time of a directory must be the last thing that happens in it.
fn finish(tree: &Tree, top: &Entry, directories: &[Entry]) -> Result<()> {
    for entry in directories.iter().rev() {
        tree.finish_dir(&names::parts(entry.path.as_bytes())?, entry.mode, mtime(entry))?;
    }
    tree.finish_dir(&[], top.mode, mtime(top))
}

fn link(tree: &Tree, parts: &[&OsStr], entry: &Entry) -> Result<()> {
    let target =
        entry.target.as_ref().with_context(|| format!("the sandbox hides where {} points", entry.path))?;
    tree.symlink(parts, target.as_bytes(), mtime(entry))
}

async fn file(
    guest: &Guest,
    source: &FileName,
    size: u64,
    tree: &Tree,
    parts: &[&OsStr],
    progress: &Progress,
) -> Result<()> {
    let mut body = Body::open(guest, source, size).await?;
    let (draft, file) = tree.draft(parts)?;
    let mut file = tokio::fs::File::from_std(file);
    while let Some(bytes) = body.next().await? {
        file.write_all(&bytes).await.with_context(|| format!("cannot write the copy of {source}"))?;
        progress.moved(bytes.len());
    }
    file.flush().await.with_context(|| format!("cannot write the copy of {source}"))?;
    let entry = body.reader.entry();
    draft.publish(&file.into_std().await, entry.mode, mtime(entry))?;
    progress.file_done();
    Ok(())
}

fn mtime(entry: &Entry) -> Mtime {
    (entry.mtime, entry.mtime_nanos)
}

/// The body of a file, never more than was announced: a sandbox could send for ever.
struct Body {
    reader: FileReader,
    left: u64,
}

impl Body {
    async fn open(guest: &Guest, source: &FileName, size: u64) -> Result<Body> {
        // A file that grows meanwhile is copied as far as it went when it was listed.
        let length = (size > 0).then_some(size);
        let read = ReadFile { file: names::file(source), offset: 0, length };
        let reader = if size > BULK { guest.read_bulk(read).await } else { guest.read(read).await };
        let reader = reader.with_context(|| format!("cannot read {source}"))?;
        Ok(Body { reader, left: length.unwrap_or(MAX_UNSIZED) })
    }

    async fn next(&mut self) -> Result<Option<bytes::Bytes>> {
        let Some(bytes) = self.reader.next().await? else { return Ok(None) };
        match self.left.checked_sub(bytes.len() as u64) {
            Some(left) => self.left = left,
            None => bail!("the sandbox sends more of a file than it announced: refused"),
        }
        Ok(Some(bytes))
    }
}
