//! The host's typed client of a guest.
//!
//! A call that only looks, or that asking twice cannot harm, is repeated once on a new wire when the old
//! one broke under it. Others return an error that says trying again is up to the caller.

use crate::{
    Connector, Error, LinkState, Process, Result,
    framed::FrameReader,
    link::{Framed, Link},
};
use seawall_api::{
    ErrorKind, Fault, ProcessId, SandboxId,
    exec::{ProcessInfo, StartProcess, TtySize},
    files::{Entry, FileName, FileRef, ListDir, Listing, MakeDir, MoveFile, SetMeta, XattrCall, XattrReply},
    frame::{Frame, Kind},
    hello::Role,
    message::{Attach, Attend, GuestInfo, Request, Started},
};
use serde::de::DeserializeOwned;
use std::{fmt, sync::Arc, time::Duration};
use tokio::{io::AsyncRead, sync::watch, time::timeout};

/// How long a call may take whose answer does not depend on the size of anything.
const CALL_PATIENCE: Duration = Duration::from_secs(60);
const REMOVE_PATIENCE: Duration = Duration::from_secs(1800);

#[derive(Clone)]
pub struct Guest {
    pub(crate) link: Arc<Link>,
}

impl fmt::Debug for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guest").field("sandbox", &self.link.sandbox).finish_non_exhaustive()
    }
}

impl Guest {
    pub fn new(sandbox: SandboxId, role: Role, connector: Arc<dyn Connector>) -> Guest {
        Guest { link: Link::new(sandbox, role, connector) }
    }

    pub fn sandbox(&self) -> SandboxId {
        self.link.sandbox
    }

    /// Whether the wire is there, as it changes.
    pub fn state(&self) -> watch::Receiver<LinkState> {
        self.link.state()
    }

    /// Makes the wire now, so that the next call finds it. Where that fails, the next call tries again and says so.
    pub async fn connect(&self) {
        let _ = self.link.warm().await;
    }

    /// Cuts the wire soon unless the guest answers: something reports that it does not run.
    pub fn probe(&self) {
        self.link.probe();
    }

    /// Puts the wire down. The next call makes a new one.
    pub async fn disconnect(&self) {
        self.link.disconnect().await;
    }

    pub async fn info(&self) -> Result<GuestInfo> {
        self.look(Request::Info).await
    }

    /// Says when the box ends by itself, once nobody says so any more.
    pub async fn attend(&self, attend: Attend) -> Result<GuestInfo> {
        self.look(Request::Attend(attend)).await
    }

    // Processes

    /// Starts a process and attaches to it.
    pub async fn start(&self, start: StartProcess) -> Result<Process> {
        let start = StartProcess { detach: false, ..start };
        Process::start(self.clone(), start).await
    }

    pub async fn start_detached(&self, start: StartProcess) -> Result<Started> {
        self.look(Request::Start(Box::new(StartProcess { detach: true, ..start }))).await
    }

    pub async fn attach(&self, attach: Attach) -> Result<Process> {
        Process::attach(self.clone(), attach).await
    }

    pub async fn processes(&self) -> Result<Vec<ProcessInfo>> {
        self.look(Request::Processes).await
    }

    /// To the process and its group.
    pub async fn signal(&self, process: ProcessId, signal: i32) -> Result<()> {
        self.call(Request::Signal { process, signal }).await
    }

    /// Ends a process and all that came from it. Returns when they are gone.
    pub async fn kill(&self, process: ProcessId) -> Result<()> {
        self.look(Request::Kill { process }).await
    }

    pub async fn resize(&self, process: ProcessId, size: TtySize) -> Result<()> {
        self.look(Request::Resize { process, size }).await
    }

    /// Input for a process that somebody else is attached to.
    pub async fn input(&self, process: ProcessId, data: &[u8], close: bool) -> Result<()> {
        let (mut reader, mut writer) = self.link.open().await?;
        writer.message(Kind::Request, &Request::Input { process, close }).await?;
        writer.data(data).await?;
        writer.send(&Frame::empty(Kind::End)).await?;
        reply(reader.expect().await?)
    }

    // Files

    pub async fn stat(&self, file: FileRef, follow: bool) -> Result<Entry> {
        self.look(Request::Stat { file, follow }).await
    }

    pub async fn list(&self, list: ListDir) -> Result<Listing> {
        let limit = list.limit as usize;
        let listing: Listing = self.look(Request::List(list)).await?;
        check_listing(listing, limit)
    }

    pub async fn make_dir(&self, make: MakeDir) -> Result<Entry> {
        self.call(Request::MakeDir(make)).await
    }

