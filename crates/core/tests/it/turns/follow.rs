//! Following turns: the same events for everybody, from any number on, while they come and afterwards.

use crate::turns::world::{Done, ME, World, all, ask, text};
use seawall_api::event::Event;
use std::time::Duration;
use tokio::time::{Instant, sleep};

const SLOW: &str = "say one; sleep 1; say two; sleep 1; err three; sleep 1; say four; exit 2";

fn assert_whole(done: &Done) {
    let numbers: Vec<u64> = done.events.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (0..numbers.len() as u64).collect::<Vec<_>>());
    assert_eq!(done.text(), "onetwothreefour");
    assert!(matches!(done.events[0].1, Event::TurnStarted { .. }));
    let ends = |event: &&(u64, Event)| matches!(event.1, Event::TurnEnded { .. });
    assert_eq!(done.events.iter().filter(ends).count(), 1);
    assert_eq!(done.events.last().unwrap().0, done.turn.events);
}

#[tokio::test(start_paused = true)]
async fn c2_events_are_numbered_without_gaps_and_told_from_any_number_on() {
    let world = World::new();
    let done = world.run(ask(SLOW)).await;
    assert_whole(&done);
    assert!(done.events.len() >= 8, "{:?}", done.events);
    for from in 0..done.events.len() + 3 {
        let told = all(&world.turns, ME, done.turn.id, from as u64).await;
        assert_eq!(told, done.events[from.min(done.events.len())..], "from {from}");
    }
}

#[tokio::test(start_paused = true)]
async fn c2_whoever_listens_while_it_runs_hears_the_same() {
    let world = World::new();
    let other = world.another();
    let begun = world.turns.start(ME, ask(SLOW)).await.unwrap();
    let id = begun.turn.id;
    // From the start and from the middle, where it runs and elsewhere.
    let late = async {
        sleep(Duration::from_millis(1500)).await;
        all(&world.turns, ME, id, 4).await
    };
    let here = all(&world.turns, ME, id, 0);
    let (here, elsewhere, late) = tokio::join!(here, all(&other.turns, ME, id, 0), late);
    let done = world.done(begun).await;
    assert_whole(&done);
    assert_eq!((&here, &elsewhere), (&done.events, &done.events));
    assert_eq!(late, done.events[4..]);
}

/// An event is there when it happened, not when the turn is over.
#[tokio::test(start_paused = true)]
async fn c2_events_come_when_they_happen() {
    let world = World::new();
    let began = Instant::now();
    let begun = world.turns.start(ME, ask(SLOW)).await.unwrap();
    let mut followed = world.turns.follow(ME, begun.turn.id, 0).await.unwrap();
    let mut came = Vec::new();
    while let Some((_, event)) = followed.next().await.unwrap() {
        if let Event::Text { text, .. } = event {
            came.push((text, began.elapsed().as_secs()));
        }
    }
    let expected = [("one", 0), ("two", 1), ("three", 2), ("four", 3)];
    assert_eq!(came, expected.map(|(text, at)| (text.to_owned(), at)));
    // After the end there is nothing, as often as one asks.
    assert!(followed.next().await.unwrap().is_none());
}

/// What is behind the end is waited for as long as it may come.
#[tokio::test(start_paused = true)]
async fn c2_events_that_are_not_there_yet_are_waited_for() {
    let world = World::new();
    let begun = world.turns.start(ME, ask(SLOW)).await.unwrap();
    let first = all(&world.turns, ME, begun.turn.id, 5).await;
    assert_eq!(first[0].0, 5);
    assert!("onetwothreefour".ends_with(text(&first).as_str()), "{first:?}");
}
