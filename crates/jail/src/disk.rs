//! A file system of a fixed size in a sparse file: how bytes and inodes on disk are limited where the kernel has
//! no quotas that could be used.

use crate::{kernel::new_mount, own, tree};
use rustix::{
    fd::{AsRawFd, OwnedFd},
    fs::{Mode, OFlags},
    mount::MountAttrFlags,
};
use std::{
    fs,
    io::{self, ErrorKind},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Less than this the file system itself would hardly fit into.
pub const LEAST_MB: u64 = 16;
const MKFS: &str = "mkfs.ext4";

/// Where the program is that makes file systems.
pub fn mkfs() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(usual).map(|dir| dir.join(MKFS)).find(|file| file.is_file())
}

/// Makes an image. It is whole or it is not there.
pub fn make(path: &Path, mb: u64) -> io::Result<()> {
    let mkfs = mkfs().ok_or_else(|| io::Error::new(ErrorKind::NotFound, "there is no mkfs.ext4"))?;
    let temporary = path.with_extension("new");
    let made = make_at(&mkfs, &temporary, mb).and_then(|()| fs::rename(&temporary, path));
    if made.is_err() {
        // Nobody would look for it.
        let _ = fs::remove_file(&temporary);
    }
    made
}

fn make_at(mkfs: &Path, temporary: &Path, mb: u64) -> io::Result<()> {
    let file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(temporary)?;
    file.set_len(mb << 20)?;
    let options = "nodiscard,lazy_itable_init=1,lazy_journal_init=1,root_owner=0:0";
    let made = Command::new(mkfs)
        .args(["-q", "-F", "-m", "0", "-E", options])
        .arg(temporary)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output()?;
    if !made.status.success() {
        let said = String::from_utf8_lossy(&made.stderr).trim().to_owned();
        return Err(io::Error::other(format!("mkfs.ext4 failed: {said}")));
    }
    file.sync_all()
}

/// Mounts an image, nowhere yet. Its loop device goes with the last mount of it.
pub fn mount(image: &OwnedFd) -> io::Result<OwnedFd> {
    let (_device, name) = attach(image)?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    new_mount("ext4", &[("source", &name)], flags)
}

const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82;
const LOOP_CONFIGURE: libc::Ioctl = 0x4C0A;
const AUTOCLEAR: u32 = 4;

/// As the kernel has it.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    names: [u8; 128],
    encrypt_key: [u8; 32],
    init: [u64; 2],
    reserved: [u64; 8],
}

/// A loop device for an image, which frees itself when nobody uses it any more.
fn attach(image: &OwnedFd) -> io::Result<(OwnedFd, String)> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let control = rustix::fs::open("/dev/loop-control", flags, Mode::empty())?;
    // SAFETY: an all-zero configuration is valid; the rest is set below.
    let mut config: LoopConfig = unsafe { std::mem::zeroed() };
    config.fd = image.as_raw_fd().cast_unsigned();
    config.flags = AUTOCLEAR;
    // Others take free devices too.
    for _ in 0..64 {
        // SAFETY: a plain call; it returns a number.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        let name = format!("/dev/loop{number}");
        let device = rustix::fs::open(&name, flags, Mode::empty())?;
        // SAFETY: the structure has the kernel's layout and lives on this stack.
        if unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) } == 0 {
            return Ok((device, name));
        }
        let error = io::Error::last_os_error();
        if error.kind() != ErrorKind::ResourceBusy {
            return Err(error);
        }
    }
    Err(io::Error::new(ErrorKind::ResourceBusy, "no loop device is free"))
}

/// The directories of a box in a mounted image. `stamp` tells one box from the next that has its volume.
pub fn populate(top: &Path, stamp: &str) -> io::Result<()> {
    let mark = top.join(".box");
    if fs::read_to_string(&mark).is_ok_and(|last| last == stamp) {
        return Ok(());
    }
    let box_files = top.join("own");
    tree::remove(&box_files)?;
    own::make(&box_files, true)?;
    own::make_work(top, true)?;
    fs::write(mark, stamp)
}
