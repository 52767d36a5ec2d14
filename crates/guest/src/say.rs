//! What the guest has to say, in its log.
//!
//! A log that cannot be written is no reason to die: the disk may be full, and process 1 holds up the box.

use std::{
    fmt::Arguments,
    io::{self, Write},
};

/// A box that makes its guest talk must not fill the disk with it.
const MAX_LOG: i64 = 1 << 20;

pub fn say(text: Arguments<'_>) {
    let full = rustix::fs::fstat(io::stderr()).is_ok_and(|stat| stat.st_size > MAX_LOG);
    if !full {
        let _ = writeln!(io::stderr(), "seawall-guest: {text}");
    }
}

#[macro_export]
macro_rules! say {
    ($($part:tt)*) => {
        $crate::say::say(format_args!($($part)*))
    };
}
