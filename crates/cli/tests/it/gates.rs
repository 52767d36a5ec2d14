//! Commands that wait until a test lets them go on.

use crate::world::World;
use std::path::PathBuf;

/// A part of a shell's loop: at these numbers it waits until [`go`] lets it go on.
pub fn waits_at(numbers: &[u32]) -> String {
    let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
    format!("case $i in {}) until [ -e go$i ]; do sleep 0.02; done;; esac", numbers.join("|"))
}

/// Past every server and every command, since each of them may take turns up.
pub fn go(world: &World, sandbox: &str, number: u32) {
    std::fs::write(workspace(world, sandbox).join(format!("go{number}")), "").unwrap();
}

/// The files of a sandbox, as the machine has them.
pub fn workspace(world: &World, sandbox: &str) -> PathBuf {
    let of = |provider| world.data().join(provider).join("volumes").join(sandbox).join("work");
    ["native", "local"].map(of).into_iter().find(|path| path.is_dir()).unwrap()
}
