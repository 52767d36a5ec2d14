use super::{
    kit::{Cx, at, ensure_kind, now},
    suite::cases,
};
use anyhow::{Result, ensure};
use futures::future::join_all;
use seawall_api::{
    AccountId, ErrorKind, KeyId,
    account::{Account, ApiKey, KeyScope},
};
use seawall_core::ports::store::{KeyLimits, Page};
use serde_json::json;
use std::time::Duration;

cases!("accounts";
    an_account_comes_back_as_it_was;
    making_it_twice_is_making_it_once_and_another_is_refused;
    settings_are_replaced;
    lists_come_in_pages;
    a_key_is_found_by_its_hash;
    a_key_is_revoked_once_and_touched_forward;
    a_hash_belongs_to_one_key;
    k5_keys_have_a_number_also_when_many_are_made_at_once;
    k5_keys_that_are_over_make_room_after_a_while;
    k4_keys_that_are_good_are_found_among_many;
);

fn account(second: i64) -> Account {
    let settings = json!({"models": ["a", "b"], "tokens_a_day": 5}).as_object().unwrap().clone();
    Account::new(AccountId::generate(), "Ünïcode & co".into(), settings, at(second))
}

fn key(account: AccountId) -> ApiKey {
    ApiKey {
        id: KeyId::generate(),
        account_id: account,
        name: "laptop".into(),
        prefix: "sw_abc".into(),
        scopes: [KeyScope::Read, KeyScope::Run].into(),
        created_at: now(),
        expires_at: Some(at(10)),
        revoked_at: None,
        last_used_at: None,
    }
}

async fn an_account_comes_back_as_it_was(cx: Cx) -> Result<()> {
    let made = account(0);
    cx.stores.accounts.create(&made).await?;
    ensure!(cx.stores.accounts.get(made.id).await? == made);
    ensure_kind(cx.stores.accounts.get(AccountId::generate()).await, ErrorKind::NotFound)
}

async fn making_it_twice_is_making_it_once_and_another_is_refused(cx: Cx) -> Result<()> {
    let made = account(0);
    cx.stores.accounts.create(&made).await?;
    cx.stores.accounts.create(&made).await?;
    let other = Account { name: "another".into(), ..made };
    ensure_kind(cx.stores.accounts.create(&other).await, ErrorKind::AlreadyExists)
}

async fn settings_are_replaced(cx: Cx) -> Result<()> {
    let settings = json!({"only": null}).as_object().unwrap().clone();
    cx.stores.accounts.set_settings(cx.account, &settings).await?;
    ensure!(cx.stores.accounts.get(cx.account).await?.settings == settings);
    ensure!(cx.stores.accounts.get(cx.stranger).await?.settings.is_empty());
    ensure_kind(cx.stores.accounts.set_settings(AccountId::generate(), &settings).await, ErrorKind::NotFound)
}

async fn lists_come_in_pages(cx: Cx) -> Result<()> {
    let made: Vec<_> = (0..5).map(account).collect();
    for account in made.iter().rev() {
        cx.stores.accounts.create(account).await?;
    }
    let (mut found, mut page) = (Vec::new(), Page::first(2));
    loop {
        let part = cx.stores.accounts.list(&page).await?;
        ensure!(part.items.len() <= 2);
        found.extend(part.items);
        let Some(next) = part.next else { break };
        page = page.after(next);
    }
    let ours: Vec<_> = found.into_iter().filter(|account| made.contains(account)).collect();
    ensure!(ours == made, "oldest first, each once");
    ensure_kind(cx.stores.accounts.list(&Page::first(0)).await, ErrorKind::Invalid)
}

async fn a_key_is_found_by_its_hash(cx: Cx) -> Result<()> {
    let (made, hash) = (key(cx.account), [7; 32]);
    cx.stores.accounts.add_key(&made, &hash, &KeyLimits::NONE).await?;
    cx.stores.accounts.add_key(&made, &hash, &KeyLimits::NONE).await?;
    ensure!(cx.stores.accounts.find_key(&hash).await?.as_ref() == Some(&made));
    ensure!(cx.stores.accounts.find_key(&[8; 32]).await?.is_none());
    ensure!(cx.stores.accounts.keys(cx.account).await? == std::slice::from_ref(&made));
    ensure!(cx.stores.accounts.keys(cx.stranger).await?.is_empty());
    let nobodys = ApiKey { account_id: AccountId::generate(), ..key(cx.account) };
    ensure_kind(cx.stores.accounts.add_key(&nobodys, &[9; 32], &KeyLimits::NONE).await, ErrorKind::NotFound)
}

