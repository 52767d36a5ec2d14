use super::{
    kit::{Cx, USAGE, at, begin, end, ensure_kind, message, now},
    suite::cases,
};
use anyhow::{Result, ensure};
use bytes::Bytes;
use futures::future::join_all;
use seawall_api::{
    ErrorKind, SandboxId, TurnId,
    conversation::{Message, Role, Stats, Turn, TurnState, Usage},
};
use seawall_core::ports::store::{
    BeginTurn, Direction, EndTurn, Fence, NewLease, Page, RunningTurn, just_after,
};
use std::time::Duration;

cases!("turns";
    a_turn_comes_back_as_it_was;
    c8_one_turn_at_a_time_per_conversation;
    c8_one_turn_at_a_time_per_sandbox;
    c8_of_many_at_once_one_begins;
    m2_the_prompt_is_stored_when_the_turn_begins;
    m2_the_answer_grows_and_ends;
    m3_usage_is_counted_once_however_often_it_is_told;
    m3_turns_that_end_at_the_same_time_are_all_counted;
    m3_messages_are_counted_once;
    m3_a_turn_without_an_answer_counts_its_usage;
    m3_what_an_agent_claims_cannot_break_the_totals;
    a_stranger_who_names_our_sandbox_stands_in_nobodys_way;
    m4_the_end_returns_the_totals;
    h6_a_wish_for_the_end_is_kept_while_the_turn_runs;
    h6_what_has_ended_cannot_be_wished_to_end;
    numbers_go_on;
    a_turn_begins_with_its_first_event_and_its_lease;
    beginning_twice_is_beginning_once;
    events_are_replayed_from_any_number;
    events_may_be_told_twice_and_leave_no_gap;
    nothing_is_added_after_the_end;
    turns_that_run_are_found;
    the_turn_of_a_sandbox_is_found;
    the_boot_that_began_a_turn_is_known;
    m1_messages_keep_their_order_when_the_clock_steps_back;
    a_write_needs_the_lease;
    bad_turns_are_refused;
);

async fn a_turn_comes_back_as_it_was(cx: Cx) -> Result<()> {
    let id = cx.conversation().await?;
    let new =
        BeginTurn { sandbox_id: Some(SandboxId::generate()), template: Some("shell".into()), ..begin(id) };
    let made = cx.stores.turns.begin(cx.account, None, &new).await?;
    ensure!(cx.stores.turns.get(cx.account, new.id).await? == made);
    ensure!((made.id, made.conversation_id, made.number) == (new.id, id, 1));
    ensure!((made.sandbox_id, &made.template) == (new.sandbox_id, &new.template));
    ensure!((made.prompt_id, made.answer_id) == (new.prompt.id, new.answer_id));
    ensure!((made.state, made.created_at, made.ended_at) == (TurnState::Running, new.created_at, None));
    let failed = EndTurn { state: TurnState::Failed, error: Some("it broke".into()), ..end(&made) };
    cx.stores.turns.end(cx.account, None, &failed).await?;
    let found = cx.stores.turns.get(cx.account, new.id).await?;
    ensure!((found.state, found.error.as_deref()) == (TurnState::Failed, Some("it broke")));
    ensure!((found.usage, found.ended_at) == (Some(USAGE), Some(failed.ended_at)));
    ensure_kind(cx.stores.turns.get(cx.account, TurnId::generate()).await, ErrorKind::NotFound)
}

async fn c8_one_turn_at_a_time_per_conversation(cx: Cx) -> Result<()> {
    let id = cx.conversation().await?;
    let first = cx.turn(id).await?;
    ensure_kind(cx.stores.turns.begin(cx.account, None, &begin(id)).await, ErrorKind::Conflict)?;
    ensure!(cx.stores.conversations.get(cx.account, id).await?.stats.messages_exchanged == 1);
    cx.stores.turns.end(cx.account, None, &end(&first)).await?;
    ensure!(cx.turn(id).await?.number == 2);
    Ok(())
}

async fn c8_one_turn_at_a_time_per_sandbox(cx: Cx) -> Result<()> {
    let (one, two) = (cx.conversation().await?, cx.conversation().await?);
    let sandbox_id = Some(SandboxId::generate());
    let first = cx.stores.turns.begin(cx.account, None, &BeginTurn { sandbox_id, ..begin(one) }).await?;
    let second = BeginTurn { sandbox_id, ..begin(two) };
    ensure_kind(cx.stores.turns.begin(cx.account, None, &second).await, ErrorKind::Conflict)?;
    cx.stores.turns.end(cx.account, None, &end(&first)).await?;
    cx.stores.turns.begin(cx.account, None, &second).await?;
    Ok(())
}

