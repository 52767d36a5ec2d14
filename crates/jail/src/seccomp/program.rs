//! From a table of answers to a program for the kernel: a binary search over ranges of numbers.

use super::{Answer, Question};
use std::{io, mem::offset_of};

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const ANY_BIT: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const REFUSE: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
const UNKNOWN: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
const NO_FAMILY: u32 = libc::SECCOMP_RET_ERRNO | libc::EAFNOSUPPORT as u32;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xC000_00B7;
/// Numbers of the x32 calls: the same kernel entry with another meaning.
const X32: u32 = 0x4000_0000;

/// New mount, cgroup, uts, ipc, user, pid, net and time namespaces.
const NAMESPACES: u32 = 0x7E02_0080;
/// In `clone` the lowest byte is a signal, so the time namespace has no bit there.
const NAMESPACES_CLONE: u32 = 0x7E02_0000;
const TIOCSTI: u32 = 0x5412;
const TIOCLINUX: u32 = 0x541C;
const TIOCSETD: u32 = 0x5423;
const PERSONALITIES: [u32; 5] = [0, 8, 0x0002_0000, 0x0004_0000, 0xFFFF_FFFF];
const FAMILIES: [u32; 3] = [libc::AF_UNIX as u32, libc::AF_INET as u32, libc::AF_INET6 as u32];

/// A program for the kernel.
#[derive(Clone)]
pub struct Program {
    code: Vec<libc::sock_filter>,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Program of {} instructions", self.code.len())
    }
}

impl Program {
    pub fn new(table: &[Answer]) -> Program {
        let mut ranges: Vec<(u32, Answer)> = Vec::new();
        for (number, answer) in table.iter().enumerate() {
            if ranges.last().is_none_or(|(_, last)| last != answer) {
                ranges.push((number as u32, *answer));
            }
        }
        ranges.push((table.len() as u32, Answer::Unknown));
        let mut code = vec![
            op(LOAD, offset_of!(libc::seccomp_data, arch) as u32, 0, 0),
            op(EQUAL, ARCHITECTURE, 1, 0),
            op(RETURN, libc::SECCOMP_RET_KILL_PROCESS, 0, 0),
            op(LOAD, offset_of!(libc::seccomp_data, nr) as u32, 0, 0),
            op(AT_LEAST, X32, 0, 1),
            op(RETURN, UNKNOWN, 0, 0),
        ];
        code.extend(tree(&ranges));
        Program { code }
    }

