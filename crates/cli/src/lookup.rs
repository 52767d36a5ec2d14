//! From what a user wrote to the sandbox or the process that was meant.

use crate::{app::App, config::Settings};
use anyhow::{Result, anyhow};
use async_trait::async_trait;
use seawall_api::{ErrorKind, exec::ProcessInfo, sandbox::SandboxInfo};
use seawall_core::Error;
use seawall_wire::Guest;

/// Where sandboxes are: in the data folder of this machine, or behind a server.
#[async_trait(?Send)]
pub trait Place {
    /// Programs read the output.
    fn json(&self) -> bool;

    fn settings(&self) -> &Settings;

    /// See [`guest`].
    async fn guest(&self, reference: &str) -> Result<(SandboxInfo, Guest)>;
}

#[async_trait(?Send)]
impl Place for App {
    fn json(&self) -> bool {
        self.json
    }

    fn settings(&self) -> &Settings {
        &self.settings
    }

    async fn guest(&self, reference: &str) -> Result<(SandboxInfo, Guest)> {
        local_guest(self, reference).await
    }
}

/// By id, unique beginning of an id, or name.
pub async fn sandbox(app: &App, reference: &str) -> Result<SandboxInfo> {
    app.sandboxes.find(reference).await.map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            let message = format!("there is no sandbox `{reference}`: `seawall ls` shows those there are");
            Error::not_found(message).into()
        }
        _ => error.into(),
    })
}

/// The guest of a sandbox that runs. A server starts one that does not.
pub async fn guest(place: &dyn Place, reference: &str) -> Result<(SandboxInfo, Guest)> {
    place.guest(reference).await
}

async fn local_guest(app: &App, reference: &str) -> Result<(SandboxInfo, Guest)> {
    let info = sandbox(app, reference).await?;
    let guest = app.sandboxes.guest(info.id).await.map_err(|error| match error.kind() {
        ErrorKind::Stopped => {
            let message =
                format!("sandbox `{reference}` does not run: start it with `seawall start {}`", info.id);
            anyhow::Error::from(Error::new(ErrorKind::Stopped, message))
        }
        _ => error.into(),
    })?;
    Ok((info, guest))
}

/// By id, tag, pid or unique beginning of an id; the latest one where none is named.
pub fn process<'a>(processes: &'a [ProcessInfo], reference: Option<&str>) -> Result<&'a ProcessInfo> {
    let latest = |found: &mut dyn Iterator<Item = &'a ProcessInfo>| {
        found.max_by_key(|process| (process.started_at_ms, process.process))
    };
    let Some(reference) = reference else {
        return latest(&mut processes.iter()).ok_or_else(|| anyhow!("no process was started in it yet"));
    };
    let id = |process: &&ProcessInfo| process.process.to_string() == reference;
    let tag = |process: &&ProcessInfo| process.tag.as_deref() == Some(reference);
    let pid = |process: &&ProcessInfo| process.pid.to_string() == reference;
    let exact = processes.iter().find(id).or_else(|| latest(&mut processes.iter().filter(tag)));
    if let Some(found) = exact.or_else(|| latest(&mut processes.iter().filter(pid))) {
        return Ok(found);
    }
    let begins =
        |process: &&ProcessInfo| !reference.is_empty() && process.process.to_string().starts_with(reference);
    match processes.iter().filter(begins).collect::<Vec<_>>()[..] {
        [found] => Ok(found),
        [] => Err(anyhow::Error::from(Error::not_found(format!(
            "there is no process `{reference}` in it: `seawall logs ID --processes` shows those there are"
        )))),
        _ => Err(anyhow!("several processes begin with `{reference}`: write more of the id")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(id: &str, pid: u32, tag: Option<&str>, started_at_ms: u64) -> ProcessInfo {
        ProcessInfo {
            process: id.parse().unwrap(),
            pid,
            args: vec![],
            tag: tag.map(str::to_owned),
            tty: false,
            started_at_ms,
            output_start: 0,
            output_end: 0,
            exit: None,
        }
    }

    #[test]
    fn processes_are_found_by_all_their_names() {
        let a = "0190a5d0-7c1e-7b3a-9f00-000000000001";
        let b = "0190a5d0-7c1e-7b3a-9f00-100000000002";
        let all = [info(a, 7, Some("build"), 5), info(b, 8, None, 4)];
        let pid = |reference| process(&all, reference).map(|found| found.pid).ok();
        assert_eq!(pid(None), Some(7));
        assert_eq!(pid(Some(b)), Some(8));
        assert_eq!(pid(Some("build")), Some(7));
        assert_eq!(pid(Some("8")), Some(8));
        assert_eq!(pid(Some("0190a5d0-7c1e-7b3a-9f00-1")), Some(8));
        assert_eq!(pid(Some("0190")), None);
        assert_eq!(pid(Some("")), None);
        assert!(process(&[], None).is_err());
    }
}
