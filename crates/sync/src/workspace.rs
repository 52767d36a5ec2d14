//! What the engine needs of a workspace: one sync's hold on it, from the lock until it is dropped.

use crate::{
    Result,
    diff::Step,
    disk::{Refused, ScanAsk, ScanReport},
    state::{CommitRef, StateFile},
    tree::{Delta, Node},
};
use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use seawall_api::files::FileName;
use tokio::sync::mpsc;

/// A part of what was collected: the number of the file in the request, and what came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    Data(usize, Bytes),
    /// The body is whole.
    End(usize),
    /// It is not as it was scanned: what came of it is worth nothing.
    Changed(usize),
}

pub type Pieces = BoxStream<'static, Result<Piece>>;

/// A part of what is put into a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Put {
    Begin(FileName, Node),
    Data(Bytes),
    /// The body is whole and was checked.
    End,
    /// It was not what it should be: nothing of it may stay.
    Abort,
}

/// What both sides agree on from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agree {
    pub commit: CommitRef,
    /// Unix seconds.
    pub now: i64,
    /// The delta starts from what was agreed on before; else from nothing.
    pub from_base: bool,
    pub delta: Delta,
}

#[async_trait]
pub trait Workspace: Send + Sync {
    async fn scan(&self, ask: ScanAsk) -> Result<ScanReport>;

    /// The state file, where it can be used.
    async fn base(&self) -> Result<Option<StateFile>>;

    /// Bodies of files as they were scanned, in the order asked for.
    async fn collect(&self, files: Vec<FileName>) -> Result<Pieces>;

    /// Steps without bodies, in their order.
    async fn apply(&self, steps: Vec<Step>) -> Result<Vec<Refused>>;

    /// Files with their bodies. May be called several times at once.
    async fn put(&self, files: mpsc::Receiver<Put>) -> Result<Vec<Refused>>;

    /// What will be agreed on if a commit succeeds whose success nobody may live to hear of. Its time is not known yet.
    async fn prepare(&self, agree: Agree) -> Result<()>;

    /// The commit that was prepared for is in the chain, as this; or it is not.
    async fn settle(&self, commit: Option<CommitRef>, now: i64) -> Result<()>;

    async fn agree(&self, agree: Agree) -> Result<()>;
}
