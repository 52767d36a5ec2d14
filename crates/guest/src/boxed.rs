//! The guest as process 1 of a native box: the launcher has built the box around it.

use crate::{config::Config, init};
use rustix::fd::OwnedFd;
use seawall_api::sandbox::WORKDIR;
use seawall_jail::launcher::{self, Inside};
use std::{
    cell::Cell,
    fs::File,
    io::{self, Write},
    os::unix::fs::MetadataExt,
    rc::Rc,
};

/// Starts boxes for the host process at the other end of stdin.
pub fn launcher() -> io::Result<()> {
    // SAFETY: stdin is the host's socket, and nothing else of this process uses it.
    let socket = unsafe { <OwnedFd as rustix::fd::FromRawFd>::from_raw_fd(0) };
    launcher::serve(socket, &live)
}

/// The whole life of a box. The number is what its process ends with.
fn live(inside: Inside) -> i32 {
    let Inside { sandbox, user, env, listener, reply, users, counters, disk } = inside;
    let reply = Rc::new(Cell::new(Some(File::from(reply))));
    let Ok(sandbox) = sandbox.parse() else {
        say(&reply, "error the sandbox has no id\n");
        return 1;
    };
    for (key, _) in std::env::vars_os() {
        // SAFETY: one thread. What the launcher was given is not the box's.
        unsafe { std::env::remove_var(key) };
    }
    for (key, value) in env {
        // SAFETY: one thread.
        unsafe { std::env::set_var(key, value) };
    }
    let default = if users { "user" } else { "root" };
    let config = Config { user: Some(user.unwrap_or_else(|| default.to_owned())), ..Config::new(sandbox) };
    own_workspace(config.user.as_deref());
    let given = init::Given { listener: Some(listener), counters, disk_limit: disk, boxed: true };
    let ready = reply.clone();
    let result = init::run(
        config,
        given,
        Box::new(move || {
            say(&ready, "ready\n");
            Ok(())
        }),
    );
    match result {
        Ok(()) => 0,
        Err(error) => {
            say(&reply, &format!("error {error}\n"));
            1
        }
    }
}

/// The workspace belongs to whoever works in it. Where that fails the box is still of use to root.
fn own_workspace(user: Option<&str>) {
    let Some(user) = user.and_then(|user| crate::users::find(user).ok()) else { return };
    let found = std::fs::metadata(WORKDIR).map(|found| found.uid());
    if found.is_ok_and(|owner| owner != user.uid) {
        let _ = std::os::unix::fs::chown(WORKDIR, Some(user.uid), Some(user.gid));
    }
}

/// The one word to whoever asked for the box. They may be gone; the box is there all the same.
fn say(reply: &Cell<Option<File>>, word: &str) {
    if let Some(mut reply) = reply.take() {
        let _ = reply.write_all(word.as_bytes());
    }
}
