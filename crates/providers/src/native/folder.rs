//! The folders of boxes.
//!
//! ```text
//! <data>/native/boxes/<id>/box.json    the intent, synced before anything else is made
//!                          run         the process 1 of the box, noted before it does anything
//!                          end         why it was stopped, written by the host
//!                          ended       why it ended by itself, written by the guest
//!                          wire.sock   where the guest listens
//!                          own/        home, root, var, opt, usr/local, tmp of the box; go with it
//!                          disk.img    the same on a disk of a fixed size, where the volume is on none or is shared
//! <data>/native/volumes/<id>/work      the data volume; outlives the box
//!                           disk.img   the volume and the box's own files on a disk of a fixed size
//!                       <name>/work    a volume that boxes share
//!                             disk.img the same on a disk of a fixed size
//! <data>/native/etc                    what boxes may have of the host's /etc
//! ```
//!
//! What is there decides where the files of a box are, not what its limits say now: a volume stays as it was made.

use super::spares::{MakeGroup, Spares};
use crate::{
    boxes::{Boxes, Intent, Lives, io_error, make_private, no_box},
    volumes,
};
use seawall_api::{
    SandboxId,
    sandbox::{Egress, EndReason, Limits, SandboxSpec},
};
use seawall_core::{
    Error, Result,
    ports::{BoxInfo, BoxState},
    steps::reached,
};
use seawall_jail::{
    disk::{self, Disk},
    etc,
    order::Disks,
    own::{self, make_dir},
    process::Identity,
    tree::remove as remove_tree,
};
use std::{
    fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::Arc,
};

/// A disk of a fixed size.
const IMAGE: &str = "disk.img";
/// Of a reason.
const LONGEST_WORD: u64 = 64;

#[derive(Debug, Clone)]
pub struct Folders {
    pub boxes: Boxes,
    pub volumes: PathBuf,
    etc: PathBuf,
    /// Whether boxes have other users than root.
    users: bool,
    pub spares: Arc<Spares>,
}

/// The disks of a box, for its launcher.
#[derive(Debug)]
pub struct Mounted {
    pub disks: Disks,
    /// That of the box's own files alone.
    pub own: Option<Disk>,
    /// That of the volume.
    pub volume: Option<Disk>,
}

impl Mounted {
    /// Has what the box reads and writes counted as its own: see [`Disk::bypass_cache`].
    pub fn bypass_cache(&self) -> io::Result<()> {
        [&self.own, &self.volume].into_iter().flatten().try_for_each(Disk::bypass_cache)
    }
}

impl Folders {
    /// `lives`: whether the kernel has processes of a box, whatever its folder says.
    pub fn open(data: &Path, make_group: Option<Box<dyn MakeGroup>>, lives: Lives) -> Result<Folders> {
        let base = data.join("native");
        let volumes = base.join("volumes");
        make_private(&volumes).map_err(|e| io_error(&volumes, e))?;
        let users = rustix::process::geteuid().is_root();
        let spare = base.join("spare");
        let spares = Arc::new(Spares::open(spare.clone(), make_group).map_err(|e| io_error(&spare, e))?);
        let boxes = base.join("boxes");
        let process = boxes.clone();
        let lives = move |id: SandboxId| {
            let noted = Identity::read(&process.join(id.to_string()));
            noted.is_some_and(|noted| noted.is_alive()) || lives(id)
        };
        let boxes = Boxes::open(boxes, Arc::new(lives))?;
        Ok(Folders { boxes, volumes, etc: base.join("etc"), users, spares })
    }

