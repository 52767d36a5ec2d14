//! What the guest is told when it starts. Its own environment is the base of its processes'.

use crate::container::WIRE;
use seawall_api::SandboxId;
use std::{ffi::OsString, path::PathBuf};

#[derive(Debug, Clone)]
pub struct Config {
    pub sandbox: SandboxId,
    /// What the sandbox calls `/`.
    pub root: PathBuf,
    /// Where it listens for hosts, unless it is given a socket.
    pub socket: PathBuf,
    /// Held while anything of this box is alive.
    pub lock: Option<PathBuf>,
    /// Where the reason of an orderly end is written.
    pub end: Option<PathBuf>,
    /// Where messages go once it serves.
    pub log: Option<PathBuf>,
    /// The user of processes and files, unless a call names one.
    pub user: Option<String>,
    /// Leave whoever started it, once it serves.
    pub daemon: bool,
    /// The guest is process 1 of a container: see [`crate::container`].
    pub container: bool,
    /// The workspace is a folder of the host, whose owner stays.
    pub host_workspace: bool,
    /// The working directory of processes whose request names none.
    pub workdir: Option<String>,
    /// Started once the guest serves. Its end does not end the box.
    pub command: Vec<String>,
}

/// What the program is to be.
#[derive(Debug)]
pub enum Part {
    Version,
    /// Starts boxes for a host process: see `seawall_jail::launcher`.
    Launcher,
    /// Connects its stdio to the guest of the container that it runs in.
    Bridge,
    Guest(Box<Config>),
}

impl Config {
    /// A guest of a sandbox that sees `/`.
    pub fn new(sandbox: SandboxId) -> Config {
        Config {
            sandbox,
            root: PathBuf::from("/"),
            socket: PathBuf::new(),
            lock: None,
            end: None,
            log: None,
            user: None,
            daemon: false,
            container: false,
            host_workspace: false,
            workdir: None,
            command: Vec::new(),
        }
    }

    pub fn from_args(args: impl Iterator<Item = OsString>) -> Result<Part, String> {
        let mut args = args.peekable();
        // Before anything else: a launcher must not hold descriptors that it does not know of, such as that of
        // the kernel's randomness, which making an id opens.
        if args.peek().is_some_and(|first| first == "--launcher") {
            return Ok(Part::Launcher);
        }
        let mut sandbox = None;
        let mut socket = None;
        let mut config = Config::new(SandboxId::generate());
        while let Some(flag) = args.next() {
            let flag = flag.to_string_lossy().into_owned();
            match flag.as_str() {
                "--version" => return Ok(Part::Version),
                "--bridge" => return Ok(Part::Bridge),
                "--daemon" => {
                    config.daemon = true;
                    continue;
                }
                "--container" => {
                    config.container = true;
                    continue;
                }
                "--host-workspace" => {
                    config.host_workspace = true;
                    continue;
                }
                "--" => {
                    config.command = args.map(|arg| arg.to_string_lossy().into_owned()).collect();
                    break;
                }
                _ => {}
            }
            let value = args.next().ok_or_else(|| format!("{flag} needs a value"))?;
            match flag.as_str() {
                "--sandbox" => sandbox = Some(value.to_string_lossy().into_owned()),
                "--root" => config.root = value.into(),
                "--socket" => socket = Some(PathBuf::from(value)),
                "--lock" => config.lock = Some(value.into()),
                "--end" => config.end = Some(value.into()),
                "--log" => config.log = Some(value.into()),
                "--user" => config.user = Some(value.to_string_lossy().into_owned()),
                "--workdir" => config.workdir = Some(value.to_string_lossy().into_owned()),
                other => return Err(format!("unknown flag {other}")),
            }
        }
        let sandbox = sandbox.ok_or("--sandbox is missing")?;
        config.sandbox = sandbox.parse().map_err(|e| format!("--sandbox: {e}"))?;
        config.socket = match socket {
            None if config.container => PathBuf::from(WIRE),
            socket => socket.ok_or("--socket is missing")?,
        };
        Ok(Part::Guest(Box::new(config)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn parse(text: &str) -> Result<Part, String> {
        Config::from_args(text.split_whitespace().map(OsString::from))
    }

    #[test]
    fn what_is_missing_or_unknown_is_named() {
        assert!(matches!(parse("--version"), Ok(Part::Version)));
        assert!(matches!(parse("--launcher"), Ok(Part::Launcher)));
        assert!(parse("--socket /s").unwrap_err().contains("--sandbox"));
        assert!(parse("--nonsense x").unwrap_err().contains("--nonsense"));
        assert!(parse("--root").unwrap_err().contains("--root"));
        let id = "0190a5d0-7c1e-7b3a-9f00-3d2c1b0a9f8e";
        let Ok(Part::Guest(config)) = parse(&format!("--daemon --sandbox {id} --socket /s")) else {
            panic!("no guest");
        };
        assert!(config.daemon && config.sandbox.to_string() == id);
        let Ok(Part::Guest(config)) =
            parse(&format!("--container --sandbox {id} --workdir /app -- sh -c --x"))
        else {
            panic!("no guest");
        };
        assert!(config.container && config.socket == Path::new(WIRE));
        assert_eq!(
            (config.workdir.as_deref(), &config.command[..]),
            (Some("/app"), &["sh", "-c", "--x"].map(String::from)[..])
        );
    }
}