async fn c8_of_many_at_once_one_begins(cx: Cx) -> Result<()> {
    let id = cx.conversation().await?;
    let tries = (0..16).map(|_| async { cx.stores.turns.begin(cx.account, None, &begin(id)).await });
    let done = join_all(tries).await;
    ensure!(done.iter().filter(|tried| tried.is_ok()).count() == 1);
    ensure!(
        done.iter().flat_map(|tried| tried.as_ref().err()).all(|error| error.kind() == ErrorKind::Conflict)
    );
    ensure!(cx.stores.conversations.get(cx.account, id).await?.stats.messages_exchanged == 1);
    Ok(())
}

async fn m2_the_prompt_is_stored_when_the_turn_begins(cx: Cx) -> Result<()> {
    let id = cx.conversation().await?;
    let new = begin(id);
    cx.stores.turns.begin(cx.account, None, &new).await?;
    ensure!(cx.stores.messages.get(cx.account, id, new.prompt.id).await? == new.prompt);
    Ok(())
}

async fn m2_the_answer_grows_and_ends(cx: Cx) -> Result<()> {
    let id = cx.conversation().await?;
    let turn = cx.turn(id).await?;
    let answer = message(id, Some(turn.id), Role::Assistant, "4");
    let answer = Message { id: turn.answer_id, revision: 1, ..answer };
    cx.stores.turns.save_answer(cx.account, None, &answer).await?;
    ensure!(cx.stores.messages.get(cx.account, id, turn.answer_id).await?.body == "4");
    let whole = Message { body: "42".into(), revision: 2, ..answer.clone() };
    let ended = EndTurn { answer: Some(whole.clone()), ..end(&turn) };
    cx.stores.turns.end(cx.account, None, &ended).await?;
    ensure!(cx.stores.messages.get(cx.account, id, turn.answer_id).await? == whole);
    ensure_kind(cx.stores.turns.save_answer(cx.account, None, &answer).await, ErrorKind::Conflict)?;
    let all = cx.stores.messages.list(cx.account, id, Direction::OldestFirst, &Page::first(9)).await?;
    ensure!(all.items.len() == 2, "a prompt and an answer");
    Ok(())
}

async fn m3_usage_is_counted_once_however_often_it_is_told(cx: Cx) -> Result<()> {
    let id = cx.conversation().await?;
    let turn = cx.turn(id).await?;
    let ended = end(&turn);
    let tries = (0..8).map(|_| cx.stores.turns.end(cx.account, None, &ended));
    for done in join_all(tries).await {
        done?;
    }
    let other = EndTurn { usage: Usage { input_tokens: 9999, ..USAGE }, state: TurnState::Failed, ..ended };
    let found = cx.stores.turns.end(cx.account, None, &other).await?;
    ensure!(found.stats == totals(1), "{:?}", found.stats);
    ensure!(cx.stores.turns.get(cx.account, turn.id).await?.state == TurnState::Completed);
    Ok(())
}

async fn a_turn_begins_with_its_first_event_and_its_lease(cx: Cx) -> Result<()> {
    let (turns, leases) = (&cx.stores.turns, &cx.stores.leases);
    let (id, time) = (cx.conversation().await?, Duration::from_secs(30));
    let mut new = begin(id);
    let name = format!("turn {}", new.id);
    new.first_event = Some("first".into());
    new.lease = Some(NewLease { name: name.clone(), holder: "me".to_owned(), time });
    // A reply that was lost is asked for again.
    for _ in 0..2 {
        let made = turns.begin(cx.account, None, &new).await?;
        ensure!(made.events == 1 && turns.get(cx.account, new.id).await? == made, "{made:?}");
    }
    ensure!(
        turns.events(cx.account, new.id, 0, 9).await?.iter().map(|event| &event.data[..]).eq([&b"first"[..]])
    );
    ensure!(leases.acquire(&name, "another", time).await?.is_none());
    let fence = Fence { name: name.clone(), epoch: 1 };
    turns.append_events(cx.account, Some(&fence), new.id, 1, &["second".into()], 0).await?;
    ensure!(leases.acquire(&name, "me", time).await?.is_some_and(|lease| lease.epoch == 1));
    // What is refused leaves nothing behind.
    let mut refused = begin(id);
    let name = format!("turn {}", refused.id);
    refused.lease = Some(NewLease { name: name.clone(), holder: "me".to_owned(), time });
    ensure_kind(turns.begin(cx.account, None, &refused).await, ErrorKind::Conflict)?;
    ensure!(leases.acquire(&name, "another", time).await?.is_some_and(|lease| lease.epoch == 1));
    Ok(())
}