    /// Copies what boxes may have of the host's `/etc`, unless that was done since it changed.
    pub fn refresh_etc(&self) -> Result<()> {
        let (stamp, now) = (self.etc.with_extension("stamp"), etc::stamp());
        if fs::read_to_string(&stamp).is_ok_and(|last| last == now) && self.etc.exists() {
            return Ok(());
        }
        let [copy, aside, lock] = ["new", "old", "lock"].map(|end| self.etc.with_extension(end));
        let replace = || -> io::Result<()> {
            // One at a time; whoever waited finds it done.
            let lock = fs::OpenOptions::new().create(true).truncate(false).write(true).open(&lock)?;
            lock.lock()?;
            if fs::read_to_string(&stamp).is_ok_and(|last| last == now) && self.etc.exists() {
                return Ok(());
            }
            remove_tree(&copy)?;
            remove_tree(&aside)?;
            etc::copy(&copy)?;
            // Boxes that run keep what they have mounted.
            match fs::rename(&self.etc, &aside) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            fs::rename(&copy, &self.etc)?;
            fs::write(&stamp, &now)?;
            remove_tree(&aside)
        };
        replace().map_err(|error| {
            let _ = remove_tree(&copy);
            io_error(&self.etc, error)
        })
    }

    pub fn own(&self, id: SandboxId) -> PathBuf {
        self.boxes.of(id).join("own")
    }

    fn volume(&self, id: SandboxId, spec: &SandboxSpec) -> PathBuf {
        self.volumes.join(spec.volume_of(id))
    }

    pub fn work(&self, id: SandboxId, spec: &SandboxSpec) -> PathBuf {
        self.volume(id, spec).join("work")
    }

    /// The image with the volume, where that is on a disk of a fixed size. With it the box's own files, unless the
    /// volume is shared.
    pub fn volume_image(&self, id: SandboxId, spec: &SandboxSpec) -> PathBuf {
        self.volume(id, spec).join(IMAGE)
    }

    /// The image with the box's own files alone.
    pub fn own_image(&self, id: SandboxId) -> PathBuf {
        self.boxes.of(id).join(IMAGE)
    }

    /// Which files of a box are on disks of a fixed size.
    pub fn disks(&self, id: SandboxId, spec: &SandboxSpec) -> Disks {
        match (self.own_image(id).exists(), self.volume_image(id, spec).exists()) {
            (false, false) => Disks::None,
            (false, true) if spec.volume.is_some() => Disks::Work,
            (false, true) => Disks::One,
            (true, false) => Disks::Own,
            (true, true) => Disks::Two,
        }
    }

    /// Makes the directories that the box sees, or disks of `disk_mb` for them. Existing ones stay as they are.
    pub fn make_own(&self, id: SandboxId, spec: &SandboxSpec, disk_mb: Option<u64>) -> Result<()> {
        let (own, volume) = (self.own(id), self.volume(id, spec));
        let _alone = spec.volume.as_ref().map(|_| volumes::lock(&self.volumes)).transpose()?;
        match (disk_mb, self.disks(id, spec)) {
            (_, Disks::One | Disks::Two) => Ok(()),
            (None, Disks::None) => self.make_folders(&own, Some(&volume)),
            (None, Disks::Work) => self.make_folders(&own, None),
            (_, Disks::Own) => make_volume(&volume, self.users).map_err(|error| io_error(&volume, error)),
            (Some(mb), Disks::None | Disks::Work) => self.make_disks(id, spec, mb),
        }
    }

    fn make_folders(&self, own: &Path, volume: Option<&Path>) -> Result<()> {
        if own::is_whole(own) && volume.is_none_or(Path::exists) {
            return Ok(());
        }
        if let Some(volume) = volume
            && !own.exists()
            && !volume.exists()
            && self.spares.place(own, volume)
        {
            return Ok(());
        }
        let made = match volume {
            Some(volume) => make_tree(own, volume, self.users),
            None => own::make(own, self.users),
        };
        made.map_err(|error| io_error(own, error))
    }

