//! The single checks. Each does the thing itself where it can, rather than guess.

use super::Check;
use crate::{app::check_data, config::Settings};
use seawall_api::SandboxId;
use seawall_core::ports::Provider;
use seawall_providers::{docker::DockerProvider, native::NativeProvider};
use std::{
    fs::{File, Permissions},
    io::{self, Write},
    os::{
        fd::AsRawFd,
        unix::{fs::PermissionsExt, net::UnixListener},
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};
use tokio::time::timeout;

const GIB: u64 = 1 << 30;
/// How long the Docker daemon may take to answer.
const DOCKER_PATIENCE: Duration = Duration::from_secs(5);

pub fn all(data: &Path) -> Vec<Check> {
    let mut checks = vec![writable(data)];
    checks.push(free_disk(data));
    checks.push(socket(data));
    checks.push(guest(data));
    checks.extend(kernel());
    checks.push(proc_mounted());
    checks.push(user_namespaces());
    checks.extend(limits(data));
    checks
}

/// What the native provider can enforce here.
fn limits(data: &Path) -> Vec<Check> {
    let check = |(name, missing): (&'static str, Option<(String, String)>)| match missing {
        None => Check::ok(name, "can be enforced"),
        Some((why, fix)) => Check::optional(name, format!("cannot be enforced: {why}"), fix),
    };
    seawall_providers::native::limits_table(data).into_iter().map(check).collect()
}

/// Makes a sandbox of the native provider and removes it.
pub async fn native(settings: &Settings) -> Check {
    let name = "native sandbox";
    match try_native(settings).await {
        Ok(()) => Check::ok(name, "started and removed"),
        Err(error) => Check::missing(name, "cannot be started", format!("{error:#}")),
    }
}

async fn try_native(settings: &Settings) -> anyhow::Result<()> {
    let scratch = Scratch::new(&settings.data);
    std::fs::create_dir_all(&scratch.0)?;
    Ok(NativeProvider::open(&scratch.0, settings.native.clone())?.probe().await?)
}

/// Looks for a Docker daemon, and for the runtimes that sandboxes can name.
pub async fn docker(settings: &Settings) -> Check {
    let name = "Docker daemon (for the docker provider)";
    let scratch = Scratch::new(&settings.data);
    let found = async {
        std::fs::create_dir_all(&scratch.0)?;
        let provider = DockerProvider::open(&scratch.0, "doctor", settings.docker.clone())?;
        anyhow::Ok(timeout(DOCKER_PATIENCE, provider.describe()).await??)
    };
    match found.await {
        Ok(found) => Check::ok(name, found),
        Err(error) => {
            let next = "start Docker and let this user use it, or name its daemon by DOCKER_HOST; without it there is no \
                        provider `docker`";
            Check::optional(name, format!("{error:#}"), next)
        }
    }
}

/// A name in the data folder that nobody has, gone when it is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(data: &Path) -> Self {
        Scratch(data.join(format!(".doctor-{}", SandboxId::generate())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn writable(data: &Path) -> Check {
    let name = "data folder";
    let scratch = Scratch::new(data);
    let written =
        private_dir(data).and_then(|()| check_data(data)).and_then(|()| std::fs::write(&scratch.0, b"x"));
    match written {
        Ok(()) => Check::ok(name, format!("{} can be written", data.display())),
        Err(error) if error.kind() == io::ErrorKind::StorageFull => Check::missing(
            name,
            format!("{} cannot be written: {error}", data.display()),
            "the disk is full: remove sandboxes with `seawall rm -f --volumes`, or move the data",
        ),
        Err(error) => Check::missing(
            name,
            format!("{} cannot be written: {error}", data.display()),
            "make it yours (chown), or choose another: --data DIR, SEAWALL_DATA, or `data` in seawall.toml",
        ),
    }
}

fn private_dir(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o711).create(path)
}

fn free_disk(data: &Path) -> Check {
    let name = "free disk";
    let existing = data.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    match rustix::fs::statvfs(existing) {
        Err(error) => {
            Check::missing(name, format!("unknown: {error}"), "check that the data folder is mounted")
        }
        Ok(disk) => {
            let free = disk.f_bavail.saturating_mul(disk.f_frsize);
            let found = format!("{:.1} GiB", free as f64 / GIB as f64);
            if free > GIB {
                Check::ok(name, found)
            } else {
                let next = "more than 1 GiB is needed: remove sandboxes with `seawall rm --volumes`, or move the data";
                Check::missing(name, found, next)
            }
        }
    }
}

fn socket(data: &Path) -> Check {
    let name = "unix sockets";
    let scratch = Scratch::new(data);
    match bind_beneath(&scratch.0) {
        Ok(_) => Check::ok(name, "can be made in the data folder"),
        Err(error) => Check::missing(
            name,
            format!("cannot be made in the data folder: {error}"),
            "choose a data folder on a local disk",
        ),
    }
}

/// As guests do it: through the folder's descriptor, since a socket's own path must be short.
fn bind_beneath(path: &Path) -> io::Result<UnixListener> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::other("no folder"));
    };
    let dir = File::open(dir)?;
    UnixListener::bind(Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(name))
}

