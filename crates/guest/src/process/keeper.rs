//! The keeper: one small process above each command, so that nothing of it is left behind.
//!
//! It is a fork of the guest that never executes anything else. As a subreaper it inherits every
//! descendant that lost its parent, however it forked and whatever session it made, so "all that came
//! from this command" is "all children of the keeper, again and again until there are none". Children
//! cannot vanish from it before it reaps them, so it never signals a number that was given to another.
//!
//! When its last descendant is gone it says so and waits for the next command: forking anew would cost
//! as much as starting a program does. It ends when the guest lets go of it. When the guest dies in
//! between it ends all its descendants.
//!
//! After the fork only async-signal-safe calls are made and nothing is allocated: the guest may have
//! had other threads.
//!
//! - **Start.** The keeper starts the command with `clone(CLONE_VM | CLONE_VFORK)` on a separate stack: no page table
//!   is copied, and shared memory reports a failed `execve`. The command runs in a new session.
//! - **Descriptors.** The keeper has a socket to the guest, a signalfd and, with `local`, the box's lock. It closes
//!   all others, stdio included, so that the command's pipes end with the command.
//! - **Messages.** It sends, in order: started or failed (with step and error number), exited, gone. It receives:
//!   signal, kill.
//! - **Kill.** It reads `/proc/thread-self/children`, kills each child and its group, reaps, and repeats until none
//!   remain.
//! - **A dead guest** closes the socket, and the keeper kills its descendants. A command may stop its keeper (both
//!   have one user), so the guest wakes a keeper first and kills one that does not answer within 5 s; its descendants
//!   then pass to the guest.
//! - **A dead keeper** kills its command by the parent-death signal; the guest, also a subreaper, inherits and kills
//!   the rest.

use super::{
    handover::{Order, Space, next_order},
    plan::Plan,
    words::{MESSAGE, Step, Tell, message},
};
use libc::{c_char, c_int, c_void, pid_t};
use rustix::fd::{AsRawFd, BorrowedFd, RawFd};
use std::{
    io, ptr,
    sync::atomic::{AtomicI32, Ordering},
};

/// Where the keeper has its things, once it has tidied up.
pub const CTL: RawFd = 3;
const LOCK: RawFd = 4;
pub const CWD: RawFd = 5;
const FIRST_OTHER: u32 = 6;
/// Descriptors are parked from here on while the low ones are arranged.
const PARK: c_int = 64;
/// Signals that the guest handles or, like the last, ignores. In the keeper all are blocked.
const HANDLED: [c_int; 8] = [
    libc::SIGCHLD,
    libc::SIGTERM,
    libc::SIGINT,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGPIPE,
];
/// For the child until it executes its program.
const STACK: usize = 16 << 10;

/// Forks a keeper for `order`, or one that waits for its first. It answers on the other end of `ctl`, and holds
/// `lock` while it lives.
pub fn fork(order: Option<&Order<'_>>, ctl: BorrowedFd<'_>, lock: Option<BorrowedFd<'_>>) -> io::Result<u32> {
    let mut table = vec![ptr::null(); order.map_or(0, |order| order.pointers)];
    let mut stack = vec![0u8; STACK];
    let space = Space::get()?;
    // SAFETY: an all-zero sigset_t is valid memory for sigfillset to fill.
    let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
    // SAFETY: both sets live on this stack. Signals wait until the keeper has no handler of ours left.
    unsafe {
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
    }
    // SAFETY: the child runs only `Keeper::run`, which allocates nothing, takes no lock and never
    // returns.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let fds = order.map_or([-1; 4], |order| order.fds.map(|fd| fd.as_raw_fd()));
        settle(fds, ctl.as_raw_fd(), lock.map_or(-1, |fd| fd.as_raw_fd()));
        let keeper = Keeper { stack: &mut stack, signals: child_signals(), main: 0 };
        keeper.run(order.map(|order| order.bytes), &mut table, space);
    }
    let error = io::Error::last_os_error();
    // SAFETY: restores the mask that was saved above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, ptr::null_mut()) };
    u32::try_from(pid).map_err(|_| error)
}