    /// A volume that is there stays as it was made. A box that had its files in folders keeps them there.
    fn make_disks(&self, id: SandboxId, spec: &SandboxSpec, mb: u64) -> Result<()> {
        let (volume, image) = (self.volume(id, spec), self.volume_image(id, spec));
        let has_volume = volume.join("work").exists() || image.exists();
        let make = || -> io::Result<()> {
            if !has_volume {
                make_dir(&volume, 0o700, None)?;
                reached("the volume's folder is made");
                self.spares.place_disk(mb, &image)?;
                reached("the volume's disk is made");
            }
            if (has_volume || spec.volume.is_some()) && !own::is_whole(&self.own(id)) {
                self.spares.place_disk(mb, &self.own_image(id))?;
                reached("the box's own disk is made");
            }
            Ok(())
        };
        warn_of_little_space(&self.volumes, mb);
        make().map_err(|error| {
            // A volume that was never one. One with files in it refuses.
            let _ = fs::remove_dir(&volume);
            io_error(&image, error)
        })
    }

    /// Mounts the disks of a box, and makes its directories in them. `stamp` tells the box from others that had its
    /// disk before.
    pub fn mount(&self, id: SandboxId, spec: &SandboxSpec, disks: Disks, stamp: &str) -> io::Result<Mounted> {
        let on = |image: PathBuf, stamp: Option<&str>, work: bool| -> io::Result<Option<Disk>> {
            let disk = self.spares.disks.mount(&image)?;
            disk.populate(stamp, work)?;
            Ok(Some(disk))
        };
        let own = match disks {
            Disks::Own | Disks::Two => on(self.own_image(id), Some(stamp), false)?,
            Disks::None | Disks::One | Disks::Work => None,
        };
        let volume = match disks {
            Disks::One => on(self.volume_image(id, spec), Some(stamp), true)?,
            Disks::Work | Disks::Two => on(self.volume_image(id, spec), None, true)?,
            Disks::None | Disks::Own => None,
        };
        Ok(Mounted { disks, own, volume })
    }

    /// Whether the disks of a box are mounted already, so that a start does not have to wait for that.
    pub fn is_mounted(&self, id: SandboxId, spec: &SandboxSpec, disks: Disks) -> bool {
        let is_mounted = |image: PathBuf| self.spares.disks.is_mounted(&image);
        match disks {
            Disks::None => true,
            Disks::One | Disks::Work => is_mounted(self.volume_image(id, spec)),
            Disks::Own => is_mounted(self.own_image(id)),
            Disks::Two => is_mounted(self.own_image(id)) && is_mounted(self.volume_image(id, spec)),
        }
    }

    /// Refuses what takes space where no more is left than is kept in reserve.
    pub fn check_reserve(&self, reserve_mb: Option<u64>) -> Result<()> {
        let found =
            rustix::fs::statvfs(&self.volumes).map_err(|errno| io_error(&self.volumes, errno.into()))?;
        let mb = |blocks: u64| blocks.saturating_mul(found.f_frsize) >> 20;
        let (free, reserve) = (mb(found.f_bavail), reserve_mb.unwrap_or(usual_reserve(mb(found.f_blocks))));
        if free >= reserve {
            return Ok(());
        }
        let message = format!(
            "the data disk has {free} MB left, and {reserve} MB are kept in reserve: remove sandboxes or volumes, \
             or lower `disk_reserve_mb` in section [native] of seawall.toml"
        );
        Err(Error::unavailable(message).with_code("disk_reserve"))
    }

    pub fn info(&self, id: SandboxId) -> Result<BoxInfo> {
        let intent = self.boxes.intent(id).and_then(|intent| intent.ok_or_else(|| no_box(id)));
        let pid = || self.process(id).filter(Identity::is_alive).map(|process| process.pid);
        let pid = if intent.is_err() { pid() } else { None };
        self.boxes.seen(id, intent.map(|intent| self.info_of(intent)), pid)
    }

    pub fn info_of(&self, intent: Intent) -> BoxInfo {
        let id = intent.id;
        let (state, reason, pid) = self.state(id);
        let image = self.volume_image(id, &intent.spec);
        let disk_mb = disk::size_mb(&image);
        let volume =
            if disk_mb.is_some() { image } else { self.work(id, &intent.spec) }.display().to_string();
        let (spec, created_at) = (intent.spec, intent.created_at);
        // The rest is what its group has.
        let limits = Limits { disk_mb, ..Limits::default() };
        BoxInfo { id, state, reason, spec, created_at, pid, volume, limits, egress: Egress::None }
    }

