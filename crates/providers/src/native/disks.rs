//! Disks made in advance: images of the sizes that were asked for last, mounted and furnished, so that a box has only to
//! take one.
//!
//! ```text
//! <data>/native/spare/disk-<MiB>-<id>.img     one that waits
//!                     template-<MiB>.img      what those of a size are copied from
//! ```
//!
//! An image keeps its mount when it is moved into its place, so the first start of a box mounts nothing. Another process
//! may take an image that is mounted here: it then shares the mount (`seawall_jail::disk`), and whoever tries next finds
//! the file gone.

use super::spares::{is_old, lock};
use seawall_api::SandboxId;
use seawall_jail::disk::{self, Disk};
use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    sync::Mutex,
};

/// How many sizes are made in advance: those that were asked for last.
const SIZES: usize = 4;
/// How many disks of boxes that were made and not started stay mounted.
const PLACED: usize = 64;
const WAITING: &str = "disk-";
const TEMPLATE: &str = "template-";

#[derive(Debug)]
struct Waiting {
    mb: u64,
    image: PathBuf,
    /// None for one that another life of this process left: it is mounted when it is used.
    disk: Option<Disk>,
}

#[derive(Debug)]
pub struct SpareDisks {
    folder: PathBuf,
    waiting: Mutex<Vec<Waiting>>,
    /// The sizes that were asked for, the last one first.
    sizes: Mutex<Vec<u64>>,
    /// Those that are in their places, and not in use yet.
    placed: Mutex<HashMap<PathBuf, Disk>>,
}

impl SpareDisks {
    /// Finds what waits in a folder, and removes what a crash left.
    pub fn open(folder: PathBuf) -> io::Result<SpareDisks> {
        let mut waiting = Vec::new();
        for entry in fs::read_dir(&folder)?.flatten() {
            let (image, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            match size_of(&name, WAITING) {
                Some(mb) => waiting.push(Waiting { mb, image, disk: None }),
                None if size_of(&name, TEMPLATE).is_some() || !name.contains(".new") => {}
                None if entry.metadata().and_then(|found| found.modified()).is_ok_and(is_old) => {
                    let _ = fs::remove_file(image);
                }
                None => {}
            }
        }
        Ok(SpareDisks {
            folder,
            waiting: Mutex::new(waiting),
            sizes: Mutex::default(),
            placed: Mutex::default(),
        })
    }

    /// Puts an image of this size at a place where there is none. False where none waited, and it was made.
    pub fn place(&self, mb: u64, place: &Path) -> io::Result<bool> {
        self.note(mb);
        while let Some(spare) = self.take(mb) {
            match fs::rename(&spare.image, place) {
                Ok(()) => {
                    self.keep(place, spare.disk);
                    return Ok(true);
                }
                // Another process was faster.
                Err(error)
                    if error.kind() == io::ErrorKind::NotFound
                        && place.parent().is_some_and(Path::exists) => {}
                Err(error) => return Err(error),
            }
        }
        match disk::copy(&self.template(mb), place) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => disk::make(place, mb),
            other => other,
        }
        .map(|()| false)
    }

    /// The file system of an image in its place.
    pub fn mount(&self, image: &Path) -> io::Result<Disk> {
        let placed = lock(&self.placed).remove(image);
        placed.map_or_else(|| Disk::mount(image), Ok)
    }

    /// Whether an image in its place is mounted already.
    pub fn is_mounted(&self, image: &Path) -> bool {
        lock(&self.placed).contains_key(image)
    }

    /// Gives up the mount of an image that is to be removed.
    pub fn give_up(&self, image: &Path) -> Option<Disk> {
        lock(&self.placed).remove(image)
    }

    fn keep(&self, place: &Path, disk: Option<Disk>) {
        let mut placed = lock(&self.placed);
        if let Some(disk) = disk.filter(|_| placed.len() < PLACED) {
            placed.insert(place.to_owned(), disk);
        }
    }

