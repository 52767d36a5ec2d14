//! The states of a sandbox: a pure function of what is recorded, what the substrate says and what is
//! asked for. No call in this file does anything.

use crate::ports::{BoxInfo, BoxState};
use seawall_api::sandbox::{EndReason, SandboxState};

/// What somebody asks of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    Start,
    Stop,
    Remove,
    /// Exec, terminals, files, tunnels.
    Use,
}

/// What to do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It is so already.
    Nothing,
    /// Tell the provider.
    Go,
    /// Its box is gone: make it anew, with its volume, then go.
    Remake,
    /// It cannot be done in this state; the text says what can.
    Refuse(&'static str),
}

/// What an ask means in a state.
pub fn answer(state: SandboxState, ask: Ask) -> Answer {
    use SandboxState as S;
    match (ask, state) {
        // Deleting works from every state.
        (Ask::Remove, _) => Answer::Go,
        (Ask::Start, S::Running) => Answer::Nothing,
        (Ask::Start, S::Created | S::Stopped | S::Paused) => Answer::Go,
        (Ask::Start, S::Lost | S::Failed) => Answer::Remake,
        (Ask::Start, S::Creating) => Answer::Refuse("it is still being made; try again in a moment"),
        (Ask::Start, S::Stopping) => Answer::Refuse("it is being stopped or removed; try again in a moment"),
        (Ask::Start, S::Terminated) => Answer::Refuse("it was ended for good; make a new one"),
        (Ask::Stop, S::Running | S::Paused | S::Stopping | S::Creating) => Answer::Go,
        (Ask::Stop, _) => Answer::Nothing,
        (Ask::Use, S::Running) => Answer::Nothing,
        (Ask::Use, S::Created | S::Stopped | S::Lost | S::Failed | S::Paused) => {
            Answer::Refuse("it does not run; start it with `seawall start`")
        }
        (Ask::Use, S::Creating | S::Stopping) => Answer::Refuse("it is not ready; try again in a moment"),
        (Ask::Use, S::Terminated) => Answer::Refuse("it was ended for good; make a new one"),
    }
}

/// The state that users see: the substrate's truth, read in the light of what was decided here.
pub fn reconcile(
    recorded: SandboxState,
    reason: Option<&EndReason>,
    found: Option<&BoxInfo>,
) -> (SandboxState, Option<EndReason>) {
    use SandboxState as S;
    let Some(found) = found else {
        return match recorded {
            S::Creating | S::Stopping | S::Terminated | S::Failed => (recorded, reason.cloned()),
            _ => (S::Lost, Some(EndReason::Lost)),
        };
    };
    match (found.state, recorded) {
        // Somebody is at it, and will say when it is done.
        (_, S::Stopping) => (S::Stopping, None),
        (BoxState::Running, _) => (S::Running, None),
        (BoxState::Paused, _) => (S::Paused, None),
        (BoxState::Created, S::Creating | S::Created) => (S::Created, None),
        // A box that was made again. Its volume can have work of the box before.
        (BoxState::Created, _) => (S::Stopped, reason.cloned().or(Some(EndReason::Stopped))),
        (BoxState::Damaged, _) => (S::Failed, found.reason.clone()),
        (BoxState::Stopped, _) => {
            // A provider knows that it was stopped; why, whoever did it knows better.
            let known = reason.filter(|reason| {
                recorded == S::Stopped && matches!(reason, EndReason::Idle | EndReason::MaxLifetime)
            });
            let told = found.reason.clone().filter(|told| known.is_none() || *told != EndReason::Stopped);
            (S::Stopped, told.or_else(|| reason.cloned()).or(Some(EndReason::Stopped)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;
    use proptest::prelude::*;
    use seawall_api::{
        SandboxId,
        sandbox::{Egress, Limits, SandboxSpec},
    };

    fn found(state: BoxState) -> BoxInfo {
        BoxInfo {
            id: SandboxId::generate(),
            state,
            reason: None,
            spec: SandboxSpec::default(),
            created_at: Timestamp::UNIX_EPOCH,
            pid: None,
            volume: String::new(),
            limits: Limits::default(),
            egress: Egress::None,
        }
    }

    #[test]
    fn removing_works_from_every_state() {
        for state in SandboxState::ALL {
            assert_eq!(answer(state, Ask::Remove), Answer::Go);
        }
    }

    #[test]
    fn every_refusal_says_what_to_do() {
        for state in SandboxState::ALL {
            for ask in [Ask::Start, Ask::Stop, Ask::Use] {
                if let Answer::Refuse(text) = answer(state, ask) {
                    assert!(text.contains(';'), "{state} {ask:?}: {text}");
                }
            }
        }
    }

    #[test]
    fn only_what_runs_can_be_used() {
        for state in SandboxState::ALL {
            let usable = answer(state, Ask::Use) == Answer::Nothing;
            assert_eq!(usable, state == SandboxState::Running);
        }
    }

    #[test]
    fn a_box_that_vanished_is_lost_and_can_be_made_again() {
        let (state, reason) = reconcile(SandboxState::Running, None, None);
        assert_eq!((state, reason), (SandboxState::Lost, Some(EndReason::Lost)));
        assert_eq!(answer(state, Ask::Start), Answer::Remake);
    }

    #[test]
    fn what_is_damaged_has_failed_with_its_reason_until_it_is_removed() {
        let reason = Some(EndReason::Failed("damaged".to_owned()));
        let found = BoxInfo { reason: reason.clone(), ..found(BoxState::Damaged) };
        for recorded in [SandboxState::Running, SandboxState::Stopped, SandboxState::Created] {
            assert_eq!(reconcile(recorded, None, Some(&found)), (SandboxState::Failed, reason.clone()));
        }
        assert_eq!(reconcile(SandboxState::Stopping, None, Some(&found)).0, SandboxState::Stopping);
    }

    proptest! {
        #[test]
        fn the_substrate_decides(recorded in 0usize..9, state in 0usize..4) {
            let recorded = SandboxState::ALL[recorded];
            let state =
                [BoxState::Created, BoxState::Running, BoxState::Paused, BoxState::Stopped][state];
            let (seen, reason) = reconcile(recorded, None, Some(&found(state)));
            if recorded != SandboxState::Stopping {
                prop_assert_eq!(seen.as_str(), match state {
                    BoxState::Created if matches!(recorded, SandboxState::Creating | SandboxState::Created) => "created",
                    // The box was made again, and its volume can have work of the one before.
                    BoxState::Created => "stopped",
                    BoxState::Running => "running",
                    BoxState::Paused => "paused",
                    BoxState::Stopped => "stopped",
                    BoxState::Damaged => "failed",
                });
            }
            // What does not run and did has a reason, always.
            prop_assert_eq!(reason.is_some(), seen == SandboxState::Stopped);
        }
    }
}