pub fn totals(turns: u64) -> Stats {
    Stats {
        messages_exchanged: 2 * turns,
        total_input_tokens: turns * USAGE.input_tokens,
        total_output_tokens: turns * USAGE.output_tokens,
        total_cache_tokens: turns * USAGE.cache_tokens,
    }
}

async fn m3_turns_that_end_at_the_same_time_are_all_counted(cx: Cx) -> Result<()> {
    let conversations = [cx.conversation().await?, cx.conversation().await?, cx.conversation().await?];
    let work = conversations.map(|id| {
        let cx = cx.clone();
        async move {
            for _ in 0..10 {
                let turn = cx.turn(id).await?;
                let ended = end(&turn);
                // Twice at the same time.
                let (one, two) = futures::join!(
                    cx.stores.turns.end(cx.account, None, &ended),
                    cx.stores.turns.end(cx.account, None, &ended)
                );
                one.and(two)?;
            }
            anyhow::Ok(())
        }
    });
    for done in join_all(work).await {
        done?;
    }
    for id in conversations {
        let found = cx.stores.conversations.get(cx.account, id).await?.stats;
        ensure!(found == totals(10), "{found:?}");
    }
    Ok(())
}

async fn m3_messages_are_counted_once(cx: Cx) -> Result<()> {
    let id = cx.conversation().await?;
    let new = begin(id);
    for _ in 0..3 {
        cx.stores.turns.begin(cx.account, None, &new).await?;
    }
    ensure!(cx.stores.conversations.get(cx.account, id).await?.stats.messages_exchanged == 1);
    Ok(())
}

async fn m3_a_turn_without_an_answer_counts_its_usage(cx: Cx) -> Result<()> {
    let id = cx.conversation().await?;
    let turn = cx.turn(id).await?;
    let ended = EndTurn { answer: None, state: TurnState::Interrupted, ..end(&turn) };
    let found = cx.stores.turns.end(cx.account, None, &ended).await?;
    ensure!(found.stats == Stats { messages_exchanged: 1, ..totals(1) });
    Ok(())
}

async fn m3_what_an_agent_claims_cannot_break_the_totals(cx: Cx) -> Result<()> {
    let id = cx.conversation().await?;
    let claim = Usage { input_tokens: u64::MAX, output_tokens: u64::MAX, cache_tokens: 1 };
    for number in 1..=3 {
        let turn = cx.turn(id).await?;
        let error = Some("it printed a \0 zero".to_owned());
        let found =
            cx.stores.turns.end(cx.account, None, &EndTurn { usage: claim, error, ..end(&turn) }).await?;
        ensure!(found.stats.total_input_tokens == number * Usage::MOST);
        ensure!(found.stats.total_cache_tokens == number);
    }
    ensure!(cx.stores.conversations.get(cx.account, id).await?.stats.total_output_tokens == 3 * Usage::MOST);
    Ok(())
}

async fn a_stranger_who_names_our_sandbox_stands_in_nobodys_way(cx: Cx) -> Result<()> {
    let sandbox_id = Some(SandboxId::generate());
    let theirs = super::kit::conversation();
    cx.stores.conversations.ensure(cx.stranger, &theirs).await?;
    cx.stores.turns.begin(cx.stranger, None, &BeginTurn { sandbox_id, ..begin(theirs.id) }).await?;
    let ours = cx.conversation().await?;
    cx.stores.turns.begin(cx.account, None, &BeginTurn { sandbox_id, ..begin(ours) }).await?;
    Ok(())
}

async fn m4_the_end_returns_the_totals(cx: Cx) -> Result<()> {
    let id = cx.conversation().await?;
    for number in 1..=3 {
        let turn = cx.turn(id).await?;
        let found = cx.stores.turns.end(cx.account, None, &end(&turn)).await?;
        ensure!((found.id, found.stats) == (id, totals(number)));
        ensure!(found == cx.stores.conversations.get(cx.account, id).await?);
    }
    Ok(())
}

