//! A file system of a fixed size in a sparse file: how bytes and inodes on disk are limited where the kernel has
//! no quotas that could be used.
//!
//! An image is mounted at most once: whoever mounts it holds a lock on the file, and the kernel keeps that lock as long
//! as the loop device has the file. Others that find the image locked mount its device, and so share the one file
//! system.

use crate::{kernel::new_mount, own, tree};
use rustix::{
    fd::{AsFd, AsRawFd, OwnedFd},
    fs::{FlockOperation, Mode, OFlags, SeekFrom},
    io::Errno,
    mount::MountAttrFlags,
};
use std::{
    fmt, fs,
    io::{self, ErrorKind},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// Less than this the file system itself would hardly fit into.
pub const LEAST_MB: u64 = 16;
const MKFS: &str = "mkfs.ext4";
/// How long an image may be neither free nor on a device: somebody is just mounting or unmounting it.
const PATIENCE: Duration = Duration::from_secs(10);

/// A block device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Device {
    pub major: u32,
    pub minor: u32,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

impl Device {
    /// Returns the disk that a folder is on, or none where that is no block device of this machine.
    pub fn of(folder: &Path) -> Option<Device> {
        let number = fs::metadata(folder).ok()?.dev();
        let device = Device { major: rustix::fs::major(number), minor: rustix::fs::minor(number) };
        let known = PathBuf::from(format!("/sys/dev/block/{device}")).canonicalize().ok()?;
        // Limits are those of whole disks.
        let disk = if known.join("partition").exists() { known.parent()? } else { &known };
        let text = fs::read_to_string(disk.join("dev")).ok()?;
        let (major, minor) = text.trim().split_once(':')?;
        Some(Device { major: major.parse().ok()?, minor: minor.parse().ok()? })
    }
}

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

/// Copies an image that is not mounted, holes as holes. The copy is whole or it is not there.
pub fn copy(image: &Path, path: &Path) -> io::Result<()> {
    let temporary = path.with_extension("new");
    let copied = copy_to(image, &temporary).and_then(|()| fs::rename(&temporary, path));
    if copied.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    copied
}

fn copy_to(image: &Path, temporary: &Path) -> io::Result<()> {
    let from = fs::File::open(image)?;
    let to = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(temporary)?;
    let length = from.metadata()?.len();
    to.set_len(length)?;
    let mut end = 0;
    loop {
        let start = match rustix::fs::seek(&from, SeekFrom::Data(end)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(errno) => return Err(errno.into()),
        };
        end = rustix::fs::seek(&from, SeekFrom::Hole(start))?;
        let (mut read, mut write) = (start, start);
        while read < end {
            let left = usize::try_from(end - read).unwrap_or(usize::MAX);
            if rustix::fs::copy_file_range(&from, Some(&mut read), &to, Some(&mut write), left)? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }
    to.sync_all()
}

/// Waits until an image is on no device any more, and all of it on disk.
pub fn settle(image: &Path) -> io::Result<()> {
    let file = fs::File::open(image)?;
    let deadline = Instant::now() + PATIENCE;
    while rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        if Instant::now() > deadline {
            return Err(io::Error::new(ErrorKind::ResourceBusy, "another process holds the image"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    file.sync_all()
}

/// The size that an image was made with, in MiB. None where there is no image.
pub fn size_mb(image: &Path) -> Option<u64> {
    fs::symlink_metadata(image).ok().filter(fs::Metadata::is_file).map(|found| found.len() >> 20)
}

/// The file system of an image, mounted nowhere yet. Its loop device goes with the last mount of it.
#[derive(Debug)]
pub struct Disk {
    mount: OwnedFd,
    number: u32,
}

impl Disk {
    /// Mounts an image, or once more the file system of one that is mounted.
    pub fn mount(image: &Path) -> io::Result<Disk> {
        // The descriptor of the device keeps it until it is mounted.
        let attached = Attached::new(image)?;
        Ok(Disk { mount: mount_device(attached.number)?, number: attached.number })
    }

    /// The top of the file system, while this lives.
    pub fn top(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.mount.as_raw_fd()))
    }

    /// Reads and writes past the page cache of the image's file, so that the kernel counts them for the box that
    /// causes them. File systems that cannot do that refuse.
    pub fn bypass_cache(&self) -> io::Result<()> {
        let device = open_loop(self.number)?;
        // SAFETY: a plain call with a number.
        match unsafe { libc::ioctl(device.as_raw_fd(), LOOP_SET_DIRECT_IO, 1) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Makes the directories of a box in it: its own where `stamp` is given, which tells one box from the next that has
    /// the image, and the workspace where `work` says so. Those that are there stay.
    pub fn populate(&self, stamp: Option<&str>, work: bool) -> io::Result<()> {
        let top = self.top();
        if work {
            own::make_work(&top, true)?;
        }
        let Some(stamp) = stamp else { return Ok(()) };
        let (mark, box_files) = (top.join(".box"), top.join("own"));
        match fs::read_to_string(&mark) {
            Ok(last) if last == stamp => return Ok(()),
            // Made in advance, for the first box that takes it.
            Err(error) if error.kind() == ErrorKind::NotFound && own::is_whole(&box_files) => {}
            _ => {
                tree::remove(&box_files)?;
                own::make(&box_files, true)?;
            }
        }
        fs::write(mark, stamp)
    }

    /// Makes the same directories before it is known which box they are for.
    pub fn furnish(&self) -> io::Result<()> {
        let top = self.top();
        own::make_work(&top, true)?;
        own::make(&top.join("own"), true)
    }

    /// The mount itself, for a box to attach.
    pub fn into_mount(self) -> OwnedFd {
        self.mount
    }
}

/// Keeps the file systems of a box mounted that is about to end: unmounting writes what is left to write, and the
/// end of the box would wait for that. Whoever drops the descriptors waits instead.
pub fn pin(process: u32) -> Vec<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let places = ["work", "home"].map(|place| format!("/proc/{process}/root/{place}"));
    places.iter().filter_map(|place| rustix::fs::open(place, flags, Mode::empty()).ok()).collect()
}

/// The loop device of an image. The device lasts as long as this value or a mount of it.
#[derive(Debug)]
pub struct Attached {
    _device: OwnedFd,
    number: u32,
}

impl Attached {
    /// Attaches an image to a device, or finds the device that it is attached to.
    pub fn new(image: &Path) -> io::Result<Attached> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let file = rustix::fs::open(image, flags, Mode::empty())?;
            let attached = match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => Some(attach(&file)?),
                Err(Errno::WOULDBLOCK) => find(&file)?,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            };
            match attached {
                Some((device, number)) => return Ok(Attached { _device: device, number }),
                None if Instant::now() > deadline => {
                    return Err(io::Error::new(ErrorKind::ResourceBusy, "another process holds the image"));
                }
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// The device's path.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(device_path(self.number))
    }
}

fn mount_device(number: u32) -> io::Result<OwnedFd> {
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let source = device_path(number);
    // A sparse file reads as zeros: nothing has to be written into tables of inodes in advance. What is deleted becomes
    // a hole again.
    let options = [("source", source.as_str()), ("noinit_itable", ""), ("discard", "")];
    new_mount("ext4", &options, flags)
}

const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82;
const LOOP_CONFIGURE: libc::Ioctl = 0x4C0A;
const LOOP_GET_STATUS64: libc::Ioctl = 0x4C05;
const LOOP_SET_DIRECT_IO: libc::Ioctl = 0x4C08;
const AUTOCLEAR: u32 = 4;

/// As the kernel has it.
#[repr(C)]
struct LoopInfo {
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
}

/// As the kernel has it.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

fn device_path(number: u32) -> String {
    format!("/dev/loop{number}")
}

fn open_loop(number: u32) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(device_path(number), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

/// A loop device for an image, which frees itself when nobody uses it any more.
fn attach(image: &OwnedFd) -> io::Result<(OwnedFd, u32)> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let control = rustix::fs::open("/dev/loop-control", flags, Mode::empty())?;
    // SAFETY: an all-zero configuration is valid; the rest is set below.
    let mut config: LoopConfig = unsafe { std::mem::zeroed() };
    config.fd = image.as_raw_fd().cast_unsigned();
    config.info.flags = AUTOCLEAR;
    // Others take free devices too.
    for _ in 0..64 {
        // SAFETY: a plain call; it returns a number.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
        let number = u32::try_from(number).map_err(|_| io::Error::last_os_error())?;
        let device = open_loop(number)?;
        // SAFETY: the structure has the kernel's layout and lives on this stack.
        if unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) } == 0 {
            return Ok((device, number));
        }
        let error = io::Error::last_os_error();
        if error.kind() != ErrorKind::ResourceBusy {
            return Err(error);
        }
    }
    Err(io::Error::new(ErrorKind::ResourceBusy, "no loop device is free"))
}

/// The loop device that an image is on. While its descriptor is open, the device stays what it is.
fn find(image: &OwnedFd) -> io::Result<Option<(OwnedFd, u32)>> {
    let wanted = rustix::fs::fstat(image)?;
    for entry in fs::read_dir("/sys/block")?.flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("loop")?.parse().ok());
        let Some(number) = number.filter(|_| entry.path().join("loop").exists()) else { continue };
        // It may have been freed, and removed, meanwhile.
        let Ok(device) = open_loop(number) else { continue };
        if status(device.as_fd())
            .is_some_and(|found| (found.device, found.inode) == (wanted.st_dev, wanted.st_ino))
        {
            return Ok(Some((device, number)));
        }
    }
    Ok(None)
}

