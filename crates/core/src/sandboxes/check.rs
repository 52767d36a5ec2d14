//! What a sandbox may be called and asked to be. Bad input is refused before anything is recorded.

use crate::{Error, Result, repositories::is_address};
use seawall_api::{ErrorKind, InvalidId, SandboxId, http::CreateSandbox, sandbox::SandboxSpec};
use std::collections::BTreeMap;

/// What file systems take, with room for what is put before it.
pub const LONGEST_VOLUME: usize = 220;

/// Names are for people to type: lower case, short, and never mistaken for an id.
pub fn name(name: Option<&str>) -> Result<()> {
    let Some(name) = name else { return Ok(()) };
    let tame = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_' | '.');
    let good = (1..=63).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && name.chars().all(tame)
        && matches!(name.parse::<SandboxId>(), Err(InvalidId::Malformed(_)));
    match good {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "`{name}` cannot be a name: use 1 to 63 of a-z 0-9 - _ . and begin with a letter or digit"
        ))),
    }
}

/// Bounds of what a request may have kept with a sandbox: entries, and bytes of names and values together.
const MAX_ENV: (usize, usize) = (256, 64 << 10);
const MAX_LABELS: (usize, usize) = (64, 16 << 10);
const MAX_MOUNTS: usize = 32;
const MAX_PATH: usize = 4096;
const MAX_WORD: usize = 512;
const MAX_PROJECT: usize = 128;
/// Bytes of a sandbox's command.
const MAX_COMMAND: usize = 64 << 10;
/// Published ports of one sandbox.
const MAX_PORTS: usize = 16;

/// What a request asks to be kept with a sandbox has an end: rows are read again and again.
pub fn wishes(ask: &CreateSandbox) -> Result<()> {
    map("env", &ask.env, MAX_ENV)?;
    map("labels", &ask.labels, MAX_LABELS)?;
    for (what, word) in [
        ("image", &ask.image),
        ("user", &ask.user),
        ("template", &ask.template),
        ("provider", &ask.provider),
        ("network", &ask.network),
        ("runtime", &ask.runtime),
        ("project_id", &ask.project_id),
        ("workspace_source", &ask.workspace_source),
    ] {
        if word.as_ref().is_some_and(|word| word.len() > MAX_WORD) {
            return Err(too_large(format!("`{what}` has at most {MAX_WORD} bytes")));
        }
    }
    let long = ask.mounts.iter().any(|mount| mount.source.len().max(mount.target.len()) > MAX_PATH);
    if ask.mounts.len() > MAX_MOUNTS || long {
        return Err(too_large(format!(
            "`mounts` has at most {MAX_MOUNTS} entries, with paths of {MAX_PATH} bytes"
        )));
    }
    Ok(())
}

fn map(what: &str, map: &BTreeMap<String, String>, (entries, bytes): (usize, usize)) -> Result<()> {
    let size: usize = map.iter().map(|(key, value)| key.len() + value.len()).sum();
    match map.len() > entries || size > bytes {
        true => Err(too_large(format!("`{what}` has at most {entries} entries, and {bytes} bytes in all"))),
        false => Ok(()),
    }
}

fn too_large(message: String) -> Error {
    Error::new(ErrorKind::TooLarge, message)
}

