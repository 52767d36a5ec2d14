//! What a sandbox may be called and asked to be. Bad input is refused before anything is recorded.

use crate::{Error, Result};
use seawall_api::{InvalidId, SandboxId, sandbox::SandboxSpec};

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

pub fn spec(spec: &SandboxSpec) -> Result<()> {
    if let Some(key) = spec.labels.keys().find(|key| key.is_empty() || key.starts_with("seawall.")) {
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
    let whole = [limits.memory_mb, limits.disk_mb, limits.max_processes];
    if whole.contains(&Some(0)) || limits.cpus.is_some_and(|cpus| !cpus.is_finite() || cpus <= 0.0) {
        return Err(Error::invalid("a limit must be a number above zero"));
    }
    Ok(())
}
