//! What one turn may take: memory for its answer as it grows and for the line that its agent is at, and bytes of events in
//! the store.

use super::{Turns, answer::Answer};
use crate::{
    Result,
    accounts::Admission,
    budget::{Budget, Reservation},
};
use seawall_api::{AccountId, event::Event};
use serde_json::Value;

/// Bytes of events that a turn may store. What its agent says beyond them is left out; how it ends is stored in any case.
const MOST_STORED: u64 = 64 << 20;
/// Bytes of inputs and outputs of tools that an answer keeps.
const MOST_TOOLS: u64 = 8 << 20;
/// What the server keeps of a turn besides its prompt and its answer.
const BASE: u64 = 32 << 10;
/// What a turn has without asking.
const FREE: u64 = 256 << 10;
const CUT: &str = "\n[the rest of the answer is in the turn's events]";
const LEFT_OUT: &str = "[left out: it is in the turn's events]";
const FULL: &str = "the turn has said all that can be stored; what follows is left out";

/// The room of one turn.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// None where nothing is counted: commands of the operator.
    memory: Option<Reservation>,
    /// What it has from its first moment to its end: its prompt.
    _base: Option<Reservation>,
    /// Its sandbox's place among those that its account may have. The sandbox itself has it once it runs.
    pub admitted: Option<Admission>,
    /// What the answer takes, and what the parser holds.
    answer: u64,
    line: u64,
    tools: u64,
    stored: u64,
    is_cut: bool,
    is_full: bool,
}

impl Turns {
    /// Counts what turns, and requests of their agents at the gateway, hold in memory among bodies in flight. The first
    /// budget counts.
    pub fn count_in(&self, budget: &Budget) {
        let _ = self.inner.budget.set(budget.clone());
        if let Some(gateway) = &self.inner.gateway {
            gateway.count_in(budget);
        }
    }

    pub(super) fn room(&self, account: AccountId) -> Room {
        let memory = self.inner.budget.get().map(|budget| budget.open(Some(account)));
        Room { memory, ..Room::default() }
    }

    /// The room of a turn that is about to begin. An error where its account or the server has none.
    pub(super) async fn new_room(
        &self,
        account: AccountId,
        prompt: &str,
        admitted: Admission,
    ) -> Result<Room> {
        let base = match self.inner.budget.get() {
            Some(budget) => Some(budget.reserve(Some(account), BASE + prompt.len() as u64).await?),
            None => None,
        };
        Ok(Room { _base: base, admitted: Some(admitted), ..self.room(account) })
    }
}

impl Room {
    /// Whether there are bytes for all that the turn holds.
    fn has(&mut self, bytes: u64) -> bool {
        let Some(memory) = &mut self.memory else { return true };
        let needed = bytes.saturating_sub(FREE);
        memory.shrink_to(needed);
        memory.try_grow(needed - memory.bytes())
    }

    /// Applies an event to the answer, as far as there is room for what it says.
    pub fn fold(&mut self, answer: &mut Answer, event: &Event) {
        match event {
            Event::Text { text, stderr } => {
                if self.is_cut || !self.has(self.answer + self.line + text.len() as u64) {
                    if !std::mem::replace(&mut self.is_cut, true) {
                        answer.apply(&Event::Text { text: CUT.to_owned(), stderr: *stderr });
                    }
                    return;
                }
                self.answer += text.len() as u64;
                answer.apply(event);
            }
            Event::ToolCall { id, name, input } => match self.keeps(input) {
                true => answer.apply(event),
                false => {
                    answer.apply(&Event::ToolCall { id: id.clone(), name: name.clone(), input: left_out() })
                }
            },
            Event::ToolResult { id, output, is_error } => match self.keeps(output) {
                true => answer.apply(event),
                false => {
                    let (id, is_error) = (id.clone(), *is_error);
                    answer.apply(&Event::ToolResult { id, output: left_out(), is_error });
                }
            },
            other => answer.apply(other),
        }
    }

