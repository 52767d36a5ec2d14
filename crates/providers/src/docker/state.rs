//! Converts the daemon's report of a container into a box.

use super::labels::{self, Labels, volume_name};
use bollard::models::{
    ContainerInspectResponse, ContainerState, ContainerStateStatusEnum as Status, HostConfig,
};
use jiff::Timestamp;
use seawall_api::{
    AccountId, SandboxId,
    sandbox::{Egress, EndReason, Limits, SandboxSpec},
};
use seawall_core::ports::{BoxInfo, BoxState};

const MIB: i64 = 1 << 20;

/// A container, and its box. None where the container is none of this provider's.
pub fn box_of(found: &ContainerInspectResponse) -> Option<BoxInfo> {
    let labels = labels_of(found)?;
    let id: SandboxId = labels.get(labels::SANDBOX)?.parse().ok()?;
    let spec: Option<SandboxSpec> = labels.get(labels::SPEC).and_then(|text| serde_json::from_str(text).ok());
    let state = found.state.clone().unwrap_or_default();
    let (box_state, reason) = match &spec {
        Some(_) => (state_of(&state), reason_of(&state)),
        None => (BoxState::Damaged, Some(EndReason::Failed("damaged".to_owned()))),
    };
    let spec = spec.unwrap_or_default();
    Some(BoxInfo {
        id,
        state: box_state,
        reason,
        created_at: found
            .created
            .as_ref()
            .and_then(|text| text.parse().ok())
            .unwrap_or(Timestamp::UNIX_EPOCH),
        pid: pid_of(&state),
        volume: volume_name(&spec.volume_of(id), labels.get(labels::INSTALLATION)?),
        limits: found.host_config.as_ref().map(|config| limits_of(config, &spec)).unwrap_or_default(),
        egress: egress_of(labels),
        spec,
    })
}

/// The account of a container.
pub fn account_of(found: &ContainerInspectResponse) -> AccountId {
    let account = labels_of(found).and_then(|labels| labels.get(labels::ACCOUNT)?.parse().ok());
    account.unwrap_or(AccountId::LOCAL)
}

/// The newest version of the wire's protocol that the guest of a container speaks. The first containers did not note it.
pub fn protocol_of(found: &ContainerInspectResponse) -> u16 {
    labels_of(found).and_then(|labels| labels.get(labels::PROTOCOL)?.parse().ok()).unwrap_or(1)
}

pub fn labels_of(found: &ContainerInspectResponse) -> Option<&Labels> {
    found.config.as_ref()?.labels.as_ref()
}

fn egress_of(labels: &Labels) -> Egress {
    let word = labels.get(labels::EGRESS).cloned().unwrap_or_default();
    serde_json::from_value(serde_json::Value::String(word)).unwrap_or_default()
}

/// The number of process 1 of a container that runs.
pub fn pid_of(state: &ContainerState) -> Option<u32> {
    state.pid.and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0)
}

fn state_of(state: &ContainerState) -> BoxState {
    match state.status {
        Some(Status::RUNNING | Status::RESTARTING | Status::STOPPING) => BoxState::Running,
        Some(Status::PAUSED) => BoxState::Paused,
        Some(Status::CREATED) | None => BoxState::Created,
        // A container whose start failed has exited without having started.
        _ if !was_started(state) => BoxState::Created,
        _ => BoxState::Stopped,
    }
}

/// Whether a container ever ran. The daemon reports a start in the year 1 for one that did not.
fn was_started(state: &ContainerState) -> bool {
    state.started_at.as_deref().is_some_and(|at| !at.starts_with("0001"))
}

/// Why a container ended that ran: what its guest reported by its exit code, or what ended the guest.
fn reason_of(state: &ContainerState) -> Option<EndReason> {
    if state_of(state) != BoxState::Stopped {
        return None;
    }
    let reason = EndReason::from_exit_code(state.exit_code.unwrap_or(-1));
    match (&reason, state.oom_killed) {
        (EndReason::Failed(_), Some(true)) => Some(EndReason::Failed("oom".to_owned())),
        _ => Some(reason),
    }
}

/// The limits in force, as the container was created with them.
fn limits_of(config: &HostConfig, spec: &SandboxSpec) -> Limits {
    let positive =
        |value: Option<i64>| value.and_then(|value| u64::try_from(value).ok()).filter(|value| *value > 0);
    Limits {
        cpus: positive(config.nano_cpus).map(|nanos| nanos as f64 / 1e9),
        memory_mb: positive(config.memory.map(|bytes| bytes / MIB)),
        max_processes: positive(config.pids_limit),
        disk_mb: spec.limits.disk_mb,
        ..Limits::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(status: Status, exit_code: i64, oom_killed: bool, started: &str) -> ContainerState {
        ContainerState {
            status: Some(status),
            exit_code: Some(exit_code),
            oom_killed: Some(oom_killed),
            started_at: Some(started.to_owned()),
            ..ContainerState::default()
        }
    }

    #[test]
    fn an_exit_code_tells_why_a_container_ended() {
        let ended = |code, oom| reason_of(&state(Status::EXITED, code, oom, "2026-11-19T00:00:00Z")).unwrap();
        assert_eq!(ended(0, false), EndReason::Stopped);
        // A command was killed for memory, and the box was stopped later.
        assert_eq!(ended(0, true), EndReason::Stopped);
        assert_eq!(ended(i64::from(EndReason::Idle.exit_code()), false), EndReason::Idle);
        assert_eq!(ended(i64::from(EndReason::MaxLifetime.exit_code()), false), EndReason::MaxLifetime);
        assert_eq!(ended(137, false), EndReason::Failed("guest_died".to_owned()));
        assert_eq!(ended(137, true), EndReason::Failed("oom".to_owned()));
    }

    #[test]
    fn a_container_whose_start_failed_was_never_started() {
        let failed = state(Status::EXITED, 127, false, "0001-01-01T00:00:00Z");
        assert_eq!((state_of(&failed), reason_of(&failed)), (BoxState::Created, None));
        assert_eq!(state_of(&state(Status::PAUSED, 0, false, "2026-11-19T00:00:00Z")), BoxState::Paused);
    }
}
