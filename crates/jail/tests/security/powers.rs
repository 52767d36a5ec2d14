//! Powers: what a box gave up, and every way that programs know to get it back.

use super::probe::{
    Arg::{B, N, S, W},
    Attempt, Ended, Facts, Outcome, best, call, fork, host, judged, no_control, nothing, refused, scratch,
    text, untried, wait, won,
};
use libc::{EINVAL, ENOSYS, EPERM};
use std::{fs, io};

pub const ATTEMPTS: &[Attempt] = &[
    host("user_namespace", user_namespace, &[EPERM]),
    host("mount_namespace", mount_namespace, &[EPERM]),
    host("network_namespace", network_namespace, &[EPERM]),
    host("other_namespaces", other_namespaces, &[EPERM]),
    host("user_namespace_by_clone", user_namespace_by_clone, &[EPERM]),
    host("mount_namespace_by_clone", mount_namespace_by_clone, &[EPERM]),
    host("user_namespace_by_clone3", user_namespace_by_clone3, &[ENOSYS]),
    host("capability", capability, &[EPERM]),
    host("bounding_set", bounding_set, &[0]),
    host("new_privileges", new_privileges, &[0]),
    host("no_filter", no_filter, &[0]),
    host("secure_bits", secure_bits, &[EPERM]),
    host("foreign_user", foreign_user, &[EINVAL]),
    host("file_of_a_foreign_user", file_of_a_foreign_user, &[EINVAL]),
    host("capability_of_a_file", capability_of_a_file, &[EPERM]),
    no_control("more_users", more_users, EPERM, "on the host all users are mapped already"),
    no_control("more_open_files", more_open_files, EPERM, "not every root of a host may"),
    no_control("larger_cores", larger_cores, EPERM, "not every root of a host may"),
    no_control("core_dump", core_dump, 0, "a host keeps its cores where it likes"),
    host("executable_memory", executable_memory, &[EPERM]),
    host("filter_dodged_by_a_tracer", filter_dodged_by_a_tracer, &[EPERM]),
    host("calls_of_32_bits", calls_of_32_bits, &[0]),
    no_control("calls_of_x32", calls_of_x32, ENOSYS, "hardly any kernel has them"),
];

/// For cases that start them in a special way.
pub const HELPERS: &[(&str, super::probe::Run)] = &[("be_root", be_root), ("kill_all", kill_all)];

fn unshare(kind: libc::c_int) -> Outcome {
    judged(call(libc::SYS_unshare, [N(kind.into())]), "unshare")
}

/// In one of its own every user is root, with all that root may.
fn user_namespace(_: &Facts) -> Outcome {
    unshare(libc::CLONE_NEWUSER)
}

fn mount_namespace(_: &Facts) -> Outcome {
    unshare(libc::CLONE_NEWNS)
}

fn network_namespace(_: &Facts) -> Outcome {
    unshare(libc::CLONE_NEWNET)
}

fn other_namespaces(_: &Facts) -> Outcome {
    let kinds = [
        libc::CLONE_NEWPID,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWUTS,
        libc::CLONE_NEWCGROUP,
        libc::CLONE_NEWTIME,
    ];
    best(kinds.map(unshare))
}

/// The parent hears of the child, which does nothing.
fn cloned(result: io::Result<i64>) -> Outcome {
    match result {
        // SAFETY: the child; it leaves at once.
        Ok(0) => unsafe { libc::_exit(0) },
        Ok(child) => {
            let _ = wait(child as libc::pid_t);
            won("a child in a namespace of its own")
        }
        Err(error) => refused(&error, "clone"),
    }
}

fn clone(kind: libc::c_int) -> Outcome {
    let flags = N((kind | libc::SIGCHLD).into());
    cloned(call(libc::SYS_clone, [flags, N(0), N(0), N(0), N(0)]))
}

fn user_namespace_by_clone(_: &Facts) -> Outcome {
    clone(libc::CLONE_NEWUSER)
}

fn mount_namespace_by_clone(_: &Facts) -> Outcome {
    clone(libc::CLONE_NEWNS)
}

/// Its flags are in memory, where no filter can look.
fn user_namespace_by_clone3(_: &Facts) -> Outcome {
    let mut args = [0u64; 11];
    args[0] = u64::from(libc::CLONE_NEWUSER.cast_unsigned());
    args[4] = u64::from(libc::SIGCHLD.cast_unsigned());
    cloned(call(libc::SYS_clone3, [W(&mut args), N(88)]))
}

const SYS_ADMIN: u32 = 21;

