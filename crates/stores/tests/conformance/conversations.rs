use super::{
    kit::{Cx, at, begin, conversation, end, ensure_kind, now},
    suite::cases,
};
use anyhow::{Result, ensure};
use seawall_api::{ConversationId, ErrorKind, SandboxId, conversation::Stats};
use seawall_core::ports::store::{ConversationFilter, Direction, NewConversation, Page, SortBy};

cases!("conversations";
    c1_a_conversation_comes_back_as_it_was;
    c2_an_unknown_id_is_made_and_a_known_one_is_resumed;
    c3_a_sandbox_is_linked_once_and_relinked_only_from_what_is_expected;
    c4_a_new_one_has_totals_of_zero;
    c5_deleting_takes_all_of_it_and_waits_for_no_turn;
    c7_anothers_id_is_not_found;
    lists_are_filtered_sorted_and_paged;
    a_list_is_stable_while_rows_change;
    the_template_can_be_changed;
);

async fn c1_a_conversation_comes_back_as_it_was(cx: Cx) -> Result<()> {
    let new = NewConversation {
        organization_id: Some("org ☃".into()),
        agent_id: Some("agent".into()),
        template: Some("claude-code".into()),
        sandbox_id: Some(SandboxId::generate()),
        ..conversation()
    };
    let (made, is_new) = cx.stores.conversations.ensure(cx.account, &new).await?;
    ensure!(is_new);
    let found = cx.stores.conversations.get(cx.account, new.id).await?;
    ensure!(found == made);
    ensure!((found.id, found.account_id) == (new.id, cx.account));
    ensure!((&found.organization_id, &found.agent_id) == (&new.organization_id, &new.agent_id));
    ensure!((&found.template, found.sandbox_id) == (&new.template, new.sandbox_id));
    ensure!((found.created_at, found.updated_at) == (new.created_at, new.created_at));
    Ok(())
}

async fn c2_an_unknown_id_is_made_and_a_known_one_is_resumed(cx: Cx) -> Result<()> {
    let new = NewConversation { template: Some("shell".into()), ..conversation() };
    let (first, made) = cx.stores.conversations.ensure(cx.account, &new).await?;
    let other = NewConversation { template: Some("codex".into()), ..new };
    let (second, again) = cx.stores.conversations.ensure(cx.account, &other).await?;
    ensure!(made && !again && first == second, "one that is there stays as it is");
    Ok(())
}

async fn c3_a_sandbox_is_linked_once_and_relinked_only_from_what_is_expected(cx: Cx) -> Result<()> {
    let (id, [one, two]) = (cx.conversation().await?, [SandboxId::generate(), SandboxId::generate()]);
    let link = |expected, sandbox| cx.stores.conversations.link(cx.account, id, expected, sandbox, now());
    link(None, Some(one)).await?;
    link(None, Some(one)).await?;
    ensure_kind(link(None, Some(two)).await, ErrorKind::Conflict)?;
    ensure!(cx.stores.conversations.get(cx.account, id).await?.sandbox_id == Some(one));
    link(Some(one), Some(two)).await?;
    link(Some(two), None).await?;
    ensure!(cx.stores.conversations.get(cx.account, id).await?.sandbox_id.is_none());
    // Of many at once one wins.
    let tries = (0..16).map(|_| link(None, Some(SandboxId::generate())));
    let won = futures::future::join_all(tries).await.into_iter().filter(Result::is_ok).count();
    ensure!(won == 1, "{won} won");
    Ok(())
}

async fn c4_a_new_one_has_totals_of_zero(cx: Cx) -> Result<()> {
    let id = cx.conversation().await?;
    ensure!(cx.stores.conversations.get(cx.account, id).await?.stats == Stats::default());
    Ok(())
}

async fn c5_deleting_takes_all_of_it_and_waits_for_no_turn(cx: Cx) -> Result<()> {
    let id = cx.conversation().await?;
    let turn = cx.turn(id).await?;
    cx.stores.turns.append_events(cx.account, None, turn.id, 0, &["one".into()], 3).await?;
    ensure_kind(cx.stores.conversations.delete(cx.account, id).await, ErrorKind::Conflict)?;
    cx.stores.turns.end(cx.account, None, &end(&turn)).await?;
    let used = super::totals::used(id, SandboxId::generate(), "hook");
    ensure!(cx.stores.conversations.add_usage(cx.account, &used).await?);
    cx.stores.conversations.delete(cx.stranger, id).await?;
    ensure!(cx.stores.conversations.get(cx.account, id).await.is_ok(), "a stranger deletes nothing");
    for _ in 0..2 {
        cx.stores.conversations.delete(cx.account, id).await?;
    }
    ensure_kind(cx.stores.conversations.get(cx.account, id).await, ErrorKind::NotFound)?;
    ensure_kind(cx.stores.turns.get(cx.account, turn.id).await, ErrorKind::NotFound)?;
    let left = cx.stores.messages.list(cx.account, id, Direction::OldestFirst, &Page::first(10)).await?;
    ensure!(left.items.is_empty());
    // The id is free again, and nothing of the old one is in the new one.
    let (made, is_new) =
        cx.stores.conversations.ensure(cx.account, &NewConversation { id, ..conversation() }).await?;
    ensure!(is_new && made.stats == Stats::default());
    let turn = cx.turn(id).await?;
    ensure!(turn.number == 1);
    Ok(())
}

