//! Builds the guest for this target and leaves it where `lib.rs` embeds it from.
//!
//! A guest that was built elsewhere can be named by `SEAWALL_GUEST`; on hosts that are not Linux it must be.

use std::{
    env,
    error::Error,
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    process::Command,
};

/// Variables of the outer build that must not reach the inner one.
const CLEARED: [&str; 7] = [
    "RUSTFLAGS",
    "CARGO_ENCODED_RUSTFLAGS",
    "RUSTC_WRAPPER",
    "RUSTC_WORKSPACE_WRAPPER",
    "CARGO_TARGET_DIR",
    "CARGO_BUILD_TARGET",
    "CARGO_MAKEFLAGS",
];

fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    println!("cargo::rerun-if-env-changed=SEAWALL_GUEST");
    let guest = match env::var_os("SEAWALL_GUEST") {
        Some(ready) => {
            println!("cargo::rerun-if-changed={}", Path::new(&ready).display());
            PathBuf::from(ready)
        }
        None => build(&out)?,
    };
    let embedded = out.join("seawall-guest");
    fs::copy(&guest, &embedded).map_err(|e| format!("the guest at {}: {e}", guest.display()))?;
    // Here and not at each start: it tells builds apart, no more.
    let mut hasher = DefaultHasher::new();
    fs::read(&embedded)?.hash(&mut hasher);
    println!("cargo::rustc-env=SEAWALL_GUEST_NAME=seawall-guest-{:016x}", hasher.finish());
    Ok(())
}

fn build(out: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let target = env::var("TARGET")?;
    if !target.contains("linux") {
        return Err("the guest is a Linux program: name a ready-made one with SEAWALL_GUEST".into());
    }
    let workspace = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../..").canonicalize()?;
    for part in [
        "crates/guest",
        "crates/sync",
        "crates/jail",
        "crates/wire",
        "crates/api",
        "Cargo.toml",
        "Cargo.lock",
    ] {
        // Relative to this package: checkouts that share a target folder must not take each other's guest.
        println!("cargo::rerun-if-changed=../../{part}");
    }
    let target_dir = out.join("guest-target");
    let mut cargo = Command::new(env::var("CARGO")?);
    cargo
        .current_dir(&workspace)
        .args(["build", "--package", "seawall-guest", "--bin", "seawall-guest", "--profile", "guest"])
        .args(["--locked", "--target", &target, "--target-dir"])
        .arg(&target_dir);
    for name in CLEARED {
        cargo.env_remove(name);
    }
    // Static, so that it runs in any image; without relocations, so that it starts faster; without tables for
    // unwinding, since a panic aborts.
    let mut flags =
        "-C target-feature=+crt-static -C relocation-model=static -C force-unwind-tables=no".to_owned();
    if target == "x86_64-unknown-linux-gnu" {
        // Where the linker is Rust's own: functions that are the same become one, and nobody looks up tables.
        flags.push_str(" -C link-arg=-Wl,--icf=all -C link-arg=-Wl,--no-eh-frame-hdr");
    }
    cargo.env("RUSTFLAGS", flags);
    let output = cargo.output()?;
    if !output.status.success() {
        return Err(format!("building the guest failed:\n{}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(target_dir.join(target).join("guest/seawall-guest"))
}
