//! What a guest and a keeper say to each other: three numbers a message, in memory of fixed size.

/// What a keeper says, in order: started or failed; exited; gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    Started {
        pid: u32,
    },
    /// The number of the error, and the step that failed.
    Failed {
        errno: i32,
        step: Step,
    },
    /// As `waitpid` has it.
    Exited {
        status: i32,
    },
    /// No descendant is left.
    Gone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Step {
    Clone = 1,
    Directory = 2,
    User = 3,
    Terminal = 4,
    Execute = 5,
}

/// What a keeper is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tell {
    /// To the command's process group, while the command runs.
    Signal(i32),
    /// End everything.
    Kill,
}

/// Bytes of a message either way.
pub const MESSAGE: usize = 12;

impl Said {
    pub fn parse(message: &[u8]) -> Option<Said> {
        let word = |n: usize| -> Option<i32> {
            Some(i32::from_ne_bytes(message.get(n * 4..n * 4 + 4)?.try_into().ok()?))
        };
        Some(match (word(0)?, word(1)?, word(2)?) {
            (1, pid, _) => Said::Started { pid: u32::try_from(pid).ok()? },
            (2, errno, step) => Said::Failed { errno, step: Step::from_code(step) },
            (3, status, _) => Said::Exited { status },
            (4, _, _) => Said::Gone,
            _ => return None,
        })
    }
}

impl Tell {
    pub fn to_bytes(self) -> [u8; MESSAGE] {
        match self {
            Tell::Signal(signal) => message(1, signal, 0),
            Tell::Kill => message(2, 0, 0),
        }
    }
}

pub fn message(kind: i32, a: i32, b: i32) -> [u8; MESSAGE] {
    let mut out = [0; MESSAGE];
    out[..4].copy_from_slice(&kind.to_ne_bytes());
    out[4..8].copy_from_slice(&a.to_ne_bytes());
    out[8..].copy_from_slice(&b.to_ne_bytes());
    out
}

impl Step {
    pub fn from_code(code: i32) -> Step {
        match code {
            2 => Step::Directory,
            3 => Step::User,
            4 => Step::Terminal,
            5 => Step::Execute,
            _ => Step::Clone,
        }
    }
}