    /// From now on this thread and all that comes from it obey. Needs no new privileges, or the right to do so.
    pub fn install(&self) -> io::Result<()> {
        let program = libc::sock_fprog {
            len: u16::try_from(self.code.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?,
            filter: self.code.as_ptr().cast_mut(),
        };
        // SAFETY: the kernel copies the program, whose length is right.
        let done =
            unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// The answer to the number in the accumulator.
fn tree(ranges: &[(u32, Answer)]) -> Vec<libc::sock_filter> {
    match ranges {
        [] => vec![op(RETURN, REFUSE, 0, 0)],
        [(_, answer)] => leaf(*answer),
        _ => {
            let (left, right) = ranges.split_at(ranges.len() / 2);
            let (pivot, below) = (right[0].0, tree(left));
            let mut code = match u8::try_from(below.len()) {
                Ok(far) => vec![op(AT_LEAST, pivot, far, 0)],
                // Further than a conditional jump reaches.
                Err(_) => vec![
                    op(AT_LEAST, pivot, 0, 1),
                    op((libc::BPF_JMP | libc::BPF_JA) as u16, below.len() as u32, 0, 0),
                ],
            };
            code.extend(below);
            code.extend(tree(right));
            code
        }
    }
}

fn leaf(answer: Answer) -> Vec<libc::sock_filter> {
    match answer {
        Answer::Allow => vec![op(RETURN, ALLOW, 0, 0)],
        Answer::Refuse => vec![op(RETURN, REFUSE, 0, 0)],
        Answer::Unknown => vec![op(RETURN, UNKNOWN, 0, 0)],
        Answer::Ask(question) => ask(question),
    }
}

fn ask(question: Question) -> Vec<libc::sock_filter> {
    match question {
        Question::NoNamespaces => vec![
            // The number is still there: `clone` and `unshare` differ in one bit.
            op(EQUAL, libc::SYS_clone as u32, 0, 3),
            op(LOAD, argument(0), 0, 0),
            op(ANY_BIT, NAMESPACES_CLONE, 3, 0),
            op(RETURN, ALLOW, 0, 0),
            op(LOAD, argument(0), 0, 0),
            op(ANY_BIT, NAMESPACES, 0, 1),
            op(RETURN, REFUSE, 0, 0),
            op(RETURN, ALLOW, 0, 0),
        ],
        Question::Family => {
            let mut code = vec![op(LOAD, argument(0), 0, 0)];
            code.extend(if_any(&FAMILIES, ALLOW));
            // Netlink, and of it only what programs ask about their own interfaces.
            code.extend([
                op(EQUAL, libc::AF_NETLINK as u32, 0, 3),
                op(LOAD, argument(2), 0, 0),
                op(EQUAL, libc::NETLINK_ROUTE as u32, 0, 1),
                op(RETURN, ALLOW, 0, 0),
                op(RETURN, NO_FAMILY, 0, 0),
            ]);
            code
        }
        Question::Terminal => {
            let mut code = vec![op(LOAD, argument(1), 0, 0)];
            code.extend(if_any(&[TIOCSTI, TIOCLINUX, TIOCSETD], REFUSE));
            code.push(op(RETURN, ALLOW, 0, 0));
            code
        }
        Question::Personality => {
            let mut code = vec![op(LOAD, argument(0), 0, 0)];
            code.extend(if_any(&PERSONALITIES, ALLOW));
            code.push(op(RETURN, REFUSE, 0, 0));
            code
        }
    }
}

fn if_any(values: &[u32], answer: u32) -> Vec<libc::sock_filter> {
    values.iter().flat_map(|value| [op(EQUAL, *value, 0, 1), op(RETURN, answer, 0, 0)]).collect()
}

/// The lower half of an argument: the calls in question look at no more.
fn argument(n: usize) -> u32 {
    (offset_of!(libc::seccomp_data, args) + n * 8) as u32
}

fn op(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

#[cfg(test)]
mod tests {
    use super::{super::calls, *};

    /// What the kernel would answer.
    fn run(program: &Program, arch: u32, nr: u32, args: [u64; 6]) -> u32 {
        let mut data = [0u8; 64];
        data[..4].copy_from_slice(&nr.to_ne_bytes());
        data[4..8].copy_from_slice(&arch.to_ne_bytes());
        for (n, arg) in args.iter().enumerate() {
            data[16 + n * 8..24 + n * 8].copy_from_slice(&arg.to_ne_bytes());
        }
        let (mut at, mut acc) = (0usize, 0u32);
        loop {
            let op = program.code[at];
            at += 1;
            let jump = |taken: bool| usize::from(if taken { op.jt } else { op.jf });
            match op.code {
                LOAD => {
                    let at = op.k as usize;
                    acc = u32::from_ne_bytes(data[at..at + 4].try_into().unwrap());
                }
                EQUAL => at += jump(acc == op.k),
                AT_LEAST => at += jump(acc >= op.k),
                ANY_BIT => at += jump(acc & op.k != 0),
                RETURN => return op.k,
                _ => at += op.k as usize,
            }
        }
    }

    fn answer(nr: libc::c_long, args: [u64; 6]) -> u32 {
        run(&super::super::program(), ARCHITECTURE, nr as u32, args)
    }

    #[test]
    fn every_number_gets_the_answer_of_the_table() {
        let (table, program) = (calls::table(), super::super::program());
        for number in 0..600u32 {
            let wanted = match table.get(number as usize) {
                Some(Answer::Allow) => ALLOW,
                Some(Answer::Refuse) => REFUSE,
                Some(Answer::Unknown) | None => UNKNOWN,
                Some(Answer::Ask(_)) => continue,
            };
            assert_eq!(run(&program, ARCHITECTURE, number, [0; 6]), wanted, "{number}");
        }
        assert!(program.code.len() < 400, "{}", program.code.len());
    }

    #[test]
    fn other_architectures_die_and_x32_is_unknown() {
        let program = super::super::program();
        assert_eq!(run(&program, 0x4000_0003, 1, [0; 6]), libc::SECCOMP_RET_KILL_PROCESS);
        assert_eq!(run(&program, ARCHITECTURE, X32 | 1, [0; 6]), UNKNOWN);
    }

    #[test]
    fn arguments_decide() {
        let first = |arg: u64| [arg, 0, 0, 0, 0, 0];
        assert_eq!(answer(libc::SYS_clone, first(libc::SIGCHLD as u64)), ALLOW);
        assert_eq!(answer(libc::SYS_clone, first(libc::CLONE_NEWUSER as u64)), REFUSE);
        assert_eq!(answer(libc::SYS_clone, first(libc::CLONE_NEWNS as u64 | 0xFFFF_0000_0000_0000)), REFUSE);
        assert_eq!(answer(libc::SYS_unshare, first(libc::CLONE_FILES as u64)), ALLOW);
        assert_eq!(answer(libc::SYS_unshare, first(libc::CLONE_NEWTIME as u64)), REFUSE);
        assert_eq!(answer(libc::SYS_unshare, first(libc::CLONE_NEWUSER as u64)), REFUSE);
        assert_eq!(answer(libc::SYS_clone3, [0; 6]), UNKNOWN);
        assert_eq!(answer(libc::SYS_socket, first(libc::AF_INET6 as u64)), ALLOW);
        assert_eq!(answer(libc::SYS_socket, first(libc::AF_VSOCK as u64)), NO_FAMILY);
        assert_eq!(answer(libc::SYS_socket, first(libc::AF_ALG as u64)), NO_FAMILY);
        assert_eq!(answer(libc::SYS_socket, [16, 3, 0, 0, 0, 0]), ALLOW);
        assert_eq!(answer(libc::SYS_socket, [16, 3, libc::NETLINK_NETFILTER as u64, 0, 0, 0]), NO_FAMILY);
        assert_eq!(answer(libc::SYS_ioctl, [0, u64::from(TIOCSTI), 0, 0, 0, 0]), REFUSE);
        assert_eq!(answer(libc::SYS_ioctl, [0, 0xFFFF_FFFF_0000_5412, 0, 0, 0, 0]), REFUSE);
        assert_eq!(answer(libc::SYS_ioctl, [0, 0x5413, 0, 0, 0, 0]), ALLOW);
        assert_eq!(answer(libc::SYS_personality, first(0x0040_0000)), REFUSE);
    }

    #[test]
    fn what_leads_out_is_refused() {
        let refused = [
            libc::SYS_mount,
            libc::SYS_umount2,
            libc::SYS_pivot_root,
            libc::SYS_setns,
            libc::SYS_bpf,
            libc::SYS_perf_event_open,
            libc::SYS_userfaultfd,
            libc::SYS_io_uring_setup,
            libc::SYS_keyctl,
            libc::SYS_add_key,
            libc::SYS_request_key,
            libc::SYS_open_by_handle_at,
            libc::SYS_init_module,
            libc::SYS_finit_module,
            libc::SYS_kexec_load,
            libc::SYS_reboot,
            libc::SYS_syslog,
            libc::SYS_swapon,
            libc::SYS_acct,
            libc::SYS_fsopen,
            libc::SYS_fsmount,
            libc::SYS_open_tree,
            libc::SYS_move_mount,
            libc::SYS_mount_setattr,
            libc::SYS_quotactl,
            libc::SYS_settimeofday,
            libc::SYS_clock_settime,
            libc::SYS_sethostname,
            libc::SYS_fanotify_init,
        ];
        for call in refused {
            assert_eq!(answer(call, [0; 6]), REFUSE, "{call}");
        }
    }
}