async fn h6_a_wish_for_the_end_is_kept_while_the_turn_runs(cx: Cx) -> Result<()> {
    let (id, other) = (cx.conversation().await?, cx.conversation().await?);
    let (turn, beside) = (cx.turn(id).await?, cx.turn(other).await?);
    ensure!(!turn.cancelling && !beside.cancelling);
    for second in [1, 2] {
        ensure!(cx.stores.turns.request_cancel(cx.account, turn.id, at(second)).await?);
    }
    let wished = Turn { cancelling: true, ..turn };
    ensure!(cx.stores.turns.get(cx.account, wished.id).await? == wished);
    ensure!(
        cx.stores.turns.list(cx.account, id, &Page::first(9)).await?.items == std::slice::from_ref(&wished)
    );
    // Of others nothing is wished.
    ensure!(cx.stores.turns.get(cx.account, beside.id).await? == beside);
    // It runs on until its runner hears of it.
    cx.stores.turns.append_events(cx.account, None, wished.id, 0, &events(0, 1), 1).await?;
    ensure_kind(cx.stores.turns.begin(cx.account, None, &begin(id)).await, ErrorKind::Conflict)?;
    let ended = EndTurn { state: TurnState::Cancelled, ..end(&wished) };
    ensure!(cx.stores.turns.end(cx.account, None, &ended).await?.stats == totals(1));
    ensure!(cx.stores.turns.get(cx.account, wished.id).await?.state == TurnState::Cancelled);
    // The next is another.
    ensure!(!cx.turn(id).await?.cancelling);
    Ok(())
}

async fn h6_what_has_ended_cannot_be_wished_to_end(cx: Cx) -> Result<()> {
    let id = cx.conversation().await?;
    let turn = cx.turn(id).await?;
    let wish = async |account, turn| cx.stores.turns.request_cancel(account, turn, now()).await;
    ensure_kind(wish(cx.stranger, turn.id).await, ErrorKind::NotFound)?;
    ensure_kind(wish(cx.account, TurnId::generate()).await, ErrorKind::NotFound)?;
    ensure!(!cx.stores.turns.get(cx.account, turn.id).await?.cancelling, "a stranger's wish is none");
    cx.stores.turns.end(cx.account, None, &end(&turn)).await?;
    for _ in 0..2 {
        ensure!(!wish(cx.account, turn.id).await?);
    }
    ensure_kind(wish(cx.stranger, turn.id).await, ErrorKind::NotFound)?;
    let found = cx.stores.turns.get(cx.account, turn.id).await?;
    ensure!((found.state, found.cancelling) == (TurnState::Completed, false));
    Ok(())
}

async fn numbers_go_on(cx: Cx) -> Result<()> {
    let id = cx.conversation().await?;
    for _ in 0..5 {
        let turn = cx.turn(id).await?;
        cx.stores.turns.end(cx.account, None, &end(&turn)).await?;
    }
    let first = cx.stores.turns.list(cx.account, id, &Page::first(2)).await?;
    let numbers =
        |turns: &[seawall_api::conversation::Turn]| turns.iter().map(|t| t.number).collect::<Vec<_>>();
    ensure!(numbers(&first.items) == [5, 4]);
    let rest = cx.stores.turns.list(cx.account, id, &Page::first(5).after(first.next.unwrap())).await?;
    ensure!(numbers(&rest.items) == [3, 2, 1] && rest.next.is_none());
    ensure!(cx.stores.turns.list(cx.stranger, id, &Page::first(5)).await?.items.is_empty());
    Ok(())
}

async fn beginning_twice_is_beginning_once(cx: Cx) -> Result<()> {
    let (id, other) = (cx.conversation().await?, cx.conversation().await?);
    let new = begin(id);
    let first = cx.stores.turns.begin(cx.account, None, &new).await?;
    ensure!(cx.stores.turns.begin(cx.account, None, &new).await? == first);
    let mut elsewhere = begin(other);
    (elsewhere.id, elsewhere.prompt.turn_id) = (new.id, Some(new.id));
    ensure_kind(cx.stores.turns.begin(cx.account, None, &elsewhere).await, ErrorKind::Conflict)
}

fn events(from: usize, to: usize) -> Vec<Bytes> {
    (from..to).map(|number| Bytes::from(format!("event {number} \u{0}\u{ff}"))).collect()
}

