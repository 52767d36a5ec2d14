//! The directories of a box that live on disk: its own, which go with it, and its workspace, which does not.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::{DirBuilderExt, PermissionsExt, chown},
    path::Path,
};

/// The box's own, and where they appear in it.
pub const OWN: [(&str, &str); 6] = [
    ("home", "home"),
    ("root", "root"),
    ("var", "var"),
    ("opt", "opt"),
    ("local", "usr/local"),
    ("tmp", "tmp"),
];

/// The plain user of a box, as files on disk have it: ids of boxes are mapped by their mounts.
pub const USER: u32 = 1000;

/// Made last: where it is, all are.
const LAST: &str = "var/tmp";

/// Makes what is missing of the box's own directories. `users`: there are others than root.
pub fn make(own: &Path, users: bool) -> io::Result<()> {
    make_dir(own, 0o700, None)?;
    for (name, _) in OWN {
        make_dir(&own.join(name), mode(name), None)?;
    }
    if users {
        make_dir(&own.join("home/user"), 0o755, Some(USER))?;
    }
    make_dir(&own.join(LAST), 0o1777, None)
}

/// Whether all of them are there.
pub fn is_whole(own: &Path) -> bool {
    own.join(LAST).exists()
}

/// Makes the workspace beneath `volume`, unless it is there.
pub fn make_work(volume: &Path, users: bool) -> io::Result<()> {
    make_dir(&volume.join("work"), 0o755, users.then_some(USER))
}

/// One that exists stays as it is.
pub fn make_dir(path: &Path, mode: u32, owner: Option<u32>) -> io::Result<()> {
    match DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        other => other?,
    }
    // What the creation mask took away.
    if mode & 0o077 != 0 {
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    }
    match owner {
        Some(owner) => chown(path, Some(owner), Some(owner)),
        None => Ok(()),
    }
}

fn mode(name: &str) -> u32 {
    match name {
        "root" => 0o700,
        "tmp" => 0o1777,
        _ => 0o755,
    }
}
