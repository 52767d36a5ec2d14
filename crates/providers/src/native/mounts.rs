//! Which folders of the host a box is given, as the descriptors that are mounted.
//!
//! Invariant: a source is resolved once, and what was checked is what is mounted. Nothing here is opened a second time by
//! its name. Who may ask for which folder is decided before, by account (`seawall_core::mounts`); this is what holds for
//! every box, also for one that was made under an older configuration.

use super::place::{Identity, MountTable, Place, identity, open_beneath, open_named};
use crate::boxes::io_error;
use rustix::{fd::OwnedFd, io::Errno};
use seawall_api::{ErrorKind, sandbox::HostMount};
use seawall_core::{Error, Result, mounts::is_plain};
use seawall_jail::order::HostFolder;
use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
};

/// Mounts of one box.
const MAX_MOUNTS: usize = 16;
/// Places of a box that nothing may be mounted over.
const OURS: [&str; 5] = ["/proc", "/sys", "/dev", "/usr", "/etc"];

/// A folder of the host that boxes may be given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountRoot {
    pub path: PathBuf,
    /// False means that it is mounted to be read only.
    pub writable: bool,
}

/// The folders of the host that boxes may be given.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Mounts {
    /// Those that some account may ask for, with all that lies beneath them.
    pub granted: Vec<MountRoot>,
    /// Those that templates mount, and nothing beneath them.
    pub furnished: Vec<MountRoot>,
    /// Those with agents' programs. No box may write them, nor what they lie in.
    pub programs: Vec<PathBuf>,
    /// Folders that no mount may show, beside the data folder.
    pub kept: Vec<PathBuf>,
}

/// The way from the specification of a box to the folders that are mounted in it.
#[derive(Debug)]
pub struct HostFolders {
    mounts: Mounts,
    data: OwnedFd,
}

impl HostFolders {
    pub fn new(data: &Path, mounts: Mounts) -> Result<HostFolders> {
        let data = open_named(data, &[]).map_err(|error| io_error(data, error))?;
        Ok(HostFolders { mounts, data })
    }

    /// Opens the folders that a box asks for. The descriptors are what is to be mounted.
    pub fn resolve(&self, asked: &[HostMount]) -> Result<Vec<(HostFolder, OwnedFd)>> {
        if asked.len() > MAX_MOUNTS {
            return Err(Error::invalid(format!("a sandbox has at most {MAX_MOUNTS} mounts")));
        }
        let mut places = BTreeSet::new();
        if let Some(twice) = asked.iter().find(|mount| !places.insert(&mount.target)) {
            return Err(Error::invalid(format!("two mounts have the same place: `{}`", twice.target)));
        }
        asked.iter().map(|mount| self.resolve_one(mount)).collect()
    }

    fn resolve_one(&self, mount: &HostMount) -> Result<(HostFolder, OwnedFd)> {
        let HostMount { source, target, writable } = mount;
        check_target(target)?;
        let root = self.root_of(mount)?;
        let relative = Path::new(source).strip_prefix(root).unwrap_or(Path::new(""));
        let opened = open_named(root, &self.written()).and_then(|root| open_beneath(&root, relative));
        let folder = opened.map_err(|error| unusable(source, error))?;
        match self.is_closed(&folder, *writable) {
            Ok(None) => Ok((HostFolder { target: target.clone(), writable: *writable }, folder)),
            Ok(Some(why)) => Err(denied(format!("`{source}` may not be mounted: {why}"))),
            Err(error) => {
                let message =
                    format!("whether `{source}` may be mounted cannot be told; name another folder");
                Err(denied(message).with_source(error))
            }
        }
    }

    /// The folder that allows a mount.
    fn root_of(&self, mount: &HostMount) -> Result<&Path> {
        let source = Path::new(&mount.source);
        let Mounts { granted, furnished, programs, .. } = &self.mounts;
        let by_program = programs.iter().filter(|program| source == *program).map(|path| (path, false));
        let by_template = furnished.iter().filter(|root| source == root.path);
        let by_grant =
            granted.iter().filter(|root| is_plain(&mount.source) && source.starts_with(&root.path));
        let allowing = by_template.chain(by_grant).map(|root| (&root.path, root.writable));
        let mut allowing = by_program.chain(allowing).peekable();
        if allowing.peek().is_none() {
            return Err(denied(format!(
                "`{}` may not be mounted: the operator can allow it by `mounts` in section [native] of seawall.toml",
                mount.source
            )));
        }
        let found = allowing.find(|(_, writable)| *writable || !mount.writable);
        found.map(|(path, _)| path.as_path()).ok_or_else(|| {
            denied(format!(
                "`{}` may be mounted to be read only: the operator can allow more with `writable = true`, and never \
                 for an agent's program",
                mount.source
            ))
        })
    }