async fn events_are_replayed_from_any_number(cx: Cx) -> Result<()> {
    let id = cx.conversation().await?;
    let turn = cx.turn(id).await?;
    cx.stores.turns.append_events(cx.account, None, turn.id, 0, &events(0, 10), 100).await?;
    cx.stores.turns.append_events(cx.account, None, turn.id, 10, &events(10, 25), 300).await?;
    let found = cx.stores.turns.get(cx.account, turn.id).await?;
    ensure!((found.events, found.output_offset) == (25, 300));
    for (from, limit, to) in [(0, 100, 25), (7, 5, 12), (24, 9, 25), (25, 9, 25)] {
        let part = cx.stores.turns.events(cx.account, turn.id, from, limit).await?;
        let data: Vec<_> = part.iter().map(|event| event.data.clone()).collect();
        ensure!(data == events(from as usize, to));
        ensure!(part.iter().map(|event| event.number).eq(from..to as u64));
    }
    ensure_kind(cx.stores.turns.events(cx.account, TurnId::generate(), 0, 9).await, ErrorKind::NotFound)
}

async fn events_may_be_told_twice_and_leave_no_gap(cx: Cx) -> Result<()> {
    let id = cx.conversation().await?;
    let turn = cx.turn(id).await?;
    let append = async |first: usize, to: usize| {
        let offset = to as u64;
        cx.stores
            .turns
            .append_events(cx.account, None, turn.id, first as u64, &events(first, to), offset)
            .await
    };
    append(0, 4).await?;
    append(0, 4).await?;
    append(2, 6).await?;
    ensure_kind(append(7, 8).await, ErrorKind::Conflict)?;
    let all = cx.stores.turns.events(cx.account, turn.id, 0, 100).await?;
    ensure!(all.into_iter().map(|event| event.data).eq(events(0, 6)));
    Ok(())
}

async fn nothing_is_added_after_the_end(cx: Cx) -> Result<()> {
    let id = cx.conversation().await?;
    let turn = cx.turn(id).await?;
    cx.stores.turns.append_events(cx.account, None, turn.id, 0, &events(0, 2), 1).await?;
    cx.stores.turns.end(cx.account, None, &end(&turn)).await?;
    // What was told before may be told again.
    cx.stores.turns.append_events(cx.account, None, turn.id, 0, &events(0, 2), 1).await?;
    let more = cx.stores.turns.append_events(cx.account, None, turn.id, 2, &events(2, 3), 1).await;
    ensure_kind(more, ErrorKind::Conflict)
}

async fn turns_that_run_are_found(cx: Cx) -> Result<()> {
    let (one, two) = (cx.conversation().await?, cx.conversation().await?);
    let [first, second] = [cx.turn(one).await?, cx.turn(two).await?];
    let row = |turn: &Turn| RunningTurn {
        id: turn.id,
        account_id: cx.account,
        sandbox_id: turn.sandbox_id,
        created_at: turn.created_at,
    };
    let page = cx.stores.turns.running(&Page::first(1)).await?;
    ensure!(page.items == [row(&first)]);
    let rest = cx.stores.turns.running(&Page::first(1).after(page.next.unwrap())).await?;
    ensure!(rest.items == [row(&second)] && rest.next.is_none());
    cx.stores.turns.end(cx.account, None, &end(&first)).await?;
    ensure!(cx.stores.turns.running(&Page::first(10)).await?.items == [row(&second)]);
    Ok(())
}

async fn the_turn_of_a_sandbox_is_found(cx: Cx) -> Result<()> {
    let (sandbox, id) = (SandboxId::generate(), cx.conversation().await?);
    let running = async |account| cx.stores.turns.running_in(account, sandbox).await;
    ensure!(running(cx.account).await?.is_none());
    let new = BeginTurn { sandbox_id: Some(sandbox), ..begin(id) };
    let turn = cx.stores.turns.begin(cx.account, None, &new).await?;
    ensure!(running(cx.account).await? == Some(turn.id));
    ensure!(running(cx.stranger).await?.is_none(), "a turn of another account is none of ours");
    cx.stores.turns.end(cx.account, None, &end(&turn)).await?;
    ensure!(running(cx.account).await?.is_none());
    Ok(())
}

async fn the_boot_that_began_a_turn_is_known(cx: Cx) -> Result<()> {
    let (one, two) = (cx.conversation().await?, cx.conversation().await?);
    let new = BeginTurn { boot: Some("node boot".into()), ..begin(one) };
    cx.stores.turns.begin(cx.account, None, &new).await?;
    let other = cx.turn(two).await?;
    ensure!(cx.stores.turns.boot(cx.account, new.id).await?.as_deref() == Some("node boot"));
    ensure!(cx.stores.turns.boot(cx.account, other.id).await?.is_none());
    ensure_kind(cx.stores.turns.boot(cx.stranger, new.id).await, ErrorKind::NotFound)
}

