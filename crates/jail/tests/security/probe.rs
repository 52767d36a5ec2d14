//! The attacker's tools: what an attempt is, what it knows of the host, and how it says what came of it.

use std::{
    ffi::{CStr, CString},
    fs::{self, OpenOptions},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
};
use tempfile::TempDir;

pub const WON: i32 = 0;
pub const REFUSED: i32 = 10;
pub const UNTRIED: i32 = 11;

/// In the environment of the runner, and of nothing else.
pub const MARKER: &str = "SEAWALL_ESCAPE_MARKER";

/// An attempt, as code.
pub type Run = fn(&Facts) -> Outcome;

/// What came of an attempt.
#[derive(Debug)]
pub enum Outcome {
    /// The attacker has what he wanted.
    Won(String),
    /// The kernel's number; 0 where it did not refuse, and there was just nothing to be had.
    Refused(i32, String),
    /// It cannot be tried here.
    Untried(String),
}

impl Outcome {
    pub fn code(&self) -> i32 {
        match self {
            Outcome::Won(_) => WON,
            Outcome::Refused(..) => REFUSED,
            Outcome::Untried(_) => UNTRIED,
        }
    }

    /// The number and a text, as the runner reads them.
    pub fn line(&self) -> String {
        match self {
            Outcome::Won(text) | Outcome::Untried(text) => format!("0 {text}"),
            Outcome::Refused(errno, text) => format!("{errno} {}: {text}", errno_name(*errno)),
        }
    }
}

/// One thing to try.
#[derive(Clone, Copy)]
pub struct Attempt {
    pub name: &'static str,
    pub run: Run,
    pub control: Control,
    /// What may be answered in a box.
    pub errnos: &'static [i32],
}

/// How it is shown that the attempt would work where nothing stops it.
#[derive(Clone, Copy)]
pub enum Control {
    /// As root of the host.
    Host,
    /// As root of the host, in new namespaces of these kinds, so that the host stays as it is.
    Apart(libc::c_int),
    /// It would hurt the host, or not every host has it. Then exactly this must be answered.
    None { errno: i32, why: &'static str },
}

pub const fn host(name: &'static str, run: Run, errnos: &'static [i32]) -> Attempt {
    Attempt { name, run, control: Control::Host, errnos }
}

pub const fn apart(name: &'static str, run: Run, namespaces: libc::c_int, errnos: &'static [i32]) -> Attempt {
    Attempt { name, run, control: Control::Apart(namespaces), errnos }
}

pub const fn no_control(name: &'static str, run: Run, errno: i32, why: &'static str) -> Attempt {
    Attempt { name, run, control: Control::None { errno, why }, errnos: &[] }
}

/// What the attacker was told of the host: the runner spares him the guessing.
#[derive(Debug, Clone, Default)]
pub struct Facts(Vec<(String, String)>);

impl Facts {
    pub fn parse(args: &[String]) -> Facts {
        let pair = |arg: &String| arg.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
        Facts(args.iter().filter_map(pair).collect())
    }

    /// Empty where it was not told.
    pub fn get(&self, key: &str) -> &str {
        self.0.iter().find(|(known, _)| known == key).map_or("", |(_, value)| value)
    }

    pub fn number(&self, key: &str) -> i64 {
        self.get(key).parse().unwrap_or(0)
    }

    #[must_use]
    pub fn with(mut self, key: &str, value: impl ToString) -> Facts {
        self.0.retain(|(known, _)| known != key);
        self.0.push((key.to_owned(), value.to_string()));
        self
    }

