//! Leaving whoever started the guest: a fork whose parent waits until the child serves.
//!
//! The parent's exit code and stderr tell the provider whether the box runs.

use crate::{config::Config, init};
use rustix::{fs::OFlags, process};
use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::fd::AsFd,
};

/// What the child writes when it serves.
const READY: &[u8] = b"ready";

pub fn run(config: Config) -> io::Result<()> {
    let (mut read, mut write) = io::pipe()?;
    // SAFETY: the process has a single thread here, so the child may run any code.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            drop(read);
            let log = config.log.clone();
            process::setsid()?;
            let result = init::run(
                config,
                init::Given::default(),
                Box::new(move || {
                    redirect(log.as_deref())?;
                    write.write_all(READY)
                }),
            );
            if let Err(error) = &result {
                // Before it serves this reaches the provider, afterwards the log.
                crate::say!("{error}");
            }
            std::process::exit(i32::from(result.is_err()));
        }
        _ => {
            drop(write);
            let mut said = Vec::new();
            read.read_to_end(&mut said)?;
            match said == READY {
                true => std::process::exit(0),
                // The child has said why on the stderr that both share.
                false => std::process::exit(1),
            }
        }
    }
}

/// From now on nothing of whoever started us is held open.
fn redirect(log: Option<&std::path::Path>) -> io::Result<()> {
    let null = File::from(rustix::fs::open("/dev/null", OFlags::RDWR, rustix::fs::Mode::empty())?);
    let out = match log {
        Some(path) => OpenOptions::new().create(true).append(true).open(path)?,
        None => null.try_clone()?,
    };
    rustix::stdio::dup2_stdin(null.as_fd())?;
    rustix::stdio::dup2_stdout(out.as_fd())?;
    rustix::stdio::dup2_stderr(out.as_fd())?;
    Ok(())
}