struct Keeper<'a> {
    stack: &'a mut [u8],
    signals: RawFd,
    /// The command, until it was reaped.
    main: pid_t,
}

/// What the child, which shares the keeper's memory, tells when it cannot execute.
struct Child<'a> {
    plan: &'a Plan<'a>,
    errno: AtomicI32,
    step: AtomicI32,
}

impl Keeper<'_> {
    /// The life of a keeper: one command after the other.
    fn run(mut self, bytes: Option<&[u8]>, table: &mut [*const c_char], space: Space) -> ! {
        if let Some(bytes) = bytes {
            self.keep(Plan::parse(bytes, table));
        }
        loop {
            // SAFETY: this is a keeper, and what the last round borrowed is done with.
            let (table, buffer) = unsafe { space.parts() };
            let length = next_order(buffer);
            self.keep(Plan::parse(&buffer[..length], table));
        }
    }

    /// Runs a command until nothing of it is left.
    fn keep(&mut self, plan: Option<Plan<'_>>) {
        match plan.ok_or((libc::EINVAL, Step::Clone)).and_then(|plan| self.launch_child(&plan)) {
            Ok(pid) => {
                self.main = pid;
                say(message(1, pid, 0));
            }
            Err((errno, step)) => {
                say(message(2, errno, step as i32));
                exit()
            }
        }
        // SAFETY: the command has its own copies of these; holding ours would keep its pipes open.
        unsafe {
            libc::syscall(libc::SYS_close_range, 0, 2, 0);
            libc::close(CWD);
        }
        loop {
            if self.reap() {
                say(message(4, 0, 0));
                return;
            }
            match wait(self.signals, -1) {
                Woken::Child => drain(self.signals),
                Woken::Told => match hear() {
                    Some(Tell::Signal(signal)) => self.signal(signal),
                    Some(Tell::Kill) => self.kill_all(),
                    None => {
                        self.kill_all();
                        exit()
                    }
                },
                Woken::Nothing => {}
            }
        }
    }

    fn launch_child(&mut self, plan: &Plan<'_>) -> Result<pid_t, (i32, Step)> {
        let child = Child { plan, errno: AtomicI32::new(0), step: AtomicI32::new(0) };
        let top = self.stack.as_mut_ptr_range().end;
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        // SAFETY: the child has a stack of its own (its end is aligned by the ABI's 16 below) and this
        // thread sleeps until it has executed or exited, so `child` outlives its use.
        let pid = unsafe {
            let top = (top as usize & !15) as *mut c_void;
            libc::clone(child_main, top, flags, ptr::from_ref(&child).cast_mut().cast())
        };
        if pid < 0 {
            return Err((errno(), Step::Clone));
        }
        match child.errno.load(Ordering::SeqCst) {
            0 => Ok(pid),
            errno => Err((errno, Step::from_code(child.step.load(Ordering::SeqCst)))),
        }
    }

    /// Takes the dead. True when no child is left.
    fn reap(&mut self) -> bool {
        loop {
            let mut status = 0;
            // SAFETY: `status` lives on this stack.
            match unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) } {
                0 => return false,
                -1 => return errno() == libc::ECHILD,
                pid if pid == self.main => {
                    self.main = 0;
                    say(message(3, status, 0));
                }
                _ => {}
            }
        }
    }

    fn signal(&self, signal: i32) {
        if self.main > 0 {
            // SAFETY: the command was not reaped, so its number is still its own, and its group's.
            unsafe { libc::kill(-self.main, signal) };
            return;
        }
        // The command is gone; what it left behind is asked as politely.
        for_each_child(|pid| {
            // SAFETY: as in `kill_all`.
            unsafe {
                let group = libc::getpgid(pid);
                if group > 1 && group != libc::getpgrp() {
                    libc::kill(-group, signal);
                } else {
                    libc::kill(pid, signal);
                }
            }
        });
    }

    /// Ends every child, then those that thereby became children, until there are none.
    fn kill_all(&mut self) {
        let mut pause = 1;
        loop {
            if self.main > 0 {
                // SAFETY: not reaped, so the number is its own. Also where the list cannot be read.
                unsafe { libc::kill(-self.main, libc::SIGKILL) };
            }
            for_each_child(|pid| {
                // SAFETY: `pid` is a child that was not reaped, so the number is its own. Its group is
                // in a session that a descendant made, so it has no other members than descendants.
                unsafe {
                    let group = libc::getpgid(pid);
                    if group > 1 && group != libc::getpgrp() {
                        libc::kill(-group, libc::SIGKILL);
                    }
                    libc::kill(pid, libc::SIGKILL);
                }
            });
            if self.reap() {
                return;
            }
            // What sleeps in the kernel dies later; look again, ever less often.
            wait(self.signals, pause);
            drain(self.signals);
            pause = (pause * 2).min(100);
        }
    }
}