    /// Folders in which boxes can have made links.
    fn written(&self) -> Vec<Identity> {
        let Mounts { granted, furnished, .. } = &self.mounts;
        let all = granted.iter().chain(furnished).filter(|root| root.writable);
        all.filter_map(|root| identity(&open_named(&root.path, &[]).ok()?).ok()).collect()
    }

    /// Why an open folder may not be mounted, where it may not.
    fn is_closed(&self, folder: &OwnedFd, writable: bool) -> io::Result<Option<&'static str>> {
        let mounts = MountTable::read()?;
        let place = Place::of(folder, &mounts)?;
        if place.overlaps(&Place::of(&self.data, &mounts)?)
            || place.shows_mounts_of(&self.data, &mounts)?
            || self.overlaps_any(&place, &self.mounts.kept, &mounts)?
        {
            return Ok(Some("it is, contains or lies in a folder in which seawall keeps its own files"));
        }
        match writable && self.overlaps_any(&place, &self.mounts.programs, &mounts)? {
            true => Ok(Some(
                "it is, contains or lies in the folder of an agent's program, which no sandbox may write",
            )),
            false => Ok(None),
        }
    }

    /// What is not there overlaps nothing.
    fn overlaps_any(&self, place: &Place, others: &[PathBuf], mounts: &MountTable) -> io::Result<bool> {
        for other in others {
            match open_named(other, &self.written()) {
                Ok(other) if place.overlaps(&Place::of(&other, mounts)?) => return Ok(true),
                Ok(_) => {}
                Err(error) => match error.kind() {
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {}
                    _ => return Err(error),
                },
            }
        }
        Ok(false)
    }
}

fn check_target(target: &str) -> Result<()> {
    match is_plain(target) && !OURS.iter().any(|ours| Path::new(target).starts_with(ours)) {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "`{target}` cannot be mounted over: give an absolute path such as /data, not in /usr, /etc, /dev, /proc or /sys"
        ))),
    }
}

fn denied(message: String) -> Error {
    Error::new(ErrorKind::Denied, message).with_code("mount_denied")
}

