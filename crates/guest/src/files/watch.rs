//! Watching a directory for changes, by inotify.

use super::{Place, off_thread, write::TEMPORARY};
use crate::{
    fault::{Outcome, from_errno},
    server::{Reader, Writer, answer},
    state::Guest,
};
use rustix::{
    fd::{AsFd, AsRawFd, OwnedFd},
    fs::{
        Dir, FileType, Mode, OFlags, ResolveFlags,
        inotify::{self, CreateFlags, ReadFlags, WatchFlags},
    },
    io::Errno,
};
use seawall_api::{
    ErrorKind, Fault,
    files::{ChangeKind, FileChange, FileName, WatchDir},
    frame::{Frame, Kind},
};
use seawall_wire::Result as Wire;
use std::{collections::HashMap, ffi::OsStr, mem::MaybeUninit, os::unix::ffi::OsStrExt};

/// Directories that one watch may cover.
const MAX_WATCHES: usize = 8192;
/// Changes that are held at once; where a new directory has more in it, the client looks by itself.
const MAX_CHANGES: usize = 4096;

/// The directories under watch, by the kernel's number for each.
struct Watched {
    inotify: OwnedFd,
    top: OwnedFd,
    /// Paths relative to the top.
    dirs: HashMap<i32, Vec<u8>>,
    recursive: bool,
}

pub async fn serve(guest: &Guest, watch: WatchDir, mut reader: Reader, mut writer: Writer) -> Wire<()> {
    let begun = match Place::new(guest, &watch.dir) {
        Ok(place) => {
            let identity = place.identity.clone();
            let begun = off_thread(identity.clone(), move || begin(&place, watch.recursive)).await;
            begun.map(|watched| (watched, identity))
        }
        Err(fault) => Err(fault),
    };
    let (mut watched, identity) = match begun {
        Ok(begun) => begun,
        Err(fault) => return answer(&mut writer, Err::<(), _>(fault)).await,
    };
    let ready = match watched.inotify.try_clone().and_then(crate::poll::watch) {
        Ok(ready) => ready,
        Err(error) => {
            let fault = crate::fault::from_io("a watch", &error);
            return answer(&mut writer, Err::<(), _>(fault)).await;
        }
    };
    writer.message(Kind::Reply, &()).await?;
    let mut more = false;
    loop {
        if !more {
            let mut woken = tokio::select! {
                woken = ready.readable() => woken?,
                // The client says nothing; it only goes.
                _ = reader.next() => return Ok(()),
            };
            woken.clear_ready();
        }
        // New directories are looked into with the rights of who watches.
        let read = off_thread(identity.clone(), move || Ok(watched.read())).await;
        let (again, changes, over) = match read {
            Ok(read) => read,
            Err(fault) => return writer.message(Kind::Fault, &fault).await,
        };
        watched = again;
        more = changes.len() >= MAX_CHANGES;
        for change in changes {
            writer.message(Kind::Event, &change).await?;
        }
        if over {
            writer.send(&Frame::empty(Kind::End)).await?;
            return writer.close().await;
        }
    }
}

