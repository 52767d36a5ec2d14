use super::{
    kit::{Cx, USAGE, at, ensure_kind, message},
    suite::cases,
};
use anyhow::{Result, ensure};
use seawall_api::{
    ConversationId, ErrorKind, MessageId,
    conversation::{Message, Role, ToolCall, ToolStatus},
};
use seawall_core::ports::store::{Direction, Page};
use serde_json::json;

cases!("messages";
    m1_a_message_comes_back_in_full;
    m1_messages_are_in_order_and_paged_both_ways;
    m1_times_of_one_microsecond_are_told_apart;
    m1_large_messages_survive;
    sizes_are_told_before_messages_are_read;
    an_older_revision_replaces_nothing;
    storing_twice_is_storing_once;
    deleting_takes_one_conversation;
    c7_another_account_sees_nothing;
);

fn full(conversation: ConversationId) -> Message {
    let call = ToolCall {
        id: "call-1".into(),
        name: "sandbox_exec".into(),
        input: json!({"command": "ls", "n": [1, 2.5, null]}),
        output: Some(json!("a\nb")),
        status: ToolStatus::Failed,
        error: Some("exit code 1".into()),
    };
    Message {
        usage: Some(USAGE),
        tool_calls: vec![
            call.clone(),
            ToolCall { output: None, error: None, status: ToolStatus::Pending, ..call },
        ],
        created_at: at(3),
        revision: 7,
        ..message(
            conversation,
            Some(seawall_api::TurnId::generate()),
            Role::Assistant,
            "Grüße ☃ \u{1F30A} \n\t\"'\\",
        )
    }
}

async fn m1_a_message_comes_back_in_full(cx: Cx) -> Result<()> {
    let id = ConversationId::generate();
    let whole = full(id);
    cx.stores.messages.put(cx.account, std::slice::from_ref(&whole)).await?;
    ensure!(cx.stores.messages.get(cx.account, id, whole.id).await? == whole);
    let unknown = cx.stores.messages.get(cx.account, id, MessageId::generate()).await;
    ensure_kind(unknown, ErrorKind::NotFound)
}

async fn m1_messages_are_in_order_and_paged_both_ways(cx: Cx) -> Result<()> {
    let (id, other) = (ConversationId::generate(), ConversationId::generate());
    let new =
        |second| Message { created_at: at(second), ..message(id, None, Role::User, &second.to_string()) };
    let made: Vec<_> = (0..23).map(new).collect();
    for part in made.rchunks(5) {
        cx.stores.messages.put(cx.account, part).await?;
    }
    cx.stores.messages.put(cx.account, &[message(other, None, Role::User, "elsewhere")]).await?;
    for direction in [Direction::OldestFirst, Direction::NewestFirst] {
        let (mut found, mut page) = (Vec::new(), Page::first(4));
        loop {
            let part = cx.stores.messages.list(cx.account, id, direction, &page).await?;
            ensure!(part.items.len() <= 4);
            found.extend(part.items);
            let Some(next) = part.next else { break };
            page = page.after(next.to_string().parse()?);
        }
        if direction == Direction::NewestFirst {
            found.reverse();
        }
        ensure!(found == made);
    }
    let exact = cx.stores.messages.list(cx.account, id, Direction::OldestFirst, &Page::first(23)).await?;
    ensure!(exact.items.len() == 23 && exact.next.is_none());
    ensure_kind(
        cx.stores.messages.list(cx.account, id, Direction::OldestFirst, &Page::first(5000)).await,
        ErrorKind::Invalid,
    )
}

async fn m1_times_of_one_microsecond_are_told_apart(cx: Cx) -> Result<()> {
    let id = ConversationId::generate();
    let time = |micro: i64| jiff::Timestamp::from_microsecond(1_800_000_000_000_000 + micro).unwrap();
    let new = |micro| Message { created_at: time(micro), ..message(id, None, Role::User, "x") };
    // Two of the same time are ordered by their ids.
    let mut made = [new(0), new(1), new(2), new(2), new(3)];
    made[2..4].sort_by_key(|message| message.id);
    let mut shuffled = made.clone();
    shuffled.reverse();
    cx.stores.messages.put(cx.account, &shuffled).await?;
    let mut page = Page::first(1);
    for wanted in &made {
        let part = cx.stores.messages.list(cx.account, id, Direction::OldestFirst, &page).await?;
        ensure!(part.items == std::slice::from_ref(wanted));
        let Some(next) = part.next else { break };
        page = page.after(next);
    }
    Ok(())
}

