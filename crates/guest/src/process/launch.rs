//! From a request to something that can be executed: program, environment, directory, user, stdio.

use super::plan::Launch;
use crate::{
    fault::{Outcome, from_errno, from_io, invalid},
    path::Clean,
    state::Guest,
    users::{self, User},
};
use rustix::{
    fd::{AsFd, OwnedFd},
    fs::{Access, Mode, OFlags},
    pty::OpenptFlags,
    termios::Winsize,
};
use seawall_api::{
    ErrorKind, Fault,
    exec::{StartProcess, TtySize},
    files::{FileName, Root},
};
use std::{
    collections::BTreeMap,
    ffi::{CString, OsStr, OsString},
    os::unix::ffi::OsStrExt,
};

pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// What the kernel would refuse anyway, with a better message.
const MAX_ARGS_BYTES: usize = 1 << 20;

/// What is kept of a command line to show it.
const MAX_SHOWN: usize = 1024;

/// The guest's ends of a process's stdio.
pub enum Ends {
    Pipes { stdin: Option<OwnedFd>, stdout: OwnedFd, stderr: OwnedFd },
    Tty { master: OwnedFd },
}

/// What a command starts with: stdin, stdout, stderr, its directory.
pub type Given = [OwnedFd; 4];

pub fn prepare(guest: &Guest, start: &StartProcess) -> Outcome<(Launch, Given, Ends, Vec<String>)> {
    let user = match guest.user(start.user.as_deref()) {
        Some(named) => users::find(named)?,
        None => guest.own.clone(),
    };
    let become_user = may_become(&user)?;
    let env = environment(start, &user);
    let args = arguments(start, &env, &user)?;
    let cwd = directory(guest, start)?;
    let ([stdin, stdout, stderr], ends) = stdio(start, become_user.is_some().then_some(&user))?;
    let launch = Launch {
        candidates: candidates(&args[0], &env)?,
        args: args.iter().map(|arg| c_string(arg.as_bytes())).collect::<Outcome<_>>()?,
        env: env.iter().map(|(k, v)| variable(k, v)).collect::<Outcome<_>>()?,
        become_user,
        open_files: guest.open_files,
        tty: start.tty.is_some(),
    };
    Ok((launch, [stdin, stdout, stderr, cwd], ends, args))
}

/// A command for another user, with an environment of its own: see `sudo`.
pub fn for_another(
    guest: &Guest,
    user: &User,
    args: &[String],
    env: Vec<(String, String)>,
) -> Outcome<Launch> {
    let mut all: Environment = env.into_iter().map(|(k, v)| (k.into(), v.into())).collect();
    all.entry("PATH".into()).or_insert_with(|| DEFAULT_PATH.into());
    for (key, value) in [("HOME", &user.home), ("USER", &user.name), ("LOGNAME", &user.name)] {
        all.insert(key.into(), value.into());
    }
    Ok(Launch {
        candidates: candidates(&args[0], &all)?,
        args: args.iter().map(|arg| c_string(arg.as_bytes())).collect::<Outcome<_>>()?,
        env: all.iter().map(|(k, v)| variable(k, v)).collect::<Outcome<_>>()?,
        become_user: may_become(user)?,
        open_files: guest.open_files,
        tty: false,
    })
}

/// None: the guest is that user already.
fn may_become(user: &User) -> Outcome<Option<(u32, u32, Vec<u32>)>> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    match uid {
        _ if uid == user.uid && gid == user.gid => Ok(None),
        0 => Ok(Some((user.uid, user.gid, user.groups.clone()))),
        _ => Err(Fault::new(
            ErrorKind::Denied,
            format!("this sandbox runs as user {uid} and cannot act as {}; run seawall as root", user.name),
        )),
    }
}

type Environment = BTreeMap<OsString, OsString>;