    fn keeps(&mut self, value: &Value) -> bool {
        let size = serde_json::to_string(value).map_or(0, |text| text.len() as u64);
        let keeps = self.tools + size <= MOST_TOOLS && self.has(self.answer + self.line + size);
        if keeps {
            self.tools += size;
            self.answer += size;
        }
        keeps
    }

    /// Whether there is room for what a parser holds of a line that has not ended.
    pub fn holds(&mut self, line: usize) -> bool {
        self.line = line as u64;
        let fits = self.has(self.answer + self.line);
        if !fits {
            self.line = 0;
        }
        fits
    }

    /// Notes events that are in the store already.
    pub fn found(&mut self, bytes: usize) {
        self.stored += bytes as u64;
    }

    /// Whether an event of so many bytes may be stored. The first that may not is replaced by a notice.
    pub fn stores(&mut self, event: &Event, bytes: usize) -> Stores {
        let is_said = matches!(
            event,
            Event::Text { .. }
                | Event::OutputPart { .. }
                | Event::ToolCall { .. }
                | Event::ToolResult { .. }
                | Event::Notice { .. }
        );
        if !is_said || self.stored + bytes as u64 <= MOST_STORED {
            self.stored += bytes as u64;
            return Stores::It;
        }
        match std::mem::replace(&mut self.is_full, true) {
            false => Stores::Instead(Event::Notice { text: FULL.to_owned() }),
            true => Stores::Nothing,
        }
    }
}

/// What is stored of an event.
#[derive(Debug, PartialEq)]
pub(super) enum Stores {
    It,
    Instead(Event),
    Nothing,
}

fn left_out() -> Value {
    Value::String(LEFT_OUT.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::BudgetLimits;
    use serde_json::json;

    fn said(bytes: usize) -> Event {
        Event::Text { text: "x".repeat(bytes), stderr: false }
    }

    fn room(bytes: u64) -> (Budget, Room) {
        let budget = Budget::new(BudgetLimits { server: bytes, account: bytes });
        let memory = Some(budget.open(None));
        (budget, Room { memory, ..Room::default() })
    }

    #[test]
    fn k5_an_answer_is_cut_where_the_account_has_no_memory_for_it() {
        let (budget, mut room) = room(1 << 20);
        let mut answer = Answer::default();
        for _ in 0..100 {
            room.fold(&mut answer, &said(100_000));
        }
        assert!(answer.body.len() <= (1 << 20) + FREE as usize + CUT.len(), "{}", answer.body.len());
        assert!(answer.body.ends_with(CUT) && answer.body.matches("[the rest").count() == 1);
        assert!(budget.free() < 100_000);
        let large = json!("y".repeat(200_000));
        room.fold(&mut answer, &Event::ToolCall { id: "1".into(), name: "n".into(), input: large });
        assert_eq!(answer.tool_calls[0].input, left_out());
        drop(room);
        assert_eq!(budget.free(), 1 << 20);
    }

    #[test]
    fn k5_a_line_without_end_is_not_held_beyond_the_memory() {
        let (budget, mut room) = room(1 << 20);
        assert!(room.holds(1 << 20) && room.holds(FREE as usize));
        assert_eq!(budget.free(), 1 << 20, "what ended is given back");
        assert!(!room.holds(2 << 20));
        assert_eq!(budget.free(), 1 << 20);
    }

    #[test]
    fn k5_events_of_a_turn_have_a_bound_and_its_end_is_stored() {
        let mut room = Room::default();
        room.found(MOST_STORED as usize - 10);
        assert_eq!(room.stores(&said(1), 10), Stores::It);
        assert_eq!(room.stores(&said(1), 10), Stores::Instead(Event::Notice { text: FULL.to_owned() }));
        assert_eq!(room.stores(&said(1), 10), Stores::Nothing);
        let end = Event::AgentEnded {
            state: seawall_api::conversation::TurnState::Completed,
            error: None,
            exit_code: Some(0),
        };
        assert_eq!(room.stores(&end, 1000), Stores::It);
    }
}