fn guest(data: &Path) -> Check {
    let name = "guest";
    match run_guest(data) {
        Ok(version) => Check::ok(name, format!("runs ({version})")),
        Err(error) => Check::missing(
            name,
            format!("does not run: {error}"),
            "the data folder must allow programs (no `noexec` mount), and this must be the build for this machine",
        ),
    }
}

fn run_guest(data: &Path) -> io::Result<String> {
    let scratch = Scratch::new(data);
    let mut file = File::create(&scratch.0)?;
    file.write_all(seawall_providers::guest_binary())?;
    file.set_permissions(Permissions::from_mode(0o700))?;
    // A file that is open for writing cannot be run.
    drop(file);
    let ran = Command::new(&scratch.0).arg("--version").stdin(Stdio::null()).output()?;
    if !ran.status.success() {
        return Err(io::Error::other(format!("it ended with {}", ran.status)));
    }
    Ok(String::from_utf8_lossy(&ran.stdout).trim().to_owned())
}

fn kernel() -> Vec<Check> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    let wanted = [
        ("openat2", (5, 6), "paths in a sandbox cannot be kept in it without"),
        ("close_range", (5, 9), "open files could leak into commands without"),
    ];
    let check = |(name, needs, why): (&'static str, (u32, u32), &str)| match version(release) {
        Some(version) if version >= needs => Check::ok(name, format!("Linux {release}")),
        Some(_) => {
            let next = format!("{why}: use Linux {}.{} or later", needs.0, needs.1);
            Check::missing(name, format!("Linux {release} is too old"), next)
        }
        None => Check::missing(
            name,
            "the kernel's version is unknown",
            "seawall needs Linux 5.9 or later with /proc",
        ),
    };
    wanted.into_iter().map(check).collect()
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn proc_mounted() -> Check {
    match std::fs::read_link("/proc/self") {
        Ok(_) => Check::ok("/proc", "mounted"),
        Err(_) => Check::missing("/proc", "not mounted", "mount it: mount -t proc proc /proc"),
    }
}

fn user_namespaces() -> Check {
    let name = "user namespaces (for the native provider)";
    let limit = std::fs::read_to_string("/proc/sys/user/max_user_namespaces");
    let limit: u64 = limit.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    let next = "sysctl -w user.max_user_namespaces=15000; not needed for the local provider";
    match (Path::new("/proc/self/ns/user").exists(), limit) {
        (false, _) => Check::optional(name, "not in this kernel", next),
        (true, 0) => Check::optional(name, "switched off", next),
        (true, limit) => Check::ok(name, format!("up to {limit}")),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::State, *};

    #[test]
    fn versions_of_all_sorts() {
        assert_eq!(version("6.18.44-fc-v490"), Some((6, 18)));
        assert_eq!(version("5.9-rc1"), Some((5, 9)));
        assert_eq!(version(""), None);
    }

    #[test]
    fn a_folder_that_works_leaves_nothing_behind() {
        let data = tempfile::tempdir().unwrap();
        assert_eq!(writable(data.path()).state, State::Ok);
        assert_eq!(socket(data.path()).state, State::Ok);
        assert_eq!(std::fs::read_dir(data.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_missing_has_a_next_step() {
        let check = writable(Path::new("/proc/nowhere"));
        assert_eq!(check.state, State::Missing);
        assert!(check.line().starts_with("✗ data folder") && check.line().contains("--data"));
        let deep = tempfile::tempdir().unwrap().path().join("x".repeat(120));
        assert_eq!(socket(&deep).state, State::Missing);
    }
}