    pub async fn move_file(&self, moved: MoveFile) -> Result<()> {
        self.call(Request::Move(moved)).await
    }

    pub async fn remove(&self, file: FileRef, recursive: bool) -> Result<()> {
        // A million files take their time.
        let removing = self.call_patiently(Request::Remove { file, recursive });
        match timeout(REMOVE_PATIENCE, removing).await {
            Ok(result) => result,
            Err(_) => Err(Error::Timeout("removing takes too long; trying again is safe".into())),
        }
    }

    pub async fn symlink(&self, link: FileRef, target: FileName) -> Result<()> {
        self.call(Request::Symlink { link, target }).await
    }

    pub async fn set_meta(&self, set: SetMeta) -> Result<Entry> {
        self.look(Request::SetMeta(set)).await
    }

    pub async fn xattr(&self, file: FileRef, call: XattrCall) -> Result<XattrReply> {
        self.look(Request::Xattr { file, call }).await
    }

    /// Ends every process in the box, then the guest itself.
    pub async fn shutdown(&self, grace: Duration) -> Result<()> {
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        self.call(Request::Shutdown { grace_ms }).await
    }

    /// A call that may be repeated.
    pub(crate) async fn look<T: DeserializeOwned>(&self, request: Request) -> Result<T> {
        match self.call(request.clone()).await {
            Err(Error::Broken(_)) => self.call(request).await,
            other => other,
        }
    }

    async fn call<T: DeserializeOwned>(&self, request: Request) -> Result<T> {
        in_time(self.call_patiently(request)).await
    }

    async fn call_patiently<T: DeserializeOwned>(&self, request: Request) -> Result<T> {
        let (mut reader, _writer) = self.ask(&request).await?;
        reply(reader.expect().await?)
    }

    pub(crate) async fn ask(&self, request: &Request) -> Result<Framed> {
        let (reader, mut writer) = self.link.open().await?;
        writer.message(Kind::Request, request).await?;
        Ok((reader, writer))
    }
}

/// The answer to a request, which must not take for ever.
pub(crate) async fn first_reply<R, T>(reader: &mut FrameReader<R>) -> Result<T>
where
    R: AsyncRead + Unpin,
    T: DeserializeOwned,
{
    reply(in_time(reader.expect()).await?)
}

/// For whatever a live guest does within [`CALL_PATIENCE`].
pub(crate) async fn in_time<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    match timeout(CALL_PATIENCE, work).await {
        Ok(result) => result,
        Err(_) => {
            let seconds = CALL_PATIENCE.as_secs();
            Err(Error::Timeout(format!("it said nothing for {seconds} s")))
        }
    }
}

/// Reads the answer to a request.
pub(crate) fn reply<T: DeserializeOwned>(frame: Frame) -> Result<T> {
    match frame.kind {
        Kind::Reply => Ok(frame.decode()?),
        Kind::Fault => Err(Error::Guest(frame.decode::<Fault>()?)),
        other => Err(Error::Protocol(format!("a {other:?} frame instead of a reply"))),
    }
}

/// A hostile guest may name what it likes: names that lead out of the listed directory are refused
/// here, before anybody joins them to a path of the host.
fn check_listing(listing: Listing, limit: usize) -> Result<Listing> {
    if listing.entries.len() > limit {
        return Err(Error::Protocol("more entries than were asked for".into()));
    }
    let names = listing.entries.iter().map(|entry| &entry.path);
    let odd = names.chain(listing.unreadable.iter().map(|(name, _)| name)).find(|name| !is_inside(name));
    match odd {
        Some(name) => Err(Error::Protocol(format!("a listing with the name {name:?}"))),
        None => Ok(listing),
    }
}

/// Whether a path is relative and stays beneath where it starts.
pub(crate) fn is_inside(path: &FileName) -> bool {
    let bytes = path.as_bytes();
    !bytes.is_empty()
        && !bytes.contains(&0)
        && bytes.split(|b| *b == b'/').all(|part| !matches!(part, b"" | b"." | b".."))
}

pub(crate) fn not_control() -> Error {
    Error::Guest(Fault::new(ErrorKind::Denied, "only the holder of the control wire may listen in a sandbox"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_out_are_not_inside() {
        for bad in ["", "/etc", "..", "a/../b", "a//b", "./a", "a/.", "a\0b", "a/"] {
            assert!(!is_inside(&FileName::from(bad)), "{bad:?}");
        }
        for good in ["a", "a/b", "...", "a/..b", " ", "\\"] {
            assert!(is_inside(&FileName::from(good)), "{good:?}");
        }
    }
}