    pub fn args(&self) -> Vec<String> {
        self.0.iter().map(|(key, value)| format!("{key}={value}")).collect()
    }
}

/// An argument of a system call.
pub enum Arg<'a> {
    N(i64),
    S(&'a CStr),
    B(&'a mut [u8]),
    W(&'a mut [u64]),
}

/// A system call as it is: no library stands between the attacker and the kernel.
pub fn call<const LEN: usize>(number: libc::c_long, args: [Arg<'_>; LEN]) -> io::Result<i64> {
    let mut words = [0usize; 6];
    for (word, arg) in words.iter_mut().zip(args) {
        *word = match arg {
            Arg::N(number) => number as usize,
            Arg::S(text) => text.as_ptr() as usize,
            Arg::B(bytes) => bytes.as_mut_ptr() as usize,
            Arg::W(words) => words.as_mut_ptr() as usize,
        };
    }
    let [a, b, c, d, e, f] = words;
    // SAFETY: texts end with zero, buffers have the room that their call wants, and both outlive the call.
    match unsafe { libc::syscall(number, a, b, c, d, e, f) } {
        -1 => Err(io::Error::last_os_error()),
        done => Ok(done),
    }
}

pub fn refused(error: &io::Error, what: &str) -> Outcome {
    Outcome::Refused(error.raw_os_error().unwrap_or(0), format!("{what}: {error}"))
}

/// Success is the attacker's.
pub fn judged<T>(result: io::Result<T>, what: &str) -> Outcome {
    match result {
        Ok(_) => Outcome::Won(what.to_owned()),
        Err(error) => refused(&error, what),
    }
}

pub fn won(text: impl Into<String>) -> Outcome {
    Outcome::Won(text.into())
}

/// Nothing was refused, and nothing gained.
pub fn nothing(text: impl Into<String>) -> Outcome {
    Outcome::Refused(0, text.into())
}

pub fn untried(text: impl Into<String>) -> Outcome {
    Outcome::Untried(text.into())
}

/// The first success; where there is none, the last refusal.
pub fn best(outcomes: impl IntoIterator<Item = Outcome>) -> Outcome {
    let mut last = untried("there was nothing to try");
    for outcome in outcomes {
        if matches!(outcome, Outcome::Won(_)) {
            return outcome;
        }
        last = outcome;
    }
    last
}

/// Reads a file in which the runner has put its secret.
pub fn secret_in(path: impl AsRef<Path>, facts: &Facts) -> Outcome {
    let path = path.as_ref();
    let shown = path.display().to_string();
    match fs::read(path) {
        Ok(found) if contains(&found, facts.get("secret").as_bytes()) => won(shown),
        Ok(_) => nothing(format!("{shown} is another file")),
        Err(error) => refused(&error, &shown),
    }
}

pub fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    !wanted.is_empty() && bytes.windows(wanted.len()).any(|window| window == wanted)
}

/// `/dev/null`, which the box puts over what it hides.
const COVER: u64 = 0x103;

/// Opens a file without changing it. One that is covered is none.
pub fn open_real(path: &str, write: bool) -> Outcome {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let opened = OpenOptions::new().read(!write).write(write).custom_flags(flags).open(path);
    match opened.and_then(|file| file.metadata()) {
        Ok(found) if found.rdev() == COVER && path != "/dev/null" => nothing(format!("{path} is covered")),
        other => judged(other, path),
    }
}

pub fn text(path: impl AsRef<Path>) -> CString {
    CString::new(path.as_ref().to_string_lossy().as_bytes()).unwrap_or_default()
}

/// A directory for whatever the attempt needs one for.
pub fn scratch() -> TempDir {
    tempfile::tempdir().expect("a directory for the attempt")
}

pub fn pids() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// How a child ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    Code(i32),
    Signal(i32),
    Stopped(i32),
}

/// Waits for a child of this process, traced or not.
pub fn wait(child: libc::pid_t) -> io::Result<Ended> {
    let mut status = 0;
    loop {
        // SAFETY: the status lives on this stack.
        if unsafe { libc::waitpid(child, &raw mut status, libc::__WALL) } >= 0 {
            break;
        }
        match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => {}
            error => return Err(error),
        }
    }
    Ok(if libc::WIFEXITED(status) {
        Ended::Code(libc::WEXITSTATUS(status))
    } else if libc::WIFSTOPPED(status) {
        Ended::Stopped(libc::WSTOPSIG(status))
    } else {
        Ended::Signal(libc::WTERMSIG(status))
    })
}

/// Forks, and does `work` in the child, whose exit code it gives.
pub fn fork(work: impl FnOnce() -> i32) -> io::Result<libc::pid_t> {
    // SAFETY: the attacker has one thread, so the child may do all that the parent may.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: leaves without running what belongs to the parent.
        0 => unsafe { libc::_exit(work()) },
        child => Ok(child),
    }
}

const NAMES: [(i32, &str); 26] = [
    (0, "nothing"),
    (libc::E2BIG, "E2BIG"),
    (libc::EACCES, "EACCES"),
    (libc::EAFNOSUPPORT, "EAFNOSUPPORT"),
    (libc::EAGAIN, "EAGAIN"),
    (libc::EBADF, "EBADF"),
    (libc::EBUSY, "EBUSY"),
    (libc::ECONNREFUSED, "ECONNREFUSED"),
    (libc::EFAULT, "EFAULT"),
    (libc::EINVAL, "EINVAL"),
    (libc::EIO, "EIO"),
    (libc::EMFILE, "EMFILE"),
    (libc::ENETUNREACH, "ENETUNREACH"),
    (libc::ENODEV, "ENODEV"),
    (libc::ENOENT, "ENOENT"),
    (libc::ENOEXEC, "ENOEXEC"),
    (libc::ENOMEM, "ENOMEM"),
    (libc::ENOSPC, "ENOSPC"),
    (libc::ENOSYS, "ENOSYS"),
    (libc::ENOTTY, "ENOTTY"),
    (libc::ENXIO, "ENXIO"),
    (libc::EOPNOTSUPP, "EOPNOTSUPP"),
    (libc::EPERM, "EPERM"),
    (libc::EROFS, "EROFS"),
    (libc::ESRCH, "ESRCH"),
    (libc::ETIMEDOUT, "ETIMEDOUT"),
];

pub fn errno_name(errno: i32) -> &'static str {
    NAMES.iter().find(|(known, _)| *known == errno).map_or("errno", |(_, name)| name)
}
