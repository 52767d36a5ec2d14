//! K8: what accounts are charged for models.

use super::{
    kit::{Cx, USAGE, end},
    suite::cases,
};
use anyhow::{Result, ensure};
use futures::future::{join_all, try_join_all};
use jiff::Timestamp;
use seawall_api::{TurnId, conversation::Usage};
use seawall_core::ports::store::{Day, EndTurn, TokenCharge, TokenTotals, all_tokens};

cases!("tokens";
    k8_charges_are_set_and_summed_by_day_and_month;
    k8_a_charge_told_twice_is_one;
    k8_runs_of_a_turn_are_apart_and_its_end_sums_them;
    k8_a_turn_that_used_more_than_it_was_charged_is_charged_the_rest;
    k8_a_turn_that_ends_twice_is_charged_once;
    k8_what_was_charged_outlives_its_conversation;
    k8_many_charges_at_once_are_all_there;
    k11_charges_are_kept_for_two_months;
);

const NOON: &str = "2026-11-16T12:00:00Z";

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn day(text: &str) -> Day {
    Day::of(time(text))
}

fn charge(day: Day, turn: TurnId, run: u64, tokens: u64) -> TokenCharge {
    TokenCharge { day, turn, run, tokens }
}

async fn charged(cx: &Cx, day: Day) -> Result<(u64, u64)> {
    let TokenTotals { day, month } = cx.stores.tokens.charge(cx.account, &[], day).await?;
    Ok((day, month))
}

async fn k8_charges_are_set_and_summed_by_day_and_month(cx: Cx) -> Result<()> {
    let tokens = &cx.stores.tokens;
    let [one, two] = [TurnId::generate(), TurnId::generate()];
    let [first, today, last, next] =
        ["2026-11-01T00:00:00Z", NOON, "2026-11-30T23:59:59Z", "2026-12-01T00:00:00Z"].map(day);
    let charges = [
        charge(day("2026-10-31T23:59:59Z"), one, 1, 1),
        charge(first, one, 1, 10),
        charge(today, one, 1, 100),
        charge(today, two, 1, 1000),
        charge(last, two, 1, 10_000),
        charge(next, two, 1, 100_000),
    ];
    let totals = tokens.charge(cx.account, &charges, today).await?;
    ensure!(totals == TokenTotals { day: 1100, month: 11_110 }, "{totals:?}");
    ensure!(charged(&cx, next).await? == (100_000, 100_000));
    // Down as well as up.
    let totals = tokens.charge(cx.account, &[charge(today, one, 1, 7)], today).await?;
    ensure!(totals == TokenTotals { day: 1007, month: 11_017 }, "{totals:?}");
    Ok(())
}

async fn k8_a_charge_told_twice_is_one(cx: Cx) -> Result<()> {
    let one = charge(day(NOON), TurnId::generate(), u64::MAX >> 1, 5);
    for _ in 0..3 {
        ensure!(cx.stores.tokens.charge(cx.account, &[one], one.day).await?.day == 5);
    }
    Ok(())
}

async fn k8_runs_of_a_turn_are_apart_and_its_end_sums_them(cx: Cx) -> Result<()> {
    let (today, tokens) = (day(NOON), &cx.stores.tokens);
    let (yesterday, turn) = (Day(today.0 - 1), cx.turn(cx.conversation().await?).await?);
    let runs =
        [charge(yesterday, turn.id, 1, 200), charge(today, turn.id, 1, 30), charge(today, turn.id, 2, 4)];
    tokens.charge(cx.account, &runs, today).await?;
    let other = charge(today, TurnId::generate(), 1, 1);
    tokens.charge(cx.account, &[other], today).await?;
    ensure!(charged(&cx, today).await? == (35, 235));
    cx.stores.turns.end(cx.account, None, &EndTurn { ended_at: time(NOON), ..end(&turn) }).await?;
    ensure!(charged(&cx, today).await? == (35, 235), "it used no more than that");
    ensure!(charged(&cx, yesterday).await? == (200, 235));
    // The runs are over: what is told of them later is beside the sum.
    tokens.charge(cx.account, &[charge(today, other.turn, 1, 0)], today).await?;
    ensure!(charged(&cx, today).await? == (34, 234));
    Ok(())
}