fn capability(_: &Facts) -> Outcome {
    const VERSION_3: u32 = 0x2008_0522;
    let mut header = u64::from(VERSION_3).to_ne_bytes();
    let mut sets = [0u8; 24];
    if let Err(error) = call(libc::SYS_capget, [B(&mut header), B(&mut sets)]) {
        return refused(&error, "capget");
    }
    // Effective and permitted, of which the bit is in the third byte.
    for set in [0, 4] {
        sets[set + (SYS_ADMIN / 8) as usize] |= 1 << (SYS_ADMIN % 8);
    }
    judged(call(libc::SYS_capset, [B(&mut header), B(&mut sets)]), "capset")
}

fn ask(option: libc::c_int, argument: u32) -> io::Result<i64> {
    call(libc::SYS_prctl, [N(option.into()), N(argument.into()), N(0), N(0), N(0)])
}

fn bounding_set(_: &Facts) -> Outcome {
    match ask(libc::PR_CAPBSET_READ, SYS_ADMIN) {
        Ok(0) => nothing("no program can give it"),
        other => judged(other, "CAP_SYS_ADMIN can be had"),
    }
}

fn new_privileges(_: &Facts) -> Outcome {
    match ask(libc::PR_GET_NO_NEW_PRIVS, 0) {
        Ok(1) => nothing("no program gives new privileges"),
        other => judged(other, "programs can give privileges"),
    }
}

fn no_filter(_: &Facts) -> Outcome {
    match ask(libc::PR_GET_SECCOMP, 0) {
        Ok(2) => nothing("there is a filter"),
        other => judged(other, "there is no filter"),
    }
}

fn secure_bits(_: &Facts) -> Outcome {
    judged(ask(libc::PR_SET_SECUREBITS, 1), "PR_SET_SECUREBITS")
}

/// Beyond what the box has.
const FOREIGN: i64 = 70_000;

fn foreign_user(_: &Facts) -> Outcome {
    judged(call(libc::SYS_setresuid, [N(FOREIGN), N(FOREIGN), N(FOREIGN)]), "setresuid")
}

/// A file for an attempt, by its name.
fn with_file(work: impl FnOnce(&std::ffi::CStr) -> Outcome) -> Outcome {
    let dir = scratch();
    let path = dir.path().join("file");
    match fs::write(&path, "x") {
        Ok(()) => work(&text(&path)),
        Err(error) => refused(&error, "a file"),
    }
}

fn file_of_a_foreign_user(_: &Facts) -> Outcome {
    let here = N(libc::AT_FDCWD.into());
    with_file(|file| judged(call(libc::SYS_fchownat, [here, S(file), N(FOREIGN), N(FOREIGN), N(0)]), "chown"))
}

fn capability_of_a_file(_: &Facts) -> Outcome {
    // Version 2, effective; permitted: SYS_ADMIN.
    let mut value = [0u8; 20];
    value[..4].copy_from_slice(&0x0200_0001_u32.to_ne_bytes());
    value[4..8].copy_from_slice(&(1u32 << SYS_ADMIN).to_ne_bytes());
    with_file(|file| {
        let name = S(c"security.capability");
        judged(call(libc::SYS_setxattr, [S(file), name, B(&mut value), N(20), N(0)]), "setxattr")
    })
}

fn more_users(_: &Facts) -> Outcome {
    judged(fs::write("/proc/self/uid_map", "0 0 4294967295\n"), "uid_map")
}

fn raise(which: i64) -> Outcome {
    let mut limit = [0u64; 2];
    if let Err(error) = call(libc::SYS_prlimit64, [N(0), N(which), N(0), W(&mut limit)]) {
        return refused(&error, "getrlimit");
    }
    let mut more = [limit[1].saturating_add(1); 2];
    judged(call(libc::SYS_prlimit64, [N(0), N(which), W(&mut more), N(0)]), "setrlimit")
}

fn more_open_files(_: &Facts) -> Outcome {
    raise(libc::RLIMIT_NOFILE.into())
}

fn larger_cores(_: &Facts) -> Outcome {
    raise(libc::RLIMIT_CORE.into())
}

/// A crash writes where the host's setting says, with the host's eyes.
fn core_dump(_: &Facts) -> Outcome {
    let dir = scratch();
    let place = text(dir.path());
    raise(libc::RLIMIT_CORE.into());
    let child = fork(|| {
        let _ = call(libc::SYS_chdir, [S(&place)]);
        std::process::abort()
    });
    match child.and_then(wait) {
        Err(error) => refused(&error, "a child"),
        Ok(ended) => match fs::read_dir(dir.path()).map(Iterator::count) {
            Ok(0) => nothing(format!("{ended:?}, and no core")),
            other => judged(other, "a core was written"),
        },
    }
}

