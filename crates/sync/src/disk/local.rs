//! A disk as a workspace, without a guest in between.

use super::{Disk, Refused, SMALL, ScanAsk, ScanReport};
use crate::{
    Error, Result,
    diff::Step,
    error::from_errno,
    state::{CommitRef, StateFile},
    workspace::{Agree, Piece, Pieces, Put, Workspace},
};
use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use seawall_api::{ErrorKind, files::FileName};
use std::sync::Arc;
use tokio::sync::mpsc;

/// What can be done with a disk is done at once, on the thread that asks. For tests and for tools.
#[derive(Debug, Clone)]
pub struct LocalWorkspace(pub Arc<Disk>);

#[async_trait]
impl Workspace for LocalWorkspace {
    async fn scan(&self, ask: ScanAsk) -> Result<ScanReport> {
        Ok(self.0.scan(&ask))
    }

    async fn base(&self) -> Result<Option<StateFile>> {
        Ok(self.0.base().state.clone())
    }

    async fn collect(&self, files: Vec<FileName>) -> Result<Pieces> {
        let disk = self.0.clone();
        let pieces = files.into_iter().enumerate().flat_map(move |(number, path)| body(&disk, number, &path));
        Ok(futures::stream::iter(pieces).boxed())
    }

    async fn apply(&self, steps: Vec<Step>) -> Result<Vec<Refused>> {
        self.0.apply(&steps).map_err(|(path, errno)| from_errno(&path, errno))
    }

    async fn put(&self, mut files: mpsc::Receiver<Put>) -> Result<Vec<Refused>> {
        let (mut refused, mut changes) = (Vec::new(), Vec::new());
        let root = FileName::from(".");
        let mut placer = self.0.placer().map_err(|errno| from_errno(&root, errno))?;
        while let Some(put) = files.recv().await {
            let Put::Begin(path, node) = put else { continue };
            let fail = |errno| from_errno(&path, errno);
            let mut incoming = placer.incoming().map_err(fail)?;
            let finished = loop {
                match files.recv().await {
                    Some(Put::Data(bytes)) => incoming.write(&bytes).map_err(fail)?,
                    Some(Put::End) => break Some(incoming.finish(&path, &node).map_err(fail)?),
                    Some(Put::Abort) => break None,
                    _ => return Err(Error::new(ErrorKind::Internal, "a body ended without a word").on(&path)),
                }
            };
            match finished {
                Some(Ok((path, seen))) => changes.push((path, Some(seen))),
                Some(Err(why)) => refused.push(why),
                None => {}
            }
        }
        self.0.remember(changes);
        Ok(refused)
    }

    async fn prepare(&self, agree: Agree) -> Result<()> {
        self.0.prepare(agree).map_err(|error| failed(&error))
    }

    async fn settle(&self, commit: Option<CommitRef>, now: i64) -> Result<()> {
        self.0.settle(commit, now).map_err(|error| failed(&error))
    }

    async fn agree(&self, agree: Agree) -> Result<()> {
        self.0.agree(agree).map_err(|error| failed(&error))
    }
}

fn failed(error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Internal, error.to_string()).during("agreeing")
}

fn body(disk: &Disk, number: usize, path: &FileName) -> Vec<Result<Piece>> {
    match pieces(disk, number, path) {
        Ok(pieces) => pieces.into_iter().map(Ok).collect(),
        Err(errno) => vec![Err(from_errno(path, errno))],
    }
}

fn pieces(disk: &Disk, number: usize, path: &FileName) -> Result<Vec<Piece>, rustix::io::Errno> {
    let Some(opened) = disk.open_scanned(path)? else { return Ok(vec![Piece::Changed(number)]) };
    let mut pieces = Vec::new();
    let mut offset = 0;
    while offset < opened.size() {
        let mut part = vec![0; (opened.size() - offset).min(SMALL) as usize];
        let n = opened.read_at(&mut part, offset)?;
        if n == 0 {
            break;
        }
        part.truncate(n);
        offset += n as u64;
        pieces.push(Piece::Data(number, Bytes::from(part)));
    }
    pieces.push(if opened.is_unchanged() { Piece::End(number) } else { Piece::Changed(number) });
    Ok(pieces)
}