pub fn spec(spec: &SandboxSpec) -> Result<()> {
    let ours = |key: &&String| key.is_empty() || key.to_ascii_lowercase().starts_with("seawall.");
    if spec.labels.iter().any(|(key, value)| key.contains('\0') || value.contains('\0')) {
        return Err(Error::invalid("a label cannot contain a zero byte"));
    }
    if let Some(key) = spec.labels.keys().find(ours) {
        return Err(Error::invalid(format!(
            "`{key}` cannot be a label: `seawall.` is ours, and empty is nothing"
        )));
    }
    let odd = |key: &&String| key.is_empty() || key.contains(['=', '\0']);
    if let Some(key) = spec.env.keys().find(odd) {
        return Err(Error::invalid(format!("`{key}` cannot be the name of an environment variable")));
    }
    if spec.env.values().any(|value| value.contains('\0')) {
        return Err(Error::invalid("an environment variable cannot contain a zero byte"));
    }
    let limits = &spec.limits;
    let disk = [limits.disk_mb, limits.disk_io_mb_s, limits.disk_iops];
    let whole = [limits.memory_mb, limits.max_processes].into_iter().chain(disk);
    if whole.into_iter().any(|limit| limit == Some(0))
        || limits.cpus.is_some_and(|cpus| !cpus.is_finite() || cpus <= 0.0)
    {
        return Err(Error::invalid("a limit must be a number above zero"));
    }
    if spec.volume.is_some() && spec.has_host_workspace() {
        let message = "`workspace_path` excludes a volume that sandboxes share; leave one of them out";
        return Err(Error::invalid(message));
    }
    if spec.workspace_source.as_deref().is_some_and(|source| !is_address(source)) {
        let message = "`workspace_source` must be an address such as https://github.com/owner/repo, without credentials";
        return Err(Error::invalid(message));
    }
    if spec.allow_network && spec.network.is_some() {
        return Err(Error::invalid(
            "`allow_network` and `network` exclude each other; leave one of them out",
        ));
    }
    word("network", spec.network.as_deref())?;
    word("runtime", spec.runtime.as_deref())?;
    project(spec.project_id.as_deref())?;
    command(spec.command.as_deref())?;
    ports(&spec.ports)?;
    spec.volume.as_deref().map_or(Ok(()), volume)
}

/// Names of things on a daemon.
fn word(what: &str, word: Option<&str>) -> Result<()> {
    let tame = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    match word.is_none_or(|word| !word.is_empty() && word.len() <= MAX_WORD && word.chars().all(tame)) {
        true => Ok(()),
        false => Err(Error::invalid(format!("`{what}` must be a name of letters, digits and - _ . /"))),
    }
}

fn project(project: Option<&str>) -> Result<()> {
    let good = |id: &str| (1..=MAX_PROJECT).contains(&id.len()) && !id.chars().any(char::is_control);
    match project.is_none_or(good) {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "`project_id` must have 1 to {MAX_PROJECT} bytes and no control characters"
        ))),
    }
}

fn command(command: Option<&[String]>) -> Result<()> {
    let words = command.unwrap_or_default();
    if words.first().is_some_and(String::is_empty) {
        return Err(Error::invalid("`command` must begin with a program; leave it out to start none"));
    }
    if words.iter().any(|word| word.contains('\0')) {
        return Err(Error::invalid("`command` cannot contain a zero byte"));
    }
    match words.iter().map(String::len).sum::<usize>() > MAX_COMMAND {
        true => Err(too_large(format!("`command` has at most {MAX_COMMAND} bytes; put more into a script"))),
        false => Ok(()),
    }
}

fn ports(ports: &[u16]) -> Result<()> {
    if ports.len() > MAX_PORTS {
        return Err(too_large(format!("`ports` has at most {MAX_PORTS} entries")));
    }
    match ports.iter().enumerate().find(|(at, port)| **port == 0 || ports[..*at].contains(port)) {
        Some((_, port)) => Err(Error::invalid(format!(
            "`ports` has {port}, which is no port or is there twice; name each port of the sandbox once"
        ))),
        None => Ok(()),
    }
}

/// Names of volumes become names of folders. With a dot within, none is taken for an id, nor for a file of ours.
fn volume(name: &str) -> Result<()> {
    let tame = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let good = name.len() <= LONGEST_VOLUME
        && !name.starts_with('.')
        && name.contains('.')
        && name.chars().all(tame);
    match good {
        true => Ok(()),
        false => Err(Error::invalid(format!("`{name}` cannot be the name of a volume"))),
    }
}
