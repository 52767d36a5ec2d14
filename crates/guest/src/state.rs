//! What all tasks of the guest share. One thread, so plain cells.

use crate::{
    config::Config,
    deadlines::Deadlines,
    process::Processes,
    users::{self, User},
};
use rustix::{
    fd::OwnedFd,
    fs::{Mode, OFlags},
};
use std::{
    cell::{Cell, RefCell},
    io,
    rc::Rc,
    sync::Arc,
    time::Instant,
};
use tokio::sync::Notify;

pub struct Guest {
    pub config: Config,
    pub boot: String,
    pub started: Instant,
    pub deadlines: Deadlines,
    /// The box's `/`. File work happens on other threads, hence the `Arc`.
    pub root: Arc<OwnedFd>,
    /// How many files the guest was allowed to open before it asked for more.
    pub open_files: libc::rlimit,
    /// The user that the guest runs as.
    pub own: User,
    /// Held by keepers too, so that the box counts as alive while any of them is.
    pub lock: Option<OwnedFd>,
    pub processes: Processes,
    /// Of the box: kills for memory, and refusals of processes.
    pub counters: [Option<OwnedFd>; 2],
    /// The box's files have a size that cannot grow.
    pub disk_limit: bool,
    pub control: RefCell<Option<Control>>,
    /// An orderly end was asked for, with this grace in milliseconds.
    pub stopping: Cell<Option<u64>>,
    pub stop: Notify,
    /// The command of a container was started.
    pub command_started: Cell<bool>,
    pub sync: crate::sync::Syncs,
}

/// The newest holder of the control wire, the one on which the guest may open streams.
pub struct Control {
    /// It outlives its wire: an older host stays refused.
    pub epoch: u64,
    /// Tells an older control wire to go.
    pub replaced: Rc<Notify>,
}

impl Guest {
    pub fn new(
        config: Config,
        lock: Option<OwnedFd>,
        open_files: libc::rlimit,
        given: (bool, [Option<OwnedFd>; 2]),
    ) -> io::Result<Rc<Guest>> {
        let root =
            rustix::fs::open(&config.root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
                .map_err(|e| {
                    io::Error::new(io::Error::from(e).kind(), format!("{}: {e}", config.root.display()))
                })?;
        if let Some(user) = &config.user {
            users::find(user).map_err(|fault| io::Error::other(fault.message))?;
        }
        Ok(Rc::new(Guest {
            boot: seawall_api::ProcessId::generate().to_string(),
            started: Instant::now(),
            deadlines: Deadlines::default(),
            root: Arc::new(root),
            open_files,
            own: users::own(),
            lock,
            processes: Processes::default(),
            disk_limit: given.0,
            counters: given.1,
            control: RefCell::new(None),
            stopping: Cell::new(None),
            stop: Notify::new(),
            command_started: Cell::new(false),
            sync: crate::sync::Syncs::default(),
            config,
        }))
    }

    /// The user that a call names, or the sandbox's default.
    pub fn user<'a>(&'a self, named: Option<&'a str>) -> Option<&'a str> {
        named.or(self.config.user.as_deref())
    }
}
