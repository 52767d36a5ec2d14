//! Which process is meant by a number: the one that began at a certain time in this life of the machine.

use std::{
    fs,
    io::{self, Read},
    path::Path,
};

/// A process, so that another with the same number is not taken for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub pid: u32,
    pub start: u64,
    pub boot: String,
}

impl Identity {
    /// As the launcher wrote it into a box's folder.
    pub fn read(folder: &Path) -> Option<Identity> {
        Identity::parse(&fs::read_to_string(folder.join("run")).ok()?)
    }

    fn parse(text: &str) -> Option<Identity> {
        let mut words = text.split_whitespace();
        let (pid, start) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(Identity { pid, start, boot: words.next()?.to_owned() })
    }

    /// Whether it lives. One that is dead and not yet reaped does not.
    pub fn is_alive(&self) -> bool {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id");
        boot.is_ok_and(|boot| boot.trim() == self.boot) && start_time(self.pid) == Some(self.start)
    }
}

/// When a process began, in ticks since the machine did. None where there is none, or only its shell.
pub fn start_time(pid: u32) -> Option<u64> {
    parse_stat(&format!("/proc/{pid}/stat")).map(|(_, start)| start)
}

/// This process's number, and when it began, as whoever mounted `/proc` has them.
pub fn own() -> Option<(u32, u64)> {
    parse_stat("/proc/self/stat")
}

fn parse_stat(path: &str) -> Option<(u32, u64)> {
    let mut buffer = [0; 1024];
    let length = fs::File::open(path).ok()?.read(&mut buffer).ok()?;
    let stat = String::from_utf8_lossy(&buffer[..length]);
    // The name may contain anything, also brackets.
    let mut words = stat.rsplit_once(')')?.1.split_whitespace();
    let state = words.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    Some((stat.split(' ').next()?.parse().ok()?, words.nth(18)?.parse().ok()?))
}

/// Closes every descriptor from 3 on, so that a program which stays does not hold open what its starter happened to have.
/// Fails where the process has more than one thread: only at the very start of a program nothing owns a descriptor yet.
pub fn close_inherited() -> io::Result<()> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("descriptors can be closed by a process of one thread only"));
    }
    // SAFETY: a plain call on numbers. This process has one thread and has opened nothing yet, so no owner of one of these
    // descriptors exists in it.
    match unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_itself_and_no_other() {
        let pid = std::process::id();
        let start = start_time(pid).unwrap();
        assert_eq!(own(), Some((pid, start)));
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim().to_owned();
        let me = Identity { pid, start, boot };
        assert!(me.is_alive());
        assert!(!Identity { start: start + 1, ..me.clone() }.is_alive());
        assert!(!Identity { boot: "other".into(), ..me.clone() }.is_alive());
        assert_eq!(Identity::parse(&format!("{pid} {start} {}\n", me.boot)), Some(me));
        assert_eq!(Identity::parse("12"), None);
    }
}
