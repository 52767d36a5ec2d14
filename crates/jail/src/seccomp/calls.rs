//! The list.

use super::{Answer, Question};
use libc::*;

/// Allowed on every architecture.
#[rustfmt::skip]
const ALLOWED: &[c_long] = &[
    // Files and directories.
    SYS_read, SYS_write, SYS_readv, SYS_writev, SYS_pread64, SYS_pwrite64, SYS_preadv, SYS_pwritev, SYS_preadv2, SYS_pwritev2,
    SYS_openat, SYS_openat2, SYS_close, SYS_close_range, SYS_lseek, SYS_fstat, SYS_newfstatat, SYS_statx, SYS_statfs, SYS_fstatfs,
    SYS_faccessat, SYS_faccessat2, SYS_mkdirat, SYS_mknodat, SYS_unlinkat, SYS_linkat, SYS_symlinkat, SYS_readlinkat, SYS_renameat2,
    SYS_fchmod, SYS_fchmodat, SYS_fchown, SYS_fchownat, SYS_utimensat, SYS_truncate, SYS_ftruncate, SYS_fallocate, SYS_fadvise64,
    SYS_getdents64, SYS_getcwd, SYS_chdir, SYS_fchdir, SYS_chroot, SYS_umask, SYS_flock, SYS_fcntl, SYS_dup, SYS_dup3, SYS_pipe2,
    SYS_fsync, SYS_fdatasync, SYS_sync, SYS_syncfs, SYS_sync_file_range, SYS_readahead, SYS_copy_file_range, SYS_sendfile,
    SYS_splice, SYS_tee, SYS_vmsplice, SYS_memfd_create, SYS_memfd_secret, SYS_name_to_handle_at,
    SYS_setxattr, SYS_lsetxattr, SYS_fsetxattr, SYS_getxattr, SYS_lgetxattr, SYS_fgetxattr, SYS_listxattr, SYS_llistxattr,
    SYS_flistxattr, SYS_removexattr, SYS_lremovexattr, SYS_fremovexattr,
    SYS_inotify_init1, SYS_inotify_add_watch, SYS_inotify_rm_watch, SYS_fanotify_mark,
    // Waiting.
    SYS_ppoll, SYS_pselect6, SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_pwait, SYS_epoll_pwait2, SYS_eventfd2, SYS_signalfd4,
    SYS_timerfd_create, SYS_timerfd_settime, SYS_timerfd_gettime,
    // Memory.
    SYS_brk, SYS_mmap, SYS_munmap, SYS_mremap, SYS_mprotect, SYS_madvise, SYS_process_madvise, SYS_msync, SYS_mincore, SYS_mlock,
    SYS_mlock2, SYS_munlock, SYS_mlockall, SYS_munlockall, SYS_membarrier, SYS_remap_file_pages, SYS_pkey_alloc, SYS_pkey_free,
    SYS_pkey_mprotect, SYS_process_mrelease,
    // Processes and threads.
    SYS_execve, SYS_execveat, SYS_exit, SYS_exit_group, SYS_wait4, SYS_waitid, SYS_kill, SYS_tkill, SYS_tgkill, SYS_getpid, SYS_getppid,
    SYS_gettid, SYS_getpgid, SYS_setpgid, SYS_getsid, SYS_setsid, SYS_set_tid_address, SYS_set_robust_list, SYS_get_robust_list,
    SYS_futex, SYS_futex_waitv, SYS_rseq, SYS_prctl, SYS_prlimit64, SYS_getrlimit, SYS_setrlimit, SYS_getrusage, SYS_times,
    SYS_sched_yield, SYS_sched_getaffinity, SYS_sched_setaffinity, SYS_sched_getparam, SYS_sched_setparam, SYS_sched_getscheduler,
    SYS_sched_setscheduler, SYS_sched_getattr, SYS_sched_setattr, SYS_sched_get_priority_max, SYS_sched_get_priority_min,
    SYS_sched_rr_get_interval, SYS_getpriority, SYS_setpriority, SYS_ioprio_get, SYS_ioprio_set, SYS_getcpu,
    SYS_pidfd_open, SYS_pidfd_send_signal, SYS_pidfd_getfd, SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_kcmp,
    SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_rt_sigpending, SYS_rt_sigsuspend, SYS_rt_sigtimedwait,
    SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo, SYS_sigaltstack, SYS_restart_syscall,
    SYS_seccomp, SYS_landlock_create_ruleset, SYS_landlock_add_rule, SYS_landlock_restrict_self,
    // Users.
    SYS_getuid, SYS_geteuid, SYS_getgid, SYS_getegid, SYS_getresuid, SYS_getresgid, SYS_getgroups, SYS_setuid, SYS_setgid, SYS_setreuid,
    SYS_setregid, SYS_setresuid, SYS_setresgid, SYS_setfsuid, SYS_setfsgid, SYS_setgroups, SYS_capget, SYS_capset,
    // Time.
    SYS_clock_gettime, SYS_clock_getres, SYS_clock_nanosleep, SYS_nanosleep, SYS_gettimeofday, SYS_getitimer, SYS_setitimer,
    SYS_timer_create, SYS_timer_delete, SYS_timer_gettime, SYS_timer_settime, SYS_timer_getoverrun,
    // Sockets.
    SYS_bind, SYS_listen, SYS_accept, SYS_accept4, SYS_connect, SYS_shutdown, SYS_getsockname, SYS_getpeername,
    SYS_getsockopt, SYS_setsockopt, SYS_sendto, SYS_recvfrom, SYS_sendmsg, SYS_recvmsg, SYS_sendmmsg, SYS_recvmmsg,
    // System V and POSIX objects: the box has a namespace of its own.
    SYS_shmget, SYS_shmat, SYS_shmdt, SYS_shmctl, SYS_semget, SYS_semop, SYS_semctl, SYS_semtimedop, SYS_msgget, SYS_msgsnd,
    SYS_msgrcv, SYS_msgctl, SYS_mq_open, SYS_mq_unlink, SYS_mq_timedsend, SYS_mq_timedreceive, SYS_mq_notify, SYS_mq_getsetattr,
    // The rest.
    SYS_uname, SYS_sysinfo, SYS_getrandom,
];