    /// The process 1 that runs, or ran last.
    pub fn process(&self, id: SandboxId) -> Option<Identity> {
        Identity::read(&self.boxes.of(id))
    }

    fn state(&self, id: SandboxId) -> (BoxState, Option<EndReason>, Option<u32>) {
        let Some(process) = self.process(id) else { return (BoxState::Created, None, None) };
        if process.is_alive() {
            return (BoxState::Running, None, Some(process.pid));
        }
        let reason = match fs::read_to_string(self.boxes.of(id).join("end")) {
            Ok(text) => text.trim().parse().unwrap_or(EndReason::Stopped),
            Err(_) => self.own_word(id).unwrap_or(EndReason::Failed("guest_died".into())),
        };
        (BoxState::Stopped, Some(reason), None)
    }

    /// Why a guest ended its box by itself, as it says. It may say no more than that its time was over.
    fn own_word(&self, id: SandboxId) -> Option<EndReason> {
        let mut word = String::new();
        let file = fs::File::open(self.boxes.of(id).join("ended")).ok()?;
        file.take(LONGEST_WORD).read_to_string(&mut word).ok()?;
        word.parse().ok().filter(|reason| matches!(reason, EndReason::Idle | EndReason::MaxLifetime))
    }

    /// Why it is about to end. Written beforehand: afterwards a crash would leave a lie.
    pub fn write_end(&self, id: SandboxId, reason: Option<&EndReason>) -> Result<()> {
        let path = self.boxes.of(id).join("end");
        let done = match reason {
            Some(reason) => fs::write(&path, reason.to_string()),
            None => fs::remove_file(&path),
        };
        match done {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_error(&path, error)),
            _ => Ok(()),
        }
    }

    /// Removes the box's folder, and the volume of its own where asked. The folder goes last.
    pub fn remove(&self, id: SandboxId, volume: bool) -> Result<()> {
        for image in [self.own_image(id), self.volumes.join(id.to_string()).join(IMAGE)] {
            let unused = self.spares.disks.give_up(&image);
            self.spares.release(unused.map(Disk::into_mount).into_iter().collect());
        }
        if volume {
            let volume = self.volumes.join(id.to_string());
            let aside = self.boxes.aside(&id.to_string(), "volume");
            match fs::rename(&volume, &aside) {
                Ok(()) => self.spares.remove(aside),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                // An earlier removal was cut short there, or there is no space for a new name.
                Err(_) => remove_tree(&volume).map_err(|e| io_error(&volume, e))?,
            }
            reached("the volume is removed");
        }
        if let Some(aside) = self.boxes.put_aside(id)? {
            self.spares.remove(aside);
        }
        Ok(())
    }
}

/// Images take space when they are written to. Then it is too late to say so.
fn warn_of_little_space(folder: &Path, mb: u64) {
    let Ok(found) = rustix::fs::statvfs(folder) else { return };
    let free = (found.f_bavail * found.f_frsize) >> 20;
    if free < mb {
        tracing::warn!("a disk of {mb} MB was asked for, and {} has {free} MB left", folder.display());
    }
}

/// The space that is kept free unless the operator says otherwise, of a disk of this size.
fn usual_reserve(disk_mb: u64) -> u64 {
    (disk_mb / 20).min(1024)
}

fn make_volume(volume: &Path, users: bool) -> io::Result<()> {
    make_dir(volume, 0o700, None)?;
    reached("the volume's folder is made");
    own::make_work(volume, users)
}

/// The directories of a box and its volume. Existing ones stay as they are.
pub fn make_tree(own: &Path, volume: &Path, users: bool) -> io::Result<()> {
    make_volume(volume, users)?;
    own::make(own, users)?;
    reached("the box's own folders are made");
    Ok(())
}