/// A session of its own, the duty to inherit orphans, and no descriptor but the few it needs.
fn settle(fds: [RawFd; 4], ctl: RawFd, lock: RawFd) {
    let [stdin, stdout, stderr, cwd] = fds;
    // SAFETY: plain system calls on numbers. A call that fails leaves a descriptor out, which the
    // later steps notice (the command cannot be started, or the guest sees the keeper end).
    unsafe {
        libc::setsid();
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
        // Should somebody stop it, the guest's death wakes it.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGCONT, 0, 0, 0);
        libc::prctl(libc::PR_SET_NAME, c"seawall-keeper".as_ptr(), 0, 0, 0);
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2]
        {
            libc::signal(signal, libc::SIG_IGN);
        }
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        let park = |fd: RawFd| libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, PARK);
        let parked = [
            (park(stdin), 0),
            (park(stdout), 1),
            (park(stderr), 2),
            (park(ctl), CTL),
            (park(lock), LOCK),
            (park(cwd), CWD),
        ];
        for (from, to) in parked {
            match from >= 0 {
                true if to <= 2 => libc::dup2(from, to),
                true => libc::dup3(from, to, libc::O_CLOEXEC),
                false => libc::close(to),
            };
        }
        libc::syscall(libc::SYS_close_range, FIRST_OTHER, u32::MAX, 0);
    }
}

/// Between clone and execute, in memory shared with the sleeping keeper.
extern "C" fn child_main(argument: *mut c_void) -> c_int {
    // SAFETY: the keeper passed a `Child` that outlives this function.
    let child = unsafe { &*argument.cast::<Child<'_>>() };
    let step = match child.become_command() {
        Ok(()) => child.execute(),
        Err(step) => step,
    };
    child.errno.store(errno(), Ordering::SeqCst);
    child.step.store(step as i32, Ordering::SeqCst);
    // SAFETY: leaves without running anything of the keeper's.
    unsafe { libc::_exit(127) }
}

impl Child<'_> {
    fn become_command(&self) -> Result<(), Step> {
        // SAFETY: plain system calls; the pointers are to data that outlives them.
        unsafe {
            libc::setsid();
            if self.plan.tty && libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
                return Err(Step::Terminal);
            }
            if libc::fchdir(CWD) < 0 {
                return Err(Step::Directory);
            }
            if let Some((uid, gid)) = self.plan.become_user {
                let groups = self.plan.groups;
                let changed = libc::syscall(libc::SYS_setgroups, groups.len() / 4, groups.as_ptr()) == 0
                    && libc::syscall(libc::SYS_setresgid, gid, gid, gid) == 0
                    && libc::syscall(libc::SYS_setresuid, uid, uid, uid) == 0;
                if !changed {
                    return Err(Step::User);
                }
            }
            // After the change of user, which would clear it.
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
            libc::setrlimit(libc::RLIMIT_NOFILE, &self.plan.open_files);
            reset_signals();
        }
        Ok(())
    }

    /// Returns only when no candidate could be executed. A refusal counts more than an absence.
    fn execute(&self) -> Step {
        let mut refusal = libc::ENOENT;
        for program in self.plan.candidates.iter().filter(|program| !program.is_null()) {
            // SAFETY: the arrays end with null and point to strings that outlive the call.
            unsafe { libc::execve(*program, self.plan.args.as_ptr(), self.plan.env.as_ptr()) };
            match errno() {
                libc::ENOENT | libc::ENOTDIR => {}
                other => refusal = other,
            }
        }
        // SAFETY: this thread's errno.
        unsafe { *libc::__errno_location() = refusal };
        Step::Execute
    }
}

