//! Into a sandbox.

use super::{
    BULK, IN_FLIGHT, names,
    progress::Progress,
    walk::{self, Found},
};
use crate::input;
use anyhow::{Context, Result, bail};
use rustix::fs::{Mode, OFlags};
use seawall_api::{
    ErrorKind,
    files::{EntryKind, FileName, MakeDir, SetMeta, WriteFile, WriteMode},
};
use seawall_wire::Guest;
use std::{
    fs::{File, Metadata},
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::Path,
};
use tokio::{io::AsyncReadExt, task::JoinSet};

const PERMISSIONS: u32 = 0o7777;

pub async fn from_path(guest: &Guest, source: &Path, to: &FileName, progress: &Progress) -> Result<()> {
    let meta = source.symlink_metadata().with_context(|| format!("cannot copy {}", source.display()))?;
    let name = names::own_name(source.as_os_str().as_bytes());
    let target = landing(guest, to, name, meta.is_dir()).await?;
    if meta.is_dir() {
        directory(guest, source, &meta, &target, progress).await
    } else {
        let kind = meta.file_type();
        if !kind.is_file() && !kind.is_symlink() {
            bail!(
                "{} is no file, directory or link: pipe it in with `seawall cp - ID:PATH`",
                source.display()
            );
        }
        let found = Found { path: source.to_owned(), relative: Vec::new(), meta };
        progress.expect(found.meta.len());
        one(guest, &found, &target, progress).await
    }
}

pub async fn from_stdin(guest: &Guest, to: &FileName, progress: &Progress) -> Result<()> {
    if is_dir(guest, to).await?.unwrap_or(false) {
        bail!("{to} is a directory in the sandbox: name the file that stdin becomes");
    }
    let mut writer = guest.write_bulk(write_file(to, None)).await?;
    let mut chunks = input::chunks();
    while let Some(chunk) = chunks.recv().await {
        let chunk = chunk.context("cannot read stdin")?;
        writer.write(&chunk).await?;
        progress.expect(chunk.len() as u64);
        progress.moved(chunk.len());
    }
    writer.finish().await?;
    progress.file_done();
    Ok(())
}

/// Inside a directory that is there, else at the path itself.
async fn landing(guest: &Guest, to: &FileName, name: Option<&[u8]>, of_dir: bool) -> Result<FileName> {
    let into = match is_dir(guest, to).await? {
        Some(directory) if of_dir && !directory => {
            bail!("{to} is no directory in the sandbox, and the source is one")
        }
        Some(directory) => directory,
        // A slash at the end says that a directory is meant, also where it must be made.
        None => !of_dir && to.as_bytes().ends_with(b"/"),
    };
    match name {
        Some(name) if into => Ok(names::join(to.as_bytes(), name)),
        _ => Ok(to.clone()),
    }
}

/// None where nothing is there.
async fn is_dir(guest: &Guest, path: &FileName) -> Result<Option<bool>> {
    match guest.stat(names::file(path), true).await {
        Ok(entry) => Ok(Some(entry.kind == EntryKind::Directory)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot look at {path} in the sandbox")),
    }
}

async fn directory(
    guest: &Guest,
    source: &Path,
    meta: &Metadata,
    target: &FileName,
    progress: &Progress,
) -> Result<()> {
    let mut directories = Vec::new();
    // One that was there stays as it is.
    if is_dir(guest, target).await? != Some(true) {
        make_dir(guest, target, meta).await?;
        directories.push((target.clone(), meta.mode(), walk::mtime(meta)));
    }
    let mut flight: JoinSet<Result<()>> = JoinSet::new();
    let mut walk = walk::beneath(source);
    while let Some(found) = walk.recv().await {
        let found = found?;
        let path = names::join(target.as_bytes(), &found.relative);
        if found.meta.is_dir() {
            make_dir(guest, &path, &found.meta).await?;
            directories.push((path, found.meta.mode(), found.mtime()));
            continue;
        }
        if found.meta.is_file() {
            progress.expect(found.meta.len());
        }
        while flight.len() >= IN_FLIGHT {
            if let Some(done) = flight.join_next().await {
                done??;
            }
        }
        let (guest, progress) = (guest.clone(), progress.clone());
        flight.spawn(async move { one(&guest, &found, &path, &progress).await });
    }
    while let Some(done) = flight.join_next().await {
        done??;
    }
    // Deepest first, when all is in them.
    for (path, mode, mtime) in directories.iter().rev() {
        let (file, permissions) = (names::file(path), Some(mode & PERMISSIONS));
        guest.set_meta(SetMeta { file, permissions, mtime: Some(*mtime), owner: None }).await?;
    }
    Ok(())
}

/// Writable while it is filled, whatever it will be.
async fn make_dir(guest: &Guest, path: &FileName, meta: &Metadata) -> Result<()> {
    let permissions = Some((meta.mode() & PERMISSIONS) | 0o700);
    let made = guest.make_dir(MakeDir { dir: names::file(path), parents: true, permissions }).await;
    match made {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => match is_dir(guest, path).await? {
            Some(true) => Ok(()),
            _ => bail!("{path} is in the way in the sandbox: it is no directory"),
        },
        Err(error) => Err(error).with_context(|| format!("cannot make {path} in the sandbox")),
    }
}

async fn one(guest: &Guest, found: &Found, target: &FileName, progress: &Progress) -> Result<()> {
    let kind = found.meta.file_type();
    if kind.is_symlink() {
        symlink(guest, found, target).await
    } else if kind.is_file() {
        file(guest, found, target, progress)
            .await
            .with_context(|| format!("cannot copy {}", found.path.display()))
    } else {
        progress.warn(&format!("{} is no file, directory or link: left out", found.path.display()));
        Ok(())
    }
}

async fn symlink(guest: &Guest, found: &Found, target: &FileName) -> Result<()> {
    let leads_to = std::fs::read_link(&found.path)?;
    let leads_to = FileName::from(leads_to.as_os_str().as_bytes());
    let made = guest.symlink(names::file(target), leads_to.clone()).await;
    match made {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            guest.remove(names::file(target), false).await?;
            guest.symlink(names::file(target), leads_to).await?;
        }
        made => made?,
    }
    Ok(())
}

fn write_file(target: &FileName, meta: Option<&Metadata>) -> WriteFile {
    WriteFile {
        file: names::file(target),
        mode: WriteMode::Replace,
        permissions: meta.map(|meta| meta.mode() & PERMISSIONS),
        mtime: meta.map(walk::mtime),
        parents: true,
        max_size: None,
    }
}

async fn file(guest: &Guest, found: &Found, target: &FileName, progress: &Progress) -> Result<()> {
    // Not through a link that took its place since it was found.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(&found.path, flags, Mode::empty())?;
    let mut file = tokio::fs::File::from_std(File::from(opened));
    let write = write_file(target, Some(&found.meta));
    if found.meta.len() <= BULK {
        let mut body = Vec::new();
        file.read_to_end(&mut body).await?;
        guest.write_all(write, &body).await?;
        progress.moved(body.len());
    } else {
        let mut writer = guest.write_bulk(write).await?;
        let mut buffer = vec![0; BULK as usize];
        loop {
            let count = file.read(&mut buffer).await?;
            if count == 0 {
                break;
            }
            writer.write(&buffer[..count]).await?;
            progress.moved(count);
        }
        writer.finish().await?;
    }
    progress.file_done();
    Ok(())
}
