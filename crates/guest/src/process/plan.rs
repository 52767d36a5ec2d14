//! A command in one piece of memory, so that a keeper can take it over a socket and run it without
//! allocating: numbers first, then strings that each end with a zero byte.

use libc::c_char;
use std::{ffi::CString, ptr};

/// Numbers at the beginning, of 32 bits each; the two limits of open files have two each.
const NUMBERS: usize = 11;
const HEAD: usize = NUMBERS * 4;
/// The largest that a keeper takes over its socket. Others come with a keeper of their own.
pub const MAX_SENT: usize = 96 << 10;
/// The most pointers to strings that a waiting keeper has room for.
pub const MAX_POINTERS: usize = 8 << 10;

/// A command, ready to run: everything that needs memory was done.
pub struct Launch {
    /// The program, at the places where it may be.
    pub candidates: Vec<CString>,
    pub args: Vec<CString>,
    pub env: Vec<CString>,
    /// Where the guest may become another user: user, group, groups.
    pub become_user: Option<(u32, u32, Vec<u32>)>,
    /// How many files it may open: what the guest was given, not what the guest took.
    pub open_files: libc::rlimit,
    /// Stdio is a terminal that the command shall control.
    pub tty: bool,
}

impl Launch {
    pub fn to_bytes(&self) -> Vec<u8> {
        let none = (0, 0, Vec::new());
        let (uid, gid, groups) = self.become_user.as_ref().unwrap_or(&none);
        let flags = u32::from(self.tty) | u32::from(self.become_user.is_some()) << 1;
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let mut out = Vec::with_capacity(4096);
        let [cur, max] = [self.open_files.rlim_cur, self.open_files.rlim_max];
        let numbers = [
            flags,
            *uid,
            *gid,
            count(groups.len()),
            count(self.candidates.len()),
            count(self.args.len()),
            count(self.env.len()),
            cur as u32,
            (cur >> 32) as u32,
            max as u32,
            (max >> 32) as u32,
        ];
        for number in numbers.iter().chain(groups) {
            out.extend_from_slice(&number.to_ne_bytes());
        }
        for string in self.candidates.iter().chain(&self.args).chain(&self.env) {
            out.extend_from_slice(string.as_bytes_with_nul());
        }
        out
    }

    /// Pointers that a [`Plan`] of it needs.
    pub fn pointers(&self) -> usize {
        self.candidates.len() + self.args.len() + self.env.len() + 3
    }
}

/// A launch as the keeper sees it. It points into the bytes and the table it was made from.
pub struct Plan<'a> {
    /// Each list ends with null.
    pub candidates: &'a [*const c_char],
    pub args: &'a [*const c_char],
    pub env: &'a [*const c_char],
    pub become_user: Option<(u32, u32)>,
    /// The groups, as the kernel takes them.
    pub groups: &'a [u8],
    pub open_files: libc::rlimit,
    pub tty: bool,
}

impl<'a> Plan<'a> {
    /// None where the bytes are no launch or the table is too small.
    pub fn parse(bytes: &'a [u8], table: &'a mut [*const c_char]) -> Option<Plan<'a>> {
        let number = |n: usize| -> Option<u32> {
            Some(u32::from_ne_bytes(bytes.get(n * 4..n * 4 + 4)?.try_into().ok()?))
        };
        let count = |n: usize| number(n).map(|n| n as usize);
        let wide = |n: usize| Some(u64::from(number(n)?) | u64::from(number(n + 1)?) << 32);
        let flags = number(0)?;
        let groups_end = HEAD.checked_add(count(3)?.checked_mul(4)?)?;
        let groups = bytes.get(HEAD..groups_end)?;
        let mut strings = bytes.get(groups_end..)?;
        let (candidates, table) = list(&mut strings, table, count(4)?)?;
        let (args, table) = list(&mut strings, table, count(5)?)?;
        let (env, _) = list(&mut strings, table, count(6)?)?;
        Some(Plan {
            candidates,
            args,
            env,
            become_user: (flags & 2 != 0).then_some((number(1)?, number(2)?)),
            groups,
            open_files: libc::rlimit { rlim_cur: wide(7)?, rlim_max: wide(9)? },
            tty: flags & 1 != 0,
        })
    }
}

type Table<'a> = &'a mut [*const c_char];

/// Points to the next `count` strings, and ends the list with null.
fn list<'a>(
    strings: &mut &'a [u8],
    table: Table<'a>,
    count: usize,
) -> Option<(&'a [*const c_char], Table<'a>)> {
    let (list, rest) = table.split_at_mut_checked(count.checked_add(1)?)?;
    for entry in &mut list[..count] {
        let end = strings.iter().position(|byte| *byte == 0)?;
        *entry = strings.as_ptr().cast();
        *strings = &strings[end + 1..];
    }
    list[count] = ptr::null();
    Some((list, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn strings(list: &[*const c_char]) -> Vec<String> {
        let (last, strings) = list.split_last().unwrap();
        assert!(last.is_null());
        // SAFETY: the pointers were made from strings that live in the test.
        strings.iter().map(|s| unsafe { CStr::from_ptr(*s) }.to_string_lossy().into_owned()).collect()
    }

    fn launch() -> Launch {
        let all = |list: &[&str]| list.iter().map(|s| CString::new(*s).unwrap()).collect();
        Launch {
            candidates: all(&["/bin/a", "/usr/bin/a"]),
            args: all(&["a", "", "three"]),
            env: all(&["X=1"]),
            become_user: Some((7, 8, vec![9, 10])),
            open_files: libc::rlimit { rlim_cur: 1 << 40, rlim_max: libc::RLIM_INFINITY },
            tty: true,
        }
    }

    #[test]
    fn a_launch_survives_its_way() {
        let (launch, mut table) = (launch(), [ptr::null(); 9]);
        let bytes = launch.to_bytes();
        assert_eq!(launch.pointers(), table.len());
        let plan = Plan::parse(&bytes, &mut table).unwrap();
        assert_eq!(strings(plan.candidates), ["/bin/a", "/usr/bin/a"]);
        assert_eq!(strings(plan.args), ["a", "", "three"]);
        assert_eq!(strings(plan.env), ["X=1"]);
        assert_eq!(plan.become_user, Some((7, 8)));
        assert_eq!(plan.groups, [9u32.to_ne_bytes(), 10u32.to_ne_bytes()].concat());
        assert_eq!((plan.open_files.rlim_cur, plan.open_files.rlim_max), (1 << 40, libc::RLIM_INFINITY));
        assert!(plan.tty);
    }

    #[test]
    fn what_is_cut_off_or_has_no_room_is_no_plan() {
        let bytes = launch().to_bytes();
        for end in 0..bytes.len() {
            assert!(Plan::parse(&bytes[..end], &mut [ptr::null(); 9]).is_none(), "{end}");
        }
        assert!(Plan::parse(&bytes, &mut [ptr::null(); 8]).is_none());
    }
}