/// The guest's own variables, then the user's, then the request's.
fn environment(start: &StartProcess, user: &User) -> Environment {
    let mut env: Environment = std::env::vars_os().collect();
    let mut default = |key: &str, value: &str| {
        env.entry(key.into()).or_insert_with(|| value.into());
    };
    default("PATH", DEFAULT_PATH);
    default("LANG", "C.UTF-8");
    default("HOME", &user.home);
    if start.tty.is_some() {
        default("TERM", "xterm-256color");
    }
    if !user.shell.is_empty() {
        default("SHELL", &user.shell);
    }
    env.insert("USER".into(), OsString::from(&user.name));
    env.insert("LOGNAME".into(), OsString::from(&user.name));
    for (key, value) in &start.env {
        env.insert(key.into(), value.into());
    }
    env
}

/// The command, or the shell where a terminal was asked for without one (P6).
fn arguments(start: &StartProcess, env: &Environment, user: &User) -> Outcome<Vec<String>> {
    match (start.args.is_empty(), start.tty.is_some()) {
        (true, true) => Ok(vec![shell(env, user)]),
        (true, false) => Err(invalid("there is no command to run")),
        (false, _) if start.args[0].is_empty() => Err(invalid("the command's name is empty")),
        (false, _) if start.args.iter().map(String::len).sum::<usize>() > MAX_ARGS_BYTES => {
            Err(Fault::new(ErrorKind::TooLarge, "the arguments have more than 1 MiB; put them into a file"))
        }
        (false, _) => Ok(start.args.clone()),
    }
}

fn shell(env: &Environment, user: &User) -> String {
    let from_env = env.get(OsStr::new("SHELL")).map(|s| s.to_string_lossy().into_owned());
    let usable = |path: &String| {
        !matches!(path.as_str(), "" | "/bin/false" | "/usr/bin/false" | "/usr/sbin/nologin" | "/sbin/nologin")
            && is_executable(path)
    };
    let wanted = [from_env, Some(user.shell.clone()), Some("/bin/bash".into())];
    wanted.into_iter().flatten().find(usable).unwrap_or_else(|| "/bin/sh".into())
}

fn is_executable(path: &str) -> bool {
    rustix::fs::access(path, Access::EXEC_OK).is_ok()
}

/// The places where a program may be, as `execvp` would look for it.
fn candidates(program: &str, env: &Environment) -> Outcome<Vec<CString>> {
    if program.contains('/') {
        return Ok(vec![c_string(program.as_bytes())?]);
    }
    let default = OsString::from(DEFAULT_PATH);
    let path = env.get(OsStr::new("PATH")).unwrap_or(&default);
    let in_dir = |dir: &[u8]| {
        let dir = if dir.is_empty() { b"." } else { dir };
        c_string(&[dir, b"/", program.as_bytes()].concat())
    };
    // Asking whether it is there costs a tenth of trying to execute it, and a directory that may not be
    // searched has nothing to offer, as for a shell.
    let present = |candidate: &CString| {
        // What is relative is meant from the command's directory, not from ours.
        !candidate.as_bytes().starts_with(b"/") || rustix::fs::access(candidate, Access::EXISTS).is_ok()
    };
    let all: Vec<CString> = path.as_bytes().split(|b| *b == b':').map(in_dir).collect::<Outcome<_>>()?;
    Ok(all.into_iter().filter(present).collect())
}

fn directory(guest: &Guest, start: &StartProcess) -> Outcome<OwnedFd> {
    let wanted = start.cwd.as_deref().or(guest.config.workdir.as_deref()).unwrap_or("");
    let path = Clean::new(Root::Box, &FileName::from(wanted))?;
    path.open_dir(guest.root.as_fd())
        .map_err(|fault| Fault { message: format!("the working directory {}", fault.message), ..fault })
}