fn status(device: impl AsFd) -> Option<LoopInfo> {
    // SAFETY: an all-zero answer is valid, and the kernel fills it.
    let mut info: LoopInfo = unsafe { std::mem::zeroed() };
    // SAFETY: the structure has the kernel's layout and lives on this stack.
    let done = unsafe { libc::ioctl(device.as_fd().as_raw_fd(), LOOP_GET_STATUS64, &raw mut info) };
    (done == 0).then_some(info)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_kernels_size() {
        assert_eq!((size_of::<LoopInfo>(), size_of::<LoopConfig>()), (232, 304));
    }

    #[test]
    fn disks_are_whole_ones() {
        if let Some(disk) = Device::of(Path::new("/")) {
            assert!(!Path::new(&format!("/sys/dev/block/{disk}/partition")).exists(), "{disk}");
        }
        assert_eq!(Device::of(Path::new("/proc")), None);
    }

    #[test]
    fn an_image_that_is_mounted_is_shared_and_not_mounted_twice() {
        let usable = rustix::process::geteuid().is_root() && mkfs().is_some();
        if !usable || !Path::new("/dev/loop-control").exists() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (image, moved) = (dir.path().join("a.img"), dir.path().join("b.img"));
        make(&image, 32).unwrap();
        let first = Disk::mount(&image).unwrap();
        first.furnish().unwrap();
        // Its name does not matter.
        fs::rename(&image, &moved).unwrap();
        let second = Disk::mount(&moved).unwrap();
        assert_eq!(first.number, second.number);
        let place = |disk: &Disk, name: &str| format!("/proc/self/fd/{}/{name}", disk.mount.as_raw_fd());
        fs::write(place(&first, "work/file"), "one").unwrap();
        assert_eq!(fs::read_to_string(place(&second, "work/file")).unwrap(), "one");
        // The second goes on without the first, and what was written is there for the next.
        drop(first);
        assert_eq!(fs::read_to_string(place(&second, "work/file")).unwrap(), "one");
        drop(second);
        let third = Disk::mount(&moved).unwrap();
        assert_eq!(fs::read_to_string(place(&third, "work/file")).unwrap(), "one");
    }

    #[test]
    fn a_box_finds_its_own_files_and_the_next_one_does_not() {
        let usable = rustix::process::geteuid().is_root() && mkfs().is_some();
        if !usable || !Path::new("/dev/loop-control").exists() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("a.img");
        make(&image, 32).unwrap();
        let disk = Disk::mount(&image).unwrap();
        let top = PathBuf::from(format!("/proc/self/fd/{}", disk.mount.as_raw_fd()));
        disk.furnish().unwrap();
        disk.populate(Some("first"), true).unwrap();
        fs::write(top.join("own/tmp/mine"), "x").unwrap();
        fs::write(top.join("work/kept"), "x").unwrap();
        disk.populate(Some("first"), true).unwrap();
        assert!(top.join("own/tmp/mine").exists());
        disk.populate(Some("second"), true).unwrap();
        assert!(!top.join("own/tmp/mine").exists() && top.join("work/kept").exists());
    }
}
