//! Finds the process of a sandbox that a reference means.

use anyhow::{Result, anyhow};
use seawall_api::exec::ProcessInfo;
use seawall_core::Error;

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