fn begin(place: &Place, recursive: bool) -> Outcome<Watched> {
    let shown = place.path.shown();
    let dir = place.path.open(place.root(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
    let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)
        .map_err(|errno| from_errno(&shown, errno))?;
    let mut watched = Watched { inotify, top: dir, dirs: HashMap::new(), recursive };
    watched.add(Vec::new()).map_err(|errno| match errno {
        Errno::NOSPC => Fault::new(
            ErrorKind::Unavailable,
            format!(
                "{shown}: no watches left (fs.inotify.max_user_watches, or over {MAX_WATCHES} directories)"
            ),
        ),
        errno => from_errno(&shown, errno),
    })?;
    Ok(watched)
}

impl Watched {
    /// Opens a watched directory, or one in it. No link is followed, and nothing leads out of the top.
    fn open(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let path = if path.is_empty() { b"." } else { path };
        rustix::fs::openat2(&self.top, OsStr::from_bytes(path), flags, Mode::empty(), resolve)
    }

    /// Watches a directory and, where asked, those beneath it. Returns their paths.
    fn add(&mut self, path: Vec<u8>) -> Result<Vec<Vec<u8>>, Errno> {
        let mut todo = vec![path];
        let mut added = Vec::new();
        while let Some(path) = todo.pop() {
            if self.dirs.len() >= MAX_WATCHES {
                return Err(Errno::NOSPC);
            }
            let dir = match self.open(&path) {
                // Gone, or turned into something else, since it was seen.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) if !path.is_empty() => continue,
                // Beneath the top, what may not be read is not watched.
                Err(Errno::ACCESS) if !path.is_empty() => continue,
                other => other?,
            };
            let flags = WatchFlags::CREATE
                | WatchFlags::MODIFY
                | WatchFlags::DELETE
                | WatchFlags::MOVE
                | WatchFlags::ATTRIB
                | WatchFlags::DELETE_SELF
                | WatchFlags::ONLYDIR;
            let name = format!("/proc/self/fd/{}", dir.as_raw_fd());
            let number = inotify::add_watch(&self.inotify, name, flags)?;
            if self.recursive {
                todo.extend(subdirectories(&path, &dir)?);
            }
            self.dirs.insert(number, path.clone());
            added.push(path);
        }
        Ok(added)
    }

    /// What happened. The flag says that the top directory itself is gone.
    fn read(mut self) -> (Self, Vec<FileChange>, bool) {
        let (mut changes, mut made, mut left, mut over) = (Vec::new(), Vec::new(), Vec::new(), false);
        let mut buffer = [MaybeUninit::uninit(); 16 << 10];
        let Ok(fd) = self.inotify.try_clone() else { return (self, changes, true) };
        let mut events = inotify::Reader::new(fd.as_fd(), &mut buffer);
        // What does not fit stays with the kernel until the next round.
        while (changes.len() < MAX_CHANGES || !events.is_buffer_empty())
            && let Ok(event) = events.next()
        {
            let flags = event.events();
            if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                changes.push(overflow());
                continue;
            }
            if flags.intersects(ReadFlags::IGNORED | ReadFlags::DELETE_SELF) {
                over |= self.dirs.remove(&event.wd()).is_some_and(|path| path.is_empty());
                continue;
            }
            let Some(dir) = self.dirs.get(&event.wd()) else { continue };
            let name = event.file_name().map_or(&b""[..], |name| name.to_bytes());
            let Some(kind) = kind_of(flags) else { continue };
            if name.starts_with(TEMPORARY) {
                continue;
            }
            let path = join(dir, name);
            if flags.contains(ReadFlags::ISDIR | ReadFlags::MOVED_FROM) {
                left.push(path.clone());
            }
            if flags.contains(ReadFlags::ISDIR) && flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
                made.push(path.clone());
            }
            let change = FileChange { path: FileName(path), kind };
            // A burst of writes is one change.
            if changes.last() != Some(&change) {
                changes.push(change);
            }
        }
        left.iter().for_each(|path| self.drop_left(path));
        if self.recursive {
            made.into_iter().for_each(|path| self.add_made(path, &mut changes));
        }
        (self, changes, over)
    }

    /// A directory that was moved away is not ours to tell of any more.
    fn drop_left(&mut self, path: &[u8]) {
        let beneath =
            |p: &Vec<u8>| p == path || p.strip_prefix(path).is_some_and(|rest| rest.starts_with(b"/"));
        let gone: Vec<i32> =
            self.dirs.iter().filter(|(_, p)| beneath(p)).map(|(number, _)| *number).collect();
        for number in gone {
            self.dirs.remove(&number);
            // It may have been deleted since.
            let _ = inotify::remove_watch(&self.inotify, number);
        }
    }

    /// A directory that appeared is watched too; what was in it already is told as new.
    fn add_made(&mut self, path: Vec<u8>, changes: &mut Vec<FileChange>) {
        let Ok(added) = self.add(path) else { return changes.push(overflow()) };
        for prefix in added {
            let Ok(dir) = self.open(&prefix) else { continue };
            let names = names(&dir);
            if names.len() + changes.len() > MAX_CHANGES {
                return changes.push(overflow());
            }
            for name in names {
                changes.push(FileChange { path: FileName(join(&prefix, &name)), kind: ChangeKind::Create });
            }
        }
    }
}

/// Look at everything again.
fn overflow() -> FileChange {
    FileChange { path: FileName::default(), kind: ChangeKind::Overflow }
}

fn kind_of(flags: ReadFlags) -> Option<ChangeKind> {
    [
        (ReadFlags::CREATE, ChangeKind::Create),
        // A file that a rename put here is new here: that is how bodies arrive.
        (ReadFlags::MOVED_TO, ChangeKind::Create),
        (ReadFlags::MODIFY, ChangeKind::Write),
        (ReadFlags::DELETE, ChangeKind::Remove),
        (ReadFlags::MOVED_FROM, ChangeKind::Rename),
        (ReadFlags::ATTRIB, ChangeKind::Chmod),
    ]
    .into_iter()
    .find_map(|(flag, kind)| flags.contains(flag).then_some(kind))
}

fn names(dir: &OwnedFd) -> Vec<Vec<u8>> {
    let Ok(mut entries) = Dir::read_from(dir) else { return Vec::new() };
    entries.rewind();
    let mut names = Vec::new();
    while let Some(Ok(entry)) = entries.read() {
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") && !name.starts_with(TEMPORARY) {
            names.push(name.to_vec());
        }
        if names.len() > MAX_CHANGES {
            break;
        }
    }
    names
}

fn subdirectories(path: &[u8], dir: &OwnedFd) -> Result<Vec<Vec<u8>>, Errno> {
    let mut entries = Dir::read_from(dir)?;
    let mut found = Vec::new();
    while let Some(entry) = entries.read() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        let may_be_dir = matches!(entry.file_type(), FileType::Directory | FileType::Unknown);
        if may_be_dir && !matches!(name, b"." | b"..") {
            found.push(join(path, name));
        }
    }
    Ok(found)
}

fn join(prefix: &[u8], name: &[u8]) -> Vec<u8> {
    match (prefix.is_empty(), name.is_empty()) {
        (true, _) => name.to_vec(),
        (_, true) => prefix.to_vec(),
        _ => [prefix, b"/", name].concat(),
    }
}