/// The command's three descriptors, and the guest's ends of them.
fn stdio(start: &StartProcess, owner: Option<&User>) -> Outcome<([OwnedFd; 3], Ends)> {
    let pipe_fault = |e: std::io::Error| from_io("a pipe", &e);
    if let Some(size) = start.tty {
        let (master, slave) = terminal(size, owner)?;
        let copy = || slave.try_clone().map_err(pipe_fault);
        return Ok(([copy()?, copy()?, slave.try_clone().map_err(pipe_fault)?], Ends::Tty { master }));
    }
    let (stdin, input) = match start.stdin {
        true => {
            let (read, write) = std::io::pipe().map_err(pipe_fault)?;
            (OwnedFd::from(read), Some(OwnedFd::from(write)))
        }
        false => {
            let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
            (null.map_err(|e| from_errno("/dev/null", e))?, None)
        }
    };
    let (out_read, out_write) = std::io::pipe().map_err(pipe_fault)?;
    let (err_read, err_write) = std::io::pipe().map_err(pipe_fault)?;
    // Larger pipes mean fewer turns between writer and reader. Without the right to it, smaller do.
    let _ = rustix::pipe::fcntl_setpipe_size(out_read.as_fd(), 256 << 10);
    let ends = Ends::Pipes { stdin: input, stdout: OwnedFd::from(out_read), stderr: OwnedFd::from(err_read) };
    Ok(([stdin, OwnedFd::from(out_write), OwnedFd::from(err_write)], ends))
}

fn terminal(size: TtySize, owner: Option<&User>) -> Outcome<(OwnedFd, OwnedFd)> {
    let fault = |errno| from_errno("a terminal", errno);
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = rustix::pty::openpt(flags).map_err(fault)?;
    rustix::pty::grantpt(&master).map_err(fault)?;
    rustix::pty::unlockpt(&master).map_err(fault)?;
    let slave = rustix::pty::ioctl_tiocgptpeer(
        &master,
        OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC,
    )
    .map_err(fault)?;
    rustix::termios::tcsetwinsize(&slave, winsize(size)).map_err(fault)?;
    if let Some(user) = owner {
        // Programs open their terminal again by name, so it must be theirs.
        let uid = rustix::fs::Uid::from_raw(user.uid);
        rustix::fs::fchown(&slave, Some(uid), None).map_err(fault)?;
    }
    Ok((master, slave))
}

pub fn winsize(size: TtySize) -> Winsize {
    Winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 }
}

fn variable(key: &OsString, value: &OsString) -> Outcome<CString> {
    if key.is_empty() || key.as_bytes().contains(&b'=') {
        let shown = key.to_string_lossy();
        return Err(invalid(format!("`{shown}` cannot be the name of an environment variable")));
    }
    c_string(&[key.as_bytes(), b"=", value.as_bytes()].concat())
}

fn c_string(bytes: &[u8]) -> Outcome<CString> {
    CString::new(bytes).map_err(|_| {
        let shown = String::from_utf8_lossy(bytes).into_owned();
        invalid(format!("a zero byte in {shown:?}"))
    })
}

/// Arguments for a list: a command line may have a megabyte, and a list many of them.
pub fn shortened(args: &[String]) -> Vec<String> {
    let mut left = MAX_SHOWN;
    let mut shown = Vec::new();
    for arg in args {
        let cut = arg.floor_char_boundary(left);
        if cut < arg.len() {
            shown.push(format!("{}…", &arg[..cut]));
            break;
        }
        left -= cut;
        shown.push(arg.clone());
        if left == 0 {
            break;
        }
    }
    shown
}

/// The message for a command that could not be executed.
pub fn exec_fault(program: &str, errno: i32) -> Fault {
    let message = match errno {
        libc::ENOENT | libc::ENOTDIR => format!("command not found: {program}"),
        libc::EACCES => format!("{program}: permission denied (is it executable?)"),
        libc::ENOEXEC => format!("{program}: not a program (a script needs a first line such as #!/bin/sh)"),
        other => format!("{program}: {}", std::io::Error::from_raw_os_error(other)),
    };
    Fault::new(ErrorKind::ExecFailed, message).with_errno(errno)
}
