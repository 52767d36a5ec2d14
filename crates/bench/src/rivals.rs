//! Compares with other programs that run a command in isolation, in the same run.

use super::{
    boxes::Created,
    figures::{Bound, Report, percentile},
};
use anyhow::{Context, Result, ensure};
use seawall_cli::output;
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

const BWRAP: &str = "bwrap_p50_ms";
/// Slow ones get fewer rounds.
const ROUNDS: usize = 50;
const SLOW_ROUNDS: usize = 10;

/// A way to run one command, and how its figure and the ratio to it are called.
struct Rival {
    key: &'static str,
    name: &'static str,
    ratio: (&'static str, &'static str),
    rounds: usize,
    command: Vec<String>,
    /// The program whose daemon stores an image for this measurement.
    image_of: Option<&'static str>,
}

/// Measures each peer that is installed. `create` has our own medians, which must be smaller.
pub fn compare(report: &mut Report, scratch: &Path, create: Created) -> Result<()> {
    for rival in rivals(scratch)? {
        let measured = measure(&rival);
        if let Some(program) = rival.image_of {
            // Ours, from a moment ago; a daemon that refuses keeps a small image.
            let _ = Command::new(program).args(["rmi", IMAGE]).output();
        }
        let median = match measured {
            Ok(median) => median,
            Err(error) => {
                output::note(format!("{} is left out: {error:#}", rival.name));
                continue;
            }
        };
        report.told(rival.key, rival.name, "ms", median);
        let (key, name) = rival.ratio;
        report.promise(key, name, "x", create.plain / median, Bound::AtMost(1.0));
        if let Some(with_disk) = create.with_disk.filter(|_| rival.key == BWRAP) {
            let (key, name) = ("bwrap_disk_ratio", "  create of an account with a disk / bwrap");
            report.promise(key, name, "x", with_disk / median, Bound::AtMost(1.0));
        }
    }
    Ok(())
}

fn measure(rival: &Rival) -> Result<f64> {
    let mut times = Vec::with_capacity(rival.rounds);
    for round in 0..=rival.rounds {
        let begun = Instant::now();
        let ran = Command::new(&rival.command[0])
            .args(&rival.command[1..])
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot run {}", rival.command[0]))?;
        // The first warms up.
        if round > 0 {
            times.push(begun.elapsed().as_secs_f64() * 1000.0);
        }
        ensure!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr).trim());
    }
    times.sort_by(f64::total_cmp);
    Ok(percentile(&times, 0.50))
}

fn rivals(scratch: &Path) -> Result<Vec<Rival>> {
    let mut rivals = Vec::new();
    if is_installed("bwrap") {
        let ratio = ("bwrap_ratio", "  create / bwrap");
        rivals.push(Rival {
            key: BWRAP,
            name: "bwrap, p50",
            ratio,
            rounds: ROUNDS,
            command: bwrap(),
            image_of: None,
        });
    }
    for (program, key, name, ratio) in [
        ("runc", "runc_p50_ms", "runc, p50", ("runc_ratio", "  create / runc")),
        ("crun", "crun_p50_ms", "crun, p50", ("crun_ratio", "  create / crun")),
    ] {
        if is_installed(program) {
            let bundle = bundle(program, scratch)?.display().to_string();
            let command = [program, "run", "--bundle", &bundle, "seawall-bench"].map(str::to_owned).to_vec();
            rivals.push(Rival { key, name, ratio, rounds: SLOW_ROUNDS, command, image_of: None });
        }
    }
    for (program, key, name, ratio) in [
        ("docker", "docker_p50_ms", "docker run, p50", ("docker_ratio", "  create / docker run")),
        ("podman", "podman_p50_ms", "podman run, p50", ("podman_ratio", "  create / podman run")),
    ] {
        if is_installed(program) && imported(program, scratch) {
            let words = format!("{program} run --rm --network none {IMAGE} /guest --version");
            let command = words.split(' ').map(str::to_owned).collect();
            rivals.push(Rival { key, name, ratio, rounds: SLOW_ROUNDS, command, image_of: Some(program) });
        }
    }
    Ok(rivals)
}

const IMAGE: &str = "seawall-bench:latest";

/// `true` in new namespaces with the host's `/usr`.
pub fn bwrap() -> Vec<String> {
    let words = "bwrap --unshare-all --ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib \
                 --symlink usr/lib64 /lib64 --proc /proc --dev /dev --tmpfs /tmp true";
    words.split_whitespace().map(str::to_owned).collect()
}

pub fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// A root with nothing but a static program: our guest, which can tell its version.
fn root(scratch: &Path) -> Result<PathBuf> {
    let root = scratch.join("rival-root");
    if !root.exists() {
        fs::create_dir_all(root.join("proc"))?;
        fs::create_dir_all(root.join("dev"))?;
        let guest = root.join("guest");
        fs::write(&guest, seawall_providers::guest_binary())?;
        fs::set_permissions(&guest, fs::Permissions::from_mode(0o755))?;
    }
    Ok(root)
}

fn bundle(program: &str, scratch: &Path) -> Result<PathBuf> {
    let (root, bundle) = (root(scratch)?, scratch.join(format!("bundle-{program}")));
    fs::create_dir_all(&bundle)?;
    let made = Command::new(program).arg("spec").current_dir(&bundle).output()?;
    ensure!(made.status.success(), "{program} spec failed");
    let config = bundle.join("config.json");
    let mut spec: serde_json::Value = serde_json::from_slice(&fs::read(&config)?)?;
    spec["process"]["args"] = serde_json::json!(["/guest", "--version"]);
    spec["process"]["terminal"] = false.into();
    spec["root"]["path"] = root.display().to_string().into();
    fs::write(&config, serde_json::to_vec(&spec)?)?;
    Ok(bundle)
}

/// Whether the daemon answers and takes a small image. No registry is asked.
fn imported(program: &str, scratch: &Path) -> bool {
    let import = || -> Result<bool> {
        let root = root(scratch)?;
        let mut tar =
            Command::new("tar").args(["-C"]).arg(root).args(["-c", "."]).stdout(Stdio::piped()).spawn()?;
        let archive = tar.stdout.take().context("tar prints nothing")?;
        let done = Command::new(program).args(["import", "-", IMAGE]).stdin(archive).output();
        let packed = tar.wait()?.success();
        Ok(packed && done?.status.success())
    };
    import().unwrap_or(false)
}