async fn a_key_is_revoked_once_and_touched_forward(cx: Cx) -> Result<()> {
    let made = key(cx.account);
    cx.stores.accounts.add_key(&made, &[1; 32], &KeyLimits::NONE).await?;
    for second in [5, 9] {
        cx.stores.accounts.revoke_key(cx.account, made.id, at(second)).await?;
    }
    for second in [5, 9, 7] {
        cx.stores.accounts.touch_key(cx.account, made.id, at(second)).await?;
    }
    let found = cx.stores.accounts.find_key(&[1; 32]).await?.unwrap();
    ensure!((found.revoked_at, found.last_used_at) == (Some(at(5)), Some(at(9))));
    ensure_kind(
        cx.stores.accounts.revoke_key(cx.account, KeyId::generate(), at(1)).await,
        ErrorKind::NotFound,
    )
}

async fn a_hash_belongs_to_one_key(cx: Cx) -> Result<()> {
    cx.stores.accounts.add_key(&key(cx.account), &[1; 32], &KeyLimits::NONE).await?;
    let again = cx.stores.accounts.add_key(&key(cx.stranger), &[1; 32], &KeyLimits::NONE).await;
    ensure_kind(again, ErrorKind::AlreadyExists)
}

/// A key that is good, with a hash of its own.
fn fresh(cx: &Cx, number: u8) -> (ApiKey, [u8; 32]) {
    (ApiKey { expires_at: None, ..key(cx.account) }, [number; 32])
}

async fn k5_keys_have_a_number_also_when_many_are_made_at_once(cx: Cx) -> Result<()> {
    let limits = KeyLimits { live: 3, all: 100, keep_over: Duration::ZERO };
    let made = (0..8).map(|number| {
        let (accounts, (key, hash)) = (cx.stores.accounts.clone(), fresh(&cx, number));
        async move { accounts.add_key(&key, &hash, &limits).await }
    });
    let done = join_all(made).await;
    ensure!(done.iter().filter(|done| done.is_ok()).count() == 3, "{done:?}");
    let refused = done.into_iter().find_map(Result::err).unwrap();
    ensure!(refused.code() == "limit_reached" && refused.limit().is_some(), "{refused:?}");
    let theirs = ApiKey { account_id: cx.stranger, ..fresh(&cx, 0).0 };
    cx.stores.accounts.add_key(&theirs, &[99; 32], &limits).await?;
    // One that is over makes room for another.
    let first = cx.stores.accounts.keys(cx.account).await?[0].id;
    cx.stores.accounts.revoke_key(cx.account, first, now()).await?;
    let (key, hash) = fresh(&cx, 50);
    Ok(cx.stores.accounts.add_key(&key, &hash, &limits).await?)
}

async fn k5_keys_that_are_over_make_room_after_a_while(cx: Cx) -> Result<()> {
    let limits = KeyLimits { live: 2, all: 3, keep_over: Duration::from_secs(3600) };
    for number in 0..3 {
        let (key, hash) = fresh(&cx, number);
        cx.stores.accounts.add_key(&key, &hash, &limits).await?;
        cx.stores.accounts.revoke_key(cx.account, key.id, key.created_at).await?;
    }
    let (key, hash) = fresh(&cx, 7);
    let refused = cx.stores.accounts.add_key(&key, &hash, &limits).await.unwrap_err();
    ensure!(refused.code() == "limit_reached", "{refused:?}");
    let later = ApiKey { created_at: now() + Duration::from_secs(3700), ..key };
    cx.stores.accounts.add_key(&later, &hash, &limits).await?;
    ensure!(cx.stores.accounts.keys(cx.account).await? == [later]);
    Ok(())
}

async fn k4_keys_that_are_good_are_found_among_many(cx: Cx) -> Result<()> {
    let mut keys = Vec::new();
    for number in 0..40 {
        let (key, hash) = fresh(&cx, number);
        cx.stores.accounts.add_key(&key, &hash, &KeyLimits::NONE).await?;
        keys.push(key.id);
    }
    let expiring = ApiKey { expires_at: Some(at(10)), ..key(cx.account) };
    cx.stores.accounts.add_key(&expiring, &[77; 32], &KeyLimits::NONE).await?;
    cx.stores.accounts.revoke_key(cx.account, keys[3], at(5)).await?;
    let asked: Vec<_> = keys.iter().copied().chain([expiring.id, KeyId::generate()]).collect();
    let good = async |second| cx.stores.accounts.good_keys(&asked, at(second)).await;
    ensure!(good(4).await?.len() == 41);
    ensure!(good(5).await?.len() == 40 && !good(5).await?.contains(&keys[3]));
    ensure!(good(10).await?.len() == 39 && !good(10).await?.contains(&expiring.id));
    ensure!(cx.stores.accounts.good_keys(&[], at(0)).await?.is_empty());
    cx.stores.accounts.set_suspended(cx.account, Some(at(0))).await?;
    ensure!(good(4).await?.is_empty(), "of an account that is suspended");
    Ok(())
}