#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const ALLOWED_HERE: &[c_long] = &[
    SYS_open, SYS_creat, SYS_stat, SYS_lstat, SYS_access, SYS_mkdir, SYS_rmdir, SYS_mknod, SYS_unlink, SYS_link, SYS_symlink, SYS_readlink,
    SYS_rename, SYS_renameat, SYS_chmod, SYS_chown, SYS_lchown, SYS_utime, SYS_utimes, SYS_futimesat, SYS_getdents, SYS_dup2, SYS_pipe,
    SYS_poll, SYS_select, SYS_epoll_create, SYS_epoll_wait, SYS_epoll_ctl_old, SYS_epoll_wait_old, SYS_eventfd, SYS_signalfd,
    SYS_inotify_init, SYS_fork, SYS_vfork, SYS_getpgrp, SYS_arch_prctl, SYS_time, SYS_alarm, SYS_pause, SYS_getpmsg, SYS_putpmsg,
    SYS_modify_ldt, SYS_set_thread_area, SYS_get_thread_area,
];

#[cfg(target_arch = "aarch64")]
const ALLOWED_HERE: &[c_long] = &[SYS_renameat];

/// Allowed where libc has no name for them yet: `cachestat`, `fchmodat2`, `map_shadow_stack`, `futex_wake`,
/// `futex_wait`, `futex_requeue`, `mseal`, `setxattrat` to `removexattrat`. `statmount` and `listmount`
/// (457, 458) tell of mounts, `lsm_*` (459 to 461) of security modules: left out.
const ALLOWED_BY_NUMBER: &[c_long] = &[451, 452, 453, 454, 455, 456, 462, 463, 464, 465, 466];

const ASKED: &[(c_long, Question)] = &[
    (SYS_clone, Question::NoNamespaces),
    (SYS_unshare, Question::NoNamespaces),
    (SYS_socket, Question::Family),
    (SYS_socketpair, Question::Family),
    (SYS_ioctl, Question::Terminal),
    (SYS_personality, Question::Personality),
];

/// Programs that get this answer use `clone`, whose flags can be looked at; and threads in place of asynchronous
/// IO, whose contexts the machine has a fixed number of.
const BETTER_UNKNOWN: &[c_long] =
    &[SYS_clone3, SYS_io_setup, SYS_io_destroy, SYS_io_submit, SYS_io_cancel, SYS_io_getevents];

/// The newest call that was looked at when this list was made.
const LAST_KNOWN: c_long = 466;

/// An answer for every number from 0 on; those behind the end are unknown.
pub fn table() -> Vec<Answer> {
    let mut table = vec![Answer::Refuse; LAST_KNOWN as usize + 1];
    let mut set = |call: c_long, answer| {
        if let Some(entry) = usize::try_from(call).ok().and_then(|call| table.get_mut(call)) {
            *entry = answer;
        }
    };
    for call in ALLOWED.iter().chain(ALLOWED_HERE).chain(ALLOWED_BY_NUMBER) {
        set(*call, Answer::Allow);
    }
    for (call, question) in ASKED {
        set(*call, Answer::Ask(*question));
    }
    for call in BETTER_UNKNOWN {
        set(*call, Answer::Unknown);
    }
    table
}
