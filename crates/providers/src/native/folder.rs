//! The folders of boxes.
//!
//! ```text
//! <data>/native/boxes/<id>/box.json    the intent, synced before anything else is made
//!                          run         the process 1 of the box, noted before it does anything
//!                          end         why it was stopped, written by the host
//!                          ended       why it ended by itself, written by the guest
//!                          wire.sock   where the guest listens
//!                          own/        home, root, var, opt, usr/local, tmp of the box; go with it
//! <data>/native/volumes/<id>/work      the data volume; outlives the box
//!                       <name>/work    one that boxes share
//! <data>/native/etc                    what boxes may have of the host's /etc
//! ```

use super::spares::{MakeGroup, Spares};
use crate::{
    boxes::{Boxes, Intent, Lives, io_error, make_private, no_box},
    volumes,
};
use seawall_api::{
    SandboxId,
    sandbox::{EndReason, Limits, SandboxSpec},
};
use seawall_core::{
    Error, Result,
    ports::{BoxInfo, BoxState},
    steps::reached,
};
use seawall_jail::{
    disk, etc,
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

    /// The image that holds the volume and the box's files, where its disk is limited.
    pub fn image(&self, id: SandboxId) -> PathBuf {
        self.volumes.join(id.to_string()).join("disk.img")
    }

    /// The directories that the box sees. Existing ones stay as they are.
    pub fn make_own(&self, id: SandboxId, spec: &SandboxSpec) -> Result<()> {
        let (own, volume) = (self.own(id), self.volume(id, spec));
        let _alone = spec.volume.as_ref().map(|_| volumes::lock(&self.volumes)).transpose()?;
        self.check_volume(id, spec)?;
        if let Some(mb) = spec.limits.disk_mb {
            let image = self.image(id);
            let make = || -> io::Result<()> {
                make_dir(&own, 0o700, None)?;
                make_dir(&volume, 0o700, None)?;
                reached("the volume's folder is made");
                if image.exists() { Ok(()) } else { disk::make(&image, mb) }
            };
            warn_of_little_space(&self.volumes, mb);
            return make().map_err(|error| {
                // A volume that was never one. One with files in it refuses.
                let _ = fs::remove_dir(&volume);
                io_error(&image, error)
            });
        }
        if own::is_whole(&own) && volume.exists() {
            return Ok(());
        }
        if !own.exists() && !volume.exists() && self.spares.place(&own, &volume) {
            return Ok(());
        }
        make_tree(&own, &volume, self.users).map_err(|error| io_error(&own, error))
    }

    /// A volume that was kept is of one kind or the other; the wrong one would hide its files.
    fn check_volume(&self, id: SandboxId, spec: &SandboxSpec) -> Result<()> {
        let (is, wanted) = match spec.limits.disk_mb.is_some() {
            true => {
                (self.work(id, spec).exists(), "the volume of this sandbox has no limit: leave `disk_mb` out")
            }
            false => (self.image(id).exists(), "the volume of this sandbox is limited: set `disk_mb`"),
        };
        let advice = "or remove it with `seawall volumes rm`";
        if is { Err(Error::conflict(format!("{wanted}, {advice}"))) } else { Ok(()) }
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
        let image = intent.spec.limits.disk_mb.is_some();
        let volume = if image { self.image(id) } else { self.work(id, &intent.spec) }.display().to_string();
        let (spec, created_at, limits) = (intent.spec, intent.created_at, Limits::default());
        BoxInfo { id, state, reason, spec, created_at, pid, volume, limits }
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

/// The directories of a box and its volume. Existing ones stay as they are.
pub fn make_tree(own: &Path, volume: &Path, users: bool) -> io::Result<()> {
    make_dir(volume, 0o700, None)?;
    reached("the volume's folder is made");
    own::make_work(volume, users)?;
    own::make(own, users)?;
    reached("the box's own folders are made");
    Ok(())
}