/// The clock was set back between each of them.
async fn m1_messages_keep_their_order_when_the_clock_steps_back(cx: Cx) -> Result<()> {
    let id = cx.conversation().await?;
    let (mut said, mut last) = (Vec::new(), None);
    for hours in (0..4_i64).rev() {
        let mut new = begin(id);
        (new.created_at, new.prompt.created_at) = (at(hours * 3600), at(hours * 3600));
        let turn = cx.stores.turns.begin(cx.account, None, &new).await?;
        ensure!(last.is_none_or(|last| last < turn.created_at), "a turn begins before the one before it");
        let again = cx.stores.turns.begin(cx.account, None, &new).await?;
        ensure!(again == turn, "the same turn twice is one");
        let mut ended = end(&turn);
        // The runner sees to that.
        ended.ended_at = just_after(turn.created_at);
        if let Some(answer) = &mut ended.answer {
            answer.created_at = ended.ended_at;
        }
        cx.stores.turns.end(cx.account, None, &ended).await?;
        last = Some(ended.ended_at);
        said.extend([turn.prompt_id, turn.answer_id]);
    }
    let page = Page::first(100);
    let listed = cx.stores.messages.list(cx.account, id, Direction::OldestFirst, &page).await?.items;
    ensure!(listed.iter().map(|message| message.id).eq(said), "{listed:?}");
    Ok(())
}

async fn a_write_needs_the_lease(cx: Cx) -> Result<()> {
    let id = cx.conversation().await?;
    let name = format!("turn-{id}");
    let first = cx.stores.leases.acquire(&name, "one", Duration::from_millis(1)).await?.unwrap();
    // The sleeper.
    let second = loop {
        match cx.stores.leases.acquire(&name, "two", Duration::from_secs(60)).await? {
            Some(lease) => break lease,
            None => tokio::task::yield_now().await,
        }
    };
    ensure!(second.epoch > first.epoch);
    let (old, new) = (first.fence(), second.fence());
    let begun = begin(id);
    ensure_kind(cx.stores.turns.begin(cx.account, Some(&old), &begun).await, ErrorKind::Conflict)?;
    let turn = cx.stores.turns.begin(cx.account, Some(&new), &begun).await?;
    let answer = Message { id: turn.answer_id, ..message(id, Some(turn.id), Role::Assistant, "x") };
    ensure_kind(cx.stores.turns.save_answer(cx.account, Some(&old), &answer).await, ErrorKind::Conflict)?;
    let late = cx.stores.turns.append_events(cx.account, Some(&old), turn.id, 0, &events(0, 1), 1).await;
    ensure_kind(late, ErrorKind::Conflict)?;
    ensure_kind(cx.stores.turns.end(cx.account, Some(&old), &end(&turn)).await, ErrorKind::Conflict)?;
    ensure!(cx.stores.turns.get(cx.account, turn.id).await?.events == 0);
    cx.stores.turns.append_events(cx.account, Some(&new), turn.id, 0, &events(0, 1), 1).await?;
    ensure!(cx.stores.turns.end(cx.account, Some(&new), &end(&turn)).await?.stats == totals(1));
    Ok(())
}

async fn bad_turns_are_refused(cx: Cx) -> Result<()> {
    let id = cx.conversation().await?;
    let mut other = begin(id);
    other.prompt.conversation_id = cx.conversation().await?;
    ensure_kind(cx.stores.turns.begin(cx.account, None, &other).await, ErrorKind::Invalid)?;
    let nowhere = begin(seawall_api::ConversationId::generate());
    ensure_kind(cx.stores.turns.begin(cx.account, None, &nowhere).await, ErrorKind::NotFound)?;
    let turn = cx.turn(id).await?;
    let never = EndTurn { state: TurnState::Running, ended_at: at(1), ..end(&turn) };
    ensure_kind(cx.stores.turns.end(cx.account, None, &never).await, ErrorKind::Invalid)?;
    let unknown = EndTurn { id: TurnId::generate(), answer: None, ended_at: now(), ..end(&turn) };
    let foreign = EndTurn { answer: Some(message(id, None, Role::Assistant, "x")), ..end(&turn) };
    ensure_kind(cx.stores.turns.end(cx.account, None, &foreign).await, ErrorKind::Invalid)?;
    ensure_kind(cx.stores.turns.end(cx.account, None, &unknown).await, ErrorKind::NotFound)
}