/// A folder that is allowed, and cannot be opened as it must be.
fn unusable(source: &str, error: io::Error) -> Error {
    match Errno::from_io_error(&error) {
        Some(Errno::LOOP | Errno::XDEV) => denied(format!(
            "`{source}` goes through a symbolic link, and none is followed; name the folder itself"
        )),
        Some(Errno::NOENT | Errno::NOTDIR) => {
            Error::invalid(format!("`{source}` is not a folder of the host")).with_source(error)
        }
        _ => denied(format!("`{source}` cannot be opened")).with_source(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use std::{
        fs,
        os::unix::fs::{MetadataExt, symlink},
        sync::atomic::{AtomicBool, Ordering},
    };

    struct Yard {
        dir: tempfile::TempDir,
        folders: HostFolders,
    }

    /// `open` is granted to be read, `open/rw` and `deep` to be written, `agents` furnished. The data folder is `deep/data`.
    fn yard() -> Yard {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        for name in [
            "open/inner",
            "open/rw/x",
            "closed",
            "deep/data/native",
            "deep/beside",
            "deep/bin/agent",
            "agents/a/lib",
        ] {
            fs::create_dir_all(base.join(name)).unwrap();
        }
        let root = |name: &str, writable| MountRoot { path: base.join(name), writable };
        let mounts = Mounts {
            granted: vec![root("open", false), root("open/rw", true), root("deep", true)],
            furnished: vec![root("agents", false)],
            programs: vec![base.join("agents/a"), base.join("deep/bin/agent")],
            kept: vec![base.join("open/inner/bucket")],
        };
        let folders = HostFolders::new(&base.join("deep/data"), mounts).unwrap();
        Yard { dir, folders }
    }

    impl Yard {
        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().canonicalize().unwrap().join(name)
        }

        fn ask(&self, source: &str, target: &str, writable: bool) -> Result<u64> {
            let source = self.path(source).display().to_string();
            let found = self.folders.resolve(&[HostMount { source, target: target.into(), writable }])?;
            Ok(rustix::fs::fstat(&found[0].1).unwrap().st_ino)
        }

        #[track_caller]
        fn refused(&self, source: &str, writable: bool, kind: ErrorKind) {
            let error = self.ask(source, "/data", writable).expect_err(source);
            assert_eq!(error.kind(), kind, "{source}: {}", error.chain());
        }
    }

    #[test]
    fn mounts_are_only_what_the_operator_allows() {
        let yard = yard();
        symlink(yard.path("closed"), yard.path("open/out")).unwrap();
        symlink("inner", yard.path("open/in")).unwrap();
        let inode = |name: &str| fs::metadata(yard.path(name)).unwrap().ino();
        for (source, writable) in [
            ("open", false),
            ("open/inner", false),
            ("open/rw/x", true),
            ("agents/a", false),
            ("deep/beside", true),
        ] {
            assert_eq!(yard.ask(source, "/data", writable).unwrap(), inode(source), "{source}");
        }
        for source in ["closed", "open/out", "open/in", "open/../closed", "agents/a/lib"] {
            yard.refused(source, false, ErrorKind::Denied);
        }
        yard.refused("open/inner", true, ErrorKind::Denied);
        yard.refused("open/missing", false, ErrorKind::Invalid);
        for target in ["data", "/", "/data/../etc", "/usr/lib", "/proc"] {
            assert_eq!(yard.ask("open", target, false).unwrap_err().kind(), ErrorKind::Invalid, "{target}");
        }
    }

    #[test]
    fn the_data_folder_is_in_no_mount_and_no_mount_in_it() {
        let yard = yard();
        for source in ["deep", "deep/data", "deep/data/native"] {
            yard.refused(source, false, ErrorKind::Denied);
        }
        // The bucket is as closed as the data folder is.
        yard.ask("open/inner", "/data", false).unwrap();
        fs::create_dir(yard.path("open/inner/bucket")).unwrap();
        yard.refused("open/inner", false, ErrorKind::Denied);
    }

    #[test]
    fn an_agents_program_is_never_writable() {
        let yard = yard();
        yard.refused("agents/a", true, ErrorKind::Denied);
        for source in ["deep/bin", "deep/bin/agent"] {
            yard.ask(source, "/data", false).unwrap();
            yard.refused(source, true, ErrorKind::Denied);
        }
    }

    /// As root a mount can show the data folder elsewhere, under another name.
    #[test]
    fn a_second_mount_of_the_data_folder_is_known_as_that() {
        let yard = yard();
        if !rustix::process::geteuid().is_root() {
            eprintln!(
                "skipped native::mounts::a_second_mount_of_the_data_folder_is_known_as_that: capability: root"
            );
            return;
        }
        let (view, volumes) = (yard.path("open/view"), yard.path("deep/data/native/volumes"));
        fs::create_dir(&view).unwrap();
        fs::create_dir(&volumes).unwrap();
        let mount = |args: &[&str], place: &Path| {
            assert!(std::process::Command::new("mount").args(args).arg(place).status().unwrap().success());
        };
        let umount = |place: &Path| {
            assert!(std::process::Command::new("umount").arg(place).status().unwrap().success());
        };
        let asked = |source: &str| yard.ask(source, "/data", false).map_err(|error| error.kind());
        mount(&["--bind", &yard.path("deep/data/native").display().to_string()], &view);
        let bound = asked("open/view");
        umount(&view);
        // Another file system in the data folder, and the same one elsewhere.
        mount(&["-t", "tmpfs", "none"], &volumes);
        fs::create_dir(volumes.join("one")).unwrap();
        mount(&["--bind", &volumes.join("one").display().to_string()], &view);
        let foreign = asked("open/view");
        umount(&view);
        umount(&volumes);
        assert_eq!((bound, foreign), (Err(ErrorKind::Denied), Err(ErrorKind::Denied)));
        yard.ask("open/view", "/data", false).unwrap();
    }

    /// A box that can write an allowed folder exchanges a directory with a link while others are given that directory.
    #[test]
    fn a_source_that_is_exchanged_meanwhile_leads_nowhere_else() {
        let yard = yard();
        let (inside, link) = (yard.path("open/rw/x"), yard.path("open/rw/link"));
        symlink(yard.path("closed"), &link).unwrap();
        let wanted = fs::metadata(&inside).unwrap().ino();
        let done = AtomicBool::new(false);
        let exchange = || renameat_with(CWD, &inside, CWD, &link, RenameFlags::EXCHANGE).unwrap();
        let (mut opened, mut refused, mut wrong) = (0, 0, Vec::new());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    exchange();
                }
            });
            for _ in 0..4000 {
                match yard.ask("open/rw/x", "/data", true) {
                    Ok(inode) if inode == wanted => opened += 1,
                    Err(error) if error.kind() == ErrorKind::Denied => refused += 1,
                    other => wrong.push(other.map_err(|error| error.chain())),
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        assert!(wrong.is_empty(), "{wrong:?}");
        assert!(opened > 0 && refused > 0, "there was no race: {opened} opened, {refused} refused");
    }
}
