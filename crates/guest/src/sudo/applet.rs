//! The program that is called `sudo` in a box: it hands its command to the guest and waits for the end.

use super::{Request, SOCKET};
use rustix::{
    event::{PollFd, PollFlags, poll},
    fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd},
    fs::{Mode, OFlags},
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags},
};
use std::{
    io::{self, IoSlice, Read, Write},
    mem::MaybeUninit,
    os::unix::net::UnixStream,
};

const USAGE: &str = "usage: sudo [-u USER] [-E] [-n] [-i | -s] [VAR=VALUE …] [--] COMMAND [ARGUMENT …]";
/// Passed on to the command.
const SIGNALS: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// The code to exit with.
pub fn run(args: impl Iterator<Item = String>) -> i32 {
    let request = match parse(args) {
        Ok(request) => request,
        Err(message) => return failed(&message, 1),
    };
    match ask(&request) {
        Ok(code) => code,
        Err(error) => failed(&error.to_string(), 1),
    }
}

fn failed(message: &str, code: i32) -> i32 {
    let _ = writeln!(io::stderr(), "sudo: {message}");
    code
}

fn parse(args: impl Iterator<Item = String>) -> Result<Request, String> {
    let (mut args, mut user, mut shell, mut keep) = (args.peekable(), "root".to_owned(), false, false);
    while let Some(flag) = args.next_if(|arg| arg.starts_with('-')) {
        match flag.as_str() {
            "--" => break,
            "-u" | "--user" => user = args.next().ok_or(USAGE)?,
            "-E" | "--preserve-env" => keep = true,
            "-i" | "-s" | "--login" | "--shell" => shell = true,
            "-n" | "-H" | "-S" | "-k" | "-b" | "--non-interactive" | "--set-home" => {}
            "-v" | "-l" | "--validate" | "--list" => {
                return Ok(Request { user, args: vec!["true".into()], env: vec![] });
            }
            other => match other.strip_prefix("-u").or_else(|| other.strip_prefix("--user=")) {
                Some(name) => user = name.to_owned(),
                None => return Err(format!("unknown option {other}\n{USAGE}")),
            },
        }
    }
    let kept = |key: &str| keep || matches!(key, "PATH" | "TERM" | "LANG" | "LC_ALL" | "DEBIAN_FRONTEND");
    let mut env: Vec<(String, String)> = std::env::vars().filter(|(key, _)| kept(key)).collect();
    let is_variable =
        |arg: &String| arg.split_once('=').is_some_and(|(key, _)| !key.is_empty() && !key.contains('/'));
    while let Some(variable) = args.next_if(is_variable) {
        env.extend(variable.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned())));
    }
    let mut args: Vec<String> = args.collect();
    if shell {
        let words = args.join(" ");
        args = vec!["/bin/sh".to_owned()];
        if !words.is_empty() {
            args.extend(["-c".to_owned(), words]);
        }
    }
    if args.is_empty() { Err(USAGE.to_owned()) } else { Ok(Request { user, args, env }) }
}

fn ask(request: &Request) -> io::Result<i32> {
    let mut guest = UnixStream::connect(SOCKET)
        .map_err(|error| io::Error::new(error.kind(), format!("the sandbox does not answer: {error}")))?;
    let signals = signals()?;
    send(&guest, request)?;
    loop {
        let mut fds = [
            PollFd::from_borrowed_fd(guest.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Err(rustix::io::Errno::INTR) => continue,
            other => other?,
        };
        if !fds[1].revents().is_empty() {
            let mut info = [0u8; 128];
            if rustix::io::read(&signals, &mut info)? >= 4 {
                guest.write_all(&info[..4])?;
            }
        } else if !fds[0].revents().is_empty() {
            return answer(&mut guest);
        }
    }
}

fn send(guest: &UnixStream, request: &Request) -> io::Result<()> {
    let directory =
        rustix::fs::open(".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let open = |number: i32| {
        // SAFETY: the numbers of stdio, which nothing here closes; whether they are open is asked first.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        if rustix::io::fcntl_getfd(fd).is_ok() { fd } else { null.as_fd() }
    };
    let fds = [open(0), open(1), open(2), directory.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&fds));
    let bytes = request.to_bytes();
    let sent = rustix::net::sendmsg(guest, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
    if sent == bytes.len() { Ok(()) } else { Err(io::Error::other("the command line is too long")) }
}

fn answer(guest: &mut UnixStream) -> io::Result<i32> {
    let mut said = Vec::new();
    guest.read_to_end(&mut said)?;
    match said.split_first() {
        Some((b'c', code)) => Ok(code.try_into().map_or(1, i32::from_ne_bytes)),
        Some((b'e', why)) => Err(io::Error::other(String::from_utf8_lossy(why).into_owned())),
        _ => Err(io::Error::other("the sandbox hung up")),
    }
}

/// A descriptor that tells of signals; their own effect is put off.
fn signals() -> io::Result<OwnedFd> {
    // SAFETY: the set lives on this stack and is filled before use; the descriptor is new and owned here.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in SIGNALS {
            libc::sigaddset(&mut set, signal);
        }
        libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        match libc::signalfd(-1, &set, libc::SFD_CLOEXEC) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Request, String> {
        parse(text.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn options_variables_and_commands() {
        let request = parsed("-n -u nobody A=b -- id -u").unwrap();
        assert_eq!((request.user.as_str(), request.args.len()), ("nobody", 3));
        let request = parsed("-E A=b id -u").unwrap();
        assert_eq!((request.user.as_str(), request.args), ("root", vec!["id".to_owned(), "-u".to_owned()]));
        assert!(request.env.contains(&("A".to_owned(), "b".to_owned())));
        assert_eq!(parsed("-i echo hi").unwrap().args, ["/bin/sh", "-c", "echo hi"]);
        assert!(parsed("").unwrap_err().contains("usage"));
        assert!(parsed("--nonsense x").unwrap_err().contains("--nonsense"));
    }
}