    /// One that is mounted, if there is one.
    fn take(&self, mb: u64) -> Option<Waiting> {
        let mut waiting = lock(&self.waiting);
        let fits = |spare: &Waiting| spare.mb == mb;
        let best = waiting.iter().position(|spare| fits(spare) && spare.disk.is_some());
        best.or_else(|| waiting.iter().position(fits)).map(|number| waiting.swap_remove(number))
    }

    fn note(&self, mb: u64) {
        let mut sizes = lock(&self.sizes);
        sizes.retain(|size| *size != mb);
        sizes.insert(0, mb);
        sizes.truncate(SIZES);
    }

    /// The size of which the fewest wait, where fewer do than are wanted.
    fn missing(&self, wanted: usize) -> Option<u64> {
        let (sizes, waiting) = (lock(&self.sizes), lock(&self.waiting));
        let ready = |mb: u64| waiting.iter().filter(|spare| spare.mb == mb && spare.disk.is_some()).count();
        sizes.iter().map(|mb| (ready(*mb), *mb)).filter(|(ready, _)| *ready < wanted).min().map(|(_, mb)| mb)
    }

    pub fn is_missing_some(&self, wanted: usize) -> bool {
        self.missing(wanted).is_some()
    }

    /// Makes one that is missing, and removes one of a size that nobody asks for any more.
    pub fn refill(&self, wanted: usize) -> io::Result<()> {
        self.remove_one()?;
        let Some(mb) = self.missing(wanted) else { return Ok(()) };
        let left = {
            let mut waiting = lock(&self.waiting);
            let unused = waiting.iter().position(|spare| spare.mb == mb && spare.disk.is_none());
            unused.map(|number| waiting.swap_remove(number))
        };
        let image = match left {
            Some(spare) => spare.image,
            None => {
                let image = self.folder.join(format!("{WAITING}{mb}-{}.img", SandboxId::generate()));
                self.make_template(mb)?;
                disk::copy(&self.template(mb), &image)?;
                image
            }
        };
        let disk = Some(Disk::mount(&image)?);
        lock(&self.waiting).push(Waiting { mb, image, disk });
        Ok(())
    }

    fn template(&self, mb: u64) -> PathBuf {
        self.folder.join(format!("{TEMPLATE}{mb}.img"))
    }

    /// An image with the directories of a box in it, which no box has had.
    fn make_template(&self, mb: u64) -> io::Result<()> {
        let template = self.template(mb);
        if template.exists() {
            return Ok(());
        }
        let draft = self.folder.join(format!("{TEMPLATE}{mb}.new-{}", SandboxId::generate()));
        let furnished = disk::make(&draft, mb).and_then(|()| Disk::mount(&draft)?.furnish());
        // What was written reaches the file when the file system is unmounted, which it is when the lock is free.
        let made = furnished.and_then(|()| disk::settle(&draft)).and_then(|()| fs::rename(&draft, &template));
        made.inspect_err(|_| drop(fs::remove_file(&draft)))
    }

    fn remove_one(&self) -> io::Result<()> {
        let sizes = lock(&self.sizes).clone();
        let forgotten = |mb: u64| sizes.len() == SIZES && !sizes.contains(&mb);
        let spare = {
            let mut waiting = lock(&self.waiting);
            let found = waiting.iter().position(|spare| forgotten(spare.mb));
            found.map(|number| waiting.swap_remove(number))
        };
        let Some(spare) = spare else { return Ok(()) };
        if !lock(&self.waiting).iter().any(|other| other.mb == spare.mb) {
            let _ = fs::remove_file(self.template(spare.mb));
        }
        fs::remove_file(&spare.image)
    }
}

/// The size in the name of an image that is whole.
fn size_of(name: &str, kind: &str) -> Option<u64> {
    let rest = name.strip_prefix(kind)?.strip_suffix(".img")?;
    rest.split_once('-').map_or(rest, |(size, _)| size).parse().ok()
}