async fn c7_anothers_id_is_not_found(cx: Cx) -> Result<()> {
    let id = cx.conversation().await?;
    let store = &cx.stores.conversations;
    ensure_kind(store.get(cx.stranger, id).await, ErrorKind::NotFound)?;
    let same = NewConversation { id, ..conversation() };
    ensure_kind(store.ensure(cx.stranger, &same).await, ErrorKind::NotFound)?;
    ensure_kind(store.get(cx.account, ConversationId::generate()).await, ErrorKind::NotFound)
}

async fn lists_are_filtered_sorted_and_paged(cx: Cx) -> Result<()> {
    let sandbox = SandboxId::generate();
    let mut made = Vec::new();
    for number in 0..30_i64 {
        let new = NewConversation {
            organization_id: Some(format!("org-{}", number % 2)),
            agent_id: Some(format!("agent-{}", number % 3)),
            sandbox_id: (number % 5 == 0).then_some(sandbox),
            created_at: at(number),
            ..conversation()
        };
        cx.stores.conversations.ensure(cx.account, &new).await?;
        made.push(new);
    }
    // The oldest was changed last.
    cx.stores.conversations.set_template(cx.account, made[0].id, Some("x"), at(99)).await?;
    let all = ConversationFilter::default();
    let newest = [made[0].id, made[29].id, made[28].id];
    ensure!(ids(&cx, &all).await?[..3] == newest);
    ensure!(ids(&cx, &all).await?.len() == 30);
    let by_age = ConversationFilter { sort: SortBy::Created, ..all };
    ensure!(ids(&cx, &by_age).await?[..2] == [made[29].id, made[28].id]);
    for sort in [SortBy::Updated, SortBy::Created] {
        let organization =
            ConversationFilter { organization_id: Some("org-1".into()), sort, ..Default::default() };
        ensure!(ids(&cx, &organization).await?.len() == 15);
        let agent = ConversationFilter { agent_id: Some("agent-0".into()), sort, ..Default::default() };
        ensure!(ids(&cx, &agent).await?.len() == 10);
        let both = ConversationFilter { agent_id: Some("agent-0".into()), ..organization };
        ensure!(ids(&cx, &both).await?.len() == 5);
        let linked = ConversationFilter { sandbox_id: Some(sandbox), sort, ..Default::default() };
        ensure!(ids(&cx, &linked).await?.len() == 6);
        let none = ConversationFilter { agent_id: Some("nobody".into()), ..linked };
        ensure!(ids(&cx, &none).await?.is_empty());
    }
    Ok(())
}

/// All pages of seven.
async fn ids(cx: &Cx, filter: &ConversationFilter) -> Result<Vec<ConversationId>> {
    let (mut found, mut page) = (Vec::new(), Page::first(7));
    loop {
        let part = cx.stores.conversations.list(cx.account, filter, &page).await?;
        found.extend(part.items.into_iter().map(|conversation| conversation.id));
        match part.next {
            // As it goes to a client and comes back.
            Some(next) => page = page.after(next.to_string().parse()?),
            None => return Ok(found),
        }
    }
}

async fn a_list_is_stable_while_rows_change(cx: Cx) -> Result<()> {
    let mut made = Vec::new();
    for number in 0..6 {
        let new = NewConversation { created_at: at(number), ..conversation() };
        cx.stores.conversations.ensure(cx.account, &new).await?;
        made.push(new.id);
    }
    let filter = ConversationFilter { sort: SortBy::Created, ..Default::default() };
    let first = cx.stores.conversations.list(cx.account, &filter, &Page::first(3)).await?;
    // One that was shown goes, and a new one comes.
    cx.stores.conversations.delete(cx.account, made[5]).await?;
    let new = NewConversation { created_at: at(10), ..conversation() };
    cx.stores.conversations.ensure(cx.account, &new).await?;
    let page = Page::first(3).after(first.next.unwrap());
    let rest = cx.stores.conversations.list(cx.account, &filter, &page).await?;
    let rest: Vec<_> = rest.items.iter().map(|conversation| conversation.id).collect();
    ensure!(rest == [made[2], made[1], made[0]]);
    Ok(())
}

async fn the_template_can_be_changed(cx: Cx) -> Result<()> {
    let id = cx.conversation().await?;
    cx.stores.turns.begin(cx.account, None, &begin(id)).await?;
    cx.stores.conversations.set_template(cx.account, id, Some("codex"), at(5)).await?;
    ensure!(cx.stores.conversations.get(cx.account, id).await?.template.as_deref() == Some("codex"));
    cx.stores.conversations.set_template(cx.account, id, None, at(5)).await?;
    ensure!(cx.stores.conversations.get(cx.account, id).await?.template.is_none());
    let unknown = ConversationId::generate();
    ensure_kind(
        cx.stores.conversations.set_template(cx.account, unknown, None, at(5)).await,
        ErrorKind::NotFound,
    )
}
