//! Reading a file's body, in parts.

use super::{Place, meta, off_thread};
use crate::{
    fault::{Outcome, from_errno, invalid},
    server::{Writer, answer},
    state::Guest,
};
use rustix::{
    fd::OwnedFd,
    fs::{Mode, OFlags},
};
use seawall_api::{
    files::{Entry, EntryKind, ReadFile},
    frame::{DATA_CHUNK, Frame, Kind},
};
use seawall_wire::Result;

/// An open file and what is to be read of it.
#[derive(Debug)]
pub struct Opened {
    pub fd: OwnedFd,
    pub entry: Entry,
    pub offset: u64,
    pub left: u64,
}

pub fn open(place: &Place, read: &ReadFile) -> Outcome<Opened> {
    // Non-blocking, so that a pipe without a writer does not hold us up.
    let fd = place.path.open(place.root(), OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?;
    let name = place.path.split().map(|(_, name)| name).unwrap_or_else(|_| b".".to_vec());
    let entry = meta::stat_fd(&name, &fd)?;
    if entry.kind != EntryKind::File {
        return Err(invalid(format!("{} is not a regular file", place.path.shown())));
    }
    let left = seawall_api::files::body_limit(&entry, read.offset, read.length);
    Ok(Opened { fd, entry, offset: read.offset, left })
}

pub async fn serve(guest: &Guest, read: ReadFile, mut writer: Writer) -> Result<()> {
    let opened = match Place::new(guest, &read.file) {
        Ok(place) => off_thread(place.identity.clone(), move || open(&place, &read)).await,
        Err(fault) => Err(fault),
    };
    let mut opened = match opened {
        Ok(opened) => opened,
        Err(fault) => return answer(&mut writer, Err::<(), _>(fault)).await,
    };
    writer.message(Kind::Reply, &opened.entry).await?;
    while opened.left > 0 {
        let part = off_thread(None, move || next_part(opened)).await;
        let (file, bytes) = match part {
            Ok(part) => part,
            Err(fault) => return answer(&mut writer, Err::<(), _>(fault)).await,
        };
        opened = file;
        if bytes.is_empty() {
            break;
        }
        writer.body(&bytes).await?;
    }
    writer.send(&Frame::empty(Kind::End)).await?;
    writer.close().await
}

fn next_part(mut opened: Opened) -> Outcome<(Opened, Vec<u8>)> {
    let want = opened.left.min(DATA_CHUNK as u64) as usize;
    let mut bytes = vec![0; want];
    let n = rustix::io::pread(&opened.fd, &mut bytes[..], opened.offset)
        .map_err(|errno| from_errno("reading", errno))?;
    bytes.truncate(n);
    opened.offset += n as u64;
    opened.left -= n as u64;
    Ok((opened, bytes))
}