fn executable_memory(_: &Facts) -> Outcome {
    const READ_IMPLIES_EXEC: i64 = 0x0040_0000;
    judged(call(libc::SYS_personality, [N(READ_IMPLIES_EXEC)]), "personality")
}

fn calls_of_x32(_: &Facts) -> Outcome {
    const X32: libc::c_long = 0x4000_0000;
    judged(call(X32 | libc::SYS_getpid, []), "getpid")
}

/// The numbers mean other calls there, so a filter that knows only the usual ones could be walked around.
#[cfg(target_arch = "x86_64")]
fn calls_of_32_bits(_: &Facts) -> Outcome {
    let child = fork(|| {
        // getpid
        let mut answer = 20_i32;
        // SAFETY: a call without arguments; it changes the registers that are named.
        unsafe {
            std::arch::asm!(
                "int 0x80",
                inout("eax") answer,
                out("r8") _,
                out("r9") _,
                out("r10") _,
                out("r11") _,
            );
        }
        i32::from(answer <= 0)
    });
    match child.and_then(wait) {
        Ok(Ended::Code(0)) => won("the call was made"),
        Ok(Ended::Signal(libc::SIGSEGV)) | Ok(Ended::Code(_)) => untried("this kernel has none"),
        Ok(ended) => nothing(format!("{ended:?}")),
        Err(error) => refused(&error, "a child"),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn calls_of_32_bits(_: &Facts) -> Outcome {
    untried("not on this architecture")
}

/// Makes a harmless call, and has it turned into another on its way into the kernel.
#[cfg(target_arch = "x86_64")]
fn filter_dodged_by_a_tracer(_: &Facts) -> Outcome {
    let child = fork(|| {
        let _ = call(libc::SYS_ptrace, [N(0), N(0), N(0), N(0)]);
        let _ = call(libc::SYS_kill, [N(std::process::id().into()), N(libc::SIGSTOP.into())]);
        let _ = call(libc::SYS_getppid, []);
        0
    });
    let answer = child.and_then(|child| {
        let answer = turn(child);
        let _ = call(libc::SYS_kill, [N(child.into()), N(libc::SIGKILL.into())]);
        answer
    });
    match answer {
        Ok(0) => won("another call was made than the filter saw"),
        Ok(answer) => Outcome::Refused(-answer as i32, "the filter sees what is really called".to_owned()),
        Err(error) => refused(&error, "ptrace"),
    }
}

/// What the kernel answers to `unshare` in the place of `getppid`.
#[cfg(target_arch = "x86_64")]
fn turn(child: libc::pid_t) -> io::Result<i64> {
    // Places in the kernel's `user_regs_struct`.
    const ANSWER: usize = 10;
    const FIRST: usize = 14;
    const NUMBER: usize = 15;
    let trace = |request: u32, registers: &mut [u64; 27]| {
        call(libc::SYS_ptrace, [N(request.into()), N(child.into()), N(0), W(registers)])
    };
    let on = || {
        call(libc::SYS_ptrace, [N(libc::PTRACE_SYSCALL.into()), N(child.into()), N(0), N(0)])?;
        wait(child)
    };
    let mut registers = [0u64; 27];
    wait(child)?;
    while registers[NUMBER] != libc::SYS_getppid as u64 {
        if !matches!(on()?, Ended::Stopped(_)) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        trace(libc::PTRACE_GETREGS, &mut registers)?;
    }
    registers[NUMBER] = libc::SYS_unshare as u64;
    registers[FIRST] = u64::from(libc::CLONE_NEWUSER.cast_unsigned());
    trace(libc::PTRACE_SETREGS, &mut registers)?;
    on()?;
    trace(libc::PTRACE_GETREGS, &mut registers)?;
    Ok(registers[ANSWER].cast_signed())
}

#[cfg(not(target_arch = "x86_64"))]
fn filter_dodged_by_a_tracer(_: &Facts) -> Outcome {
    untried("not written for this architecture")
}

/// For a program with the setuid bit.
fn be_root(_: &Facts) -> Outcome {
    match rustix::process::geteuid().as_raw() {
        0 => won("it runs as root"),
        user => nothing(format!("it runs as {user}")),
    }
}

/// Whoever is not killed is not in reach. Never a control: on the host this would be the end of it.
fn kill_all(facts: &Facts) -> Outcome {
    if facts.get("target") != "1" || std::env::var_os("SEAWALL_SANDBOX").is_none() {
        return untried("never on the host");
    }
    judged(call(libc::SYS_kill, [N(-1), N(libc::SIGKILL.into())]), "kill")
}