async fn k8_a_turn_that_used_more_than_it_was_charged_is_charged_the_rest(cx: Cx) -> Result<()> {
    let today = day(NOON);
    for (reserved, expected) in [(0, 123), (100, 123), (123, 123), (500, 500)] {
        let turn = cx.turn(cx.conversation().await?).await?;
        let before = charged(&cx, today).await?.0;
        if reserved > 0 {
            cx.stores.tokens.charge(cx.account, &[charge(today, turn.id, 1, reserved)], today).await?;
        }
        cx.stores.turns.end(cx.account, None, &EndTurn { ended_at: time(NOON), ..end(&turn) }).await?;
        ensure!(charged(&cx, today).await?.0 == before + expected, "{reserved}");
    }
    // Nothing used, nothing charged.
    let turn = cx.turn(cx.conversation().await?).await?;
    let before = charged(&cx, today).await?;
    let nothing = EndTurn { usage: Usage::default(), ended_at: time(NOON), ..end(&turn) };
    cx.stores.turns.end(cx.account, None, &nothing).await?;
    ensure!(charged(&cx, today).await? == before);
    Ok(())
}

async fn k8_a_turn_that_ends_twice_is_charged_once(cx: Cx) -> Result<()> {
    let (today, turn) = (day(NOON), cx.turn(cx.conversation().await?).await?);
    cx.stores.tokens.charge(cx.account, &[charge(today, turn.id, 1, 50)], today).await?;
    let ended = EndTurn { ended_at: time(NOON), ..end(&turn) };
    for done in join_all((0..8).map(|_| cx.stores.turns.end(cx.account, None, &ended))).await {
        done?;
    }
    ensure!(charged(&cx, today).await? == (all_tokens(&USAGE), all_tokens(&USAGE)));
    Ok(())
}

/// Else a tenant that deletes its conversations has no limit.
async fn k8_what_was_charged_outlives_its_conversation(cx: Cx) -> Result<()> {
    let (today, id) = (day(NOON), cx.conversation().await?);
    let turn = cx.turn(id).await?;
    cx.stores.turns.end(cx.account, None, &EndTurn { ended_at: time(NOON), ..end(&turn) }).await?;
    cx.stores.conversations.delete(cx.account, id).await?;
    ensure!(charged(&cx, today).await?.0 == all_tokens(&USAGE));
    Ok(())
}

async fn k8_many_charges_at_once_are_all_there(cx: Cx) -> Result<()> {
    let (today, tokens) = (day(NOON), &cx.stores.tokens);
    let conversations = try_join_all((0..10).map(|_| cx.conversation())).await?;
    let turns = try_join_all(conversations.into_iter().map(|id| cx.turn(id))).await?;
    let work = turns.iter().map(|turn| async {
        for value in 1..=5 {
            tokens.charge(cx.account, &[charge(today, turn.id, 1, 200 * value)], today).await?;
        }
        let ended = EndTurn { ended_at: time(NOON), ..end(turn) };
        cx.stores.turns.end(cx.account, None, &ended).await?;
        anyhow::Ok(())
    });
    try_join_all(work).await?;
    ensure!(charged(&cx, today).await? == (10_000, 10_000));
    Ok(())
}

async fn k11_charges_are_kept_for_two_months(cx: Cx) -> Result<()> {
    let (today, tokens) = (day(NOON), &cx.stores.tokens);
    let old = [0, 61, 62, 63, 400].map(|back| charge(Day(today.0 - back), TurnId::generate(), 1, 1));
    tokens.charge(cx.account, &old, today).await?;
    // What is too old is gone with the write.
    let sums = [61, 62, 63, 400].map(|back| charged(&cx, Day(today.0 - back)));
    let sums: Vec<u64> = try_join_all(sums).await?.into_iter().map(|(day, _)| day).collect();
    ensure!(sums == [1, 1, 0, 0], "{sums:?}");
    Ok(())
}
