//! The guest as process 1 of a native box: the launcher has built the box around it.

use crate::{config::Config, init, users};
use rustix::fd::OwnedFd;
use seawall_jail::launcher::{self, Inside};
use std::{
    fs::File,
    io::{self, Write},
};

/// Starts boxes for the host process at the other end of stdin.
pub fn launcher() -> io::Result<()> {
    // SAFETY: stdin is the host's socket, and nothing else of this process uses it.
    let socket = unsafe { <OwnedFd as rustix::fd::FromRawFd>::from_raw_fd(0) };
    launcher::serve(socket, &live)
}

/// The whole life of a box. The number is what its process ends with.
fn live(inside: Inside) -> i32 {
    let Inside { sandbox, user, env, listener, reply, users: has_users, counters, disk, ended } = inside;
    let Ok(sandbox) = sandbox.parse() else {
        return say(reply, "error the sandbox has no id\n", 1);
    };
    for (key, _) in std::env::vars_os() {
        // SAFETY: one thread. What the launcher was given is not the box's.
        unsafe { std::env::remove_var(key) };
    }
    for (key, value) in env {
        // SAFETY: one thread.
        unsafe { std::env::set_var(key, value) };
    }
    let name = user.unwrap_or_else(|| if has_users { "user" } else { "root" }.to_owned());
    match users::find(&name) {
        Ok(user) => users::own_workspace(&user),
        Err(fault) => return say(reply, &format!("invalid {}\n", fault.message), 1),
    }
    // The socket takes connections already, and what is left to do depends on nobody else.
    say(reply, "ready\n", 0);
    let given = init::Given { listener: Some(listener), counters, disk_limit: disk, boxed: true, ended };
    let config = Config { user: Some(name), ..Config::new(sandbox) };
    match init::run(config, given, Box::new(|| Ok(()))) {
        Ok(_) => 0,
        Err(error) => {
            crate::say!("{error}");
            1
        }
    }
}

/// The one word to whoever asked for the box. They may be gone; the box is there all the same.
fn say(reply: OwnedFd, word: &str, code: i32) -> i32 {
    let _ = File::from(reply).write_all(word.as_bytes());
    code
}