async fn m1_large_messages_survive(cx: Cx) -> Result<()> {
    let id = ConversationId::generate();
    // Larger than an item of DynamoDB may be, in bytes and, less so, in characters.
    for (second, size) in [(0, 399_000), (1, 1_300_000), (2, 10)] {
        let body: String = "aé☃".chars().cycle().take(size).collect();
        let large = Message { body, created_at: at(second), ..full(id) };
        cx.stores.messages.put(cx.account, std::slice::from_ref(&large)).await?;
        ensure!(cx.stores.messages.get(cx.account, id, large.id).await? == large, "{size}");
    }
    let all = cx.stores.messages.list(cx.account, id, Direction::OldestFirst, &Page::first(9)).await?;
    ensure!(all.items.len() == 3);
    let sizes: Vec<_> = all.items.iter().map(|message| message.body.chars().count()).collect();
    ensure!(sizes == [399_000, 1_300_000, 10]);
    cx.stores.messages.delete_all(cx.account, id).await?;
    let none = cx.stores.messages.list(cx.account, id, Direction::OldestFirst, &Page::first(9)).await?;
    ensure!(none.items.is_empty());
    Ok(())
}

async fn an_older_revision_replaces_nothing(cx: Cx) -> Result<()> {
    let id = ConversationId::generate();
    let first = Message { revision: 3, ..full(id) };
    let put = async |revision, body: &str| {
        let message = Message { revision, body: body.into(), ..first.clone() };
        cx.stores.messages.put(cx.account, &[message]).await
    };
    put(3, "three").await?;
    put(2, "two").await?;
    put(3, "three again").await?;
    ensure!(cx.stores.messages.get(cx.account, id, first.id).await?.body == "three");
    put(4, &"four".repeat(200_000)).await?;
    put(5, "five").await?;
    let found = cx.stores.messages.get(cx.account, id, first.id).await?;
    ensure!((found.body.as_str(), found.revision) == ("five", 5));
    Ok(())
}

async fn sizes_are_told_before_messages_are_read(cx: Cx) -> Result<()> {
    let (store, id) = (&cx.stores.messages, ConversationId::generate());
    let small = Message { created_at: at(1), ..message(id, None, Role::User, "short") };
    let large = Message { created_at: at(2), ..message(id, None, Role::User, &"é".repeat(500_000)) };
    store.put(cx.account, &[small.clone(), large.clone()]).await?;
    let sizes = store.sizes(cx.account, id, Direction::OldestFirst, &Page::first(9)).await?;
    ensure!(sizes.len() == 2 && sizes[0] < 100_000 && sizes[1] >= 1_000_000, "{sizes:?}");
    let newest = store.sizes(cx.account, id, Direction::NewestFirst, &Page::first(1)).await?;
    ensure!(newest == sizes[1..]);
    ensure!(store.size(cx.account, id, large.id).await? == sizes[1]);
    ensure_kind(store.size(cx.account, id, MessageId::generate()).await, ErrorKind::NotFound)
}

async fn storing_twice_is_storing_once(cx: Cx) -> Result<()> {
    let id = ConversationId::generate();
    let made: Vec<_> = (0..40).map(|second| Message { created_at: at(second), ..full(id) }).collect();
    for _ in 0..2 {
        cx.stores.messages.put(cx.account, &made).await?;
    }
    cx.stores.messages.put(cx.account, &[]).await?;
    let all = cx.stores.messages.list(cx.account, id, Direction::OldestFirst, &Page::first(100)).await?;
    ensure!(all.items == made);
    Ok(())
}

async fn deleting_takes_one_conversation(cx: Cx) -> Result<()> {
    let (id, other) = (ConversationId::generate(), ConversationId::generate());
    for conversation in [id, other] {
        let made: Vec<_> = (0..60).map(|s| Message { created_at: at(s), ..full(conversation) }).collect();
        cx.stores.messages.put(cx.account, &made).await?;
    }
    for _ in 0..2 {
        cx.stores.messages.delete_all(cx.account, id).await?;
    }
    let page = Page::first(100);
    ensure!(cx.stores.messages.list(cx.account, id, Direction::OldestFirst, &page).await?.items.is_empty());
    ensure!(
        cx.stores.messages.list(cx.account, other, Direction::OldestFirst, &page).await?.items.len() == 60
    );
    Ok(())
}

async fn c7_another_account_sees_nothing(cx: Cx) -> Result<()> {
    let id = ConversationId::generate();
    let ours = full(id);
    cx.stores.messages.put(cx.account, std::slice::from_ref(&ours)).await?;
    ensure_kind(cx.stores.messages.get(cx.stranger, id, ours.id).await, ErrorKind::NotFound)?;
    let page = Page::first(9);
    ensure!(cx.stores.messages.list(cx.stranger, id, Direction::OldestFirst, &page).await?.items.is_empty());
    // A stranger who uses our ids writes and deletes its own.
    let theirs = Message { body: "theirs".into(), revision: 99, ..ours.clone() };
    cx.stores.messages.put(cx.stranger, &[theirs]).await?;
    cx.stores.messages.delete_all(cx.stranger, id).await?;
    ensure!(cx.stores.messages.get(cx.account, id, ours.id).await? == ours);
    Ok(())
}