/// As a fresh program expects them. Executing resets handlers anyway, but until then one of the guest's
/// would run with the keeper's descriptors.
///
/// # Safety
/// Only where no handler of this process may be needed any more.
unsafe fn reset_signals() {
    // SAFETY: an all-zero sigset_t is valid memory for sigemptyset; the calls touch nothing else.
    unsafe {
        for signal in HANDLED {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, ptr::null_mut());
    }
}

/// A descriptor that tells of dead children.
fn child_signals() -> RawFd {
    // SAFETY: an all-zero sigset_t is valid memory for sigemptyset. All signals stay blocked.
    unsafe {
        let mut mask: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut mask);
        libc::sigaddset(&mut mask, libc::SIGCHLD);
        let fd = libc::signalfd(-1, &mask, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        // The low numbers are the commands'.
        let high = libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, FIRST_OTHER);
        libc::close(fd);
        high
    }
}

enum Woken {
    Child,
    Told,
    Nothing,
}

/// Until a child died, the guest said something, or the time is over.
fn wait(signals: RawFd, milliseconds: c_int) -> Woken {
    let poll = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut fds = [poll(signals), poll(CTL)];
    // While it kills, the guest's words wait.
    let watched = if milliseconds < 0 { 2 } else { 1 };
    // SAFETY: the array and its length match.
    unsafe { libc::poll(fds.as_mut_ptr(), watched, milliseconds) };
    match (fds[0].revents, fds[1].revents) {
        (0, 0) => Woken::Nothing,
        (0, _) => Woken::Told,
        _ => Woken::Child,
    }
}

fn drain(signals: RawFd) {
    let mut buffer = [0u8; 512];
    // SAFETY: the buffer and its length match. The descriptor does not block.
    while unsafe { libc::read(signals, buffer.as_mut_ptr().cast(), buffer.len()) } > 0 {}
}

fn say(message: [u8; MESSAGE]) {
    // SAFETY: the buffer and its length match. A guest that is gone is noticed when listening.
    unsafe { libc::send(CTL, message.as_ptr().cast(), MESSAGE, libc::MSG_NOSIGNAL) };
}

/// What the guest said; none when it is gone.
fn hear() -> Option<Tell> {
    let mut buffer = [0u8; MESSAGE];
    // SAFETY: the buffer and its length match.
    let n = unsafe { libc::recv(CTL, buffer.as_mut_ptr().cast(), MESSAGE, 0) };
    if n != MESSAGE as isize {
        return None;
    }
    let kind = i32::from_ne_bytes([buffer[0], buffer[1], buffer[2], buffer[3]]);
    let signal = i32::from_ne_bytes([buffer[4], buffer[5], buffer[6], buffer[7]]);
    Some(if kind == 1 { Tell::Signal(signal) } else { Tell::Kill })
}

/// Calls `act` for each direct child of this process, as the kernel lists them.
fn for_each_child(mut act: impl FnMut(pid_t)) {
    // SAFETY: a constant path; the descriptor is closed below.
    let fd = unsafe { libc::open(c"/proc/thread-self/children".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if fd < 0 {
        return;
    }
    let mut buffer = [0u8; 4096];
    let mut number: pid_t = 0;
    loop {
        // SAFETY: the buffer and its length match.
        let n = unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) };
        let Ok(n) = usize::try_from(n) else { break };
        if n == 0 {
            break;
        }
        for byte in &buffer[..n] {
            match byte {
                b'0'..=b'9' => number = number.wrapping_mul(10).wrapping_add(pid_t::from(byte - b'0')),
                _ => {
                    if number > 1 {
                        act(number);
                    }
                    number = 0;
                }
            }
        }
    }
    if number > 1 {
        act(number);
    }
    // SAFETY: opened above.
    unsafe { libc::close(fd) };
}

pub fn errno() -> i32 {
    // SAFETY: this thread's errno.
    unsafe { *libc::__errno_location() }
}

pub fn exit() -> ! {
    // SAFETY: leaves without running anything of the guest's.
    unsafe { libc::_exit(0) }
}
