use super::{
    kit::{Cx, at, ensure_kind, now},
    suite::cases,
};
use anyhow::{Result, ensure};
use seawall_api::{
    AccountId, ErrorKind, KeyId,
    account::{Account, ApiKey, KeyScope},
};
use seawall_core::ports::store::Page;
use serde_json::json;

cases!("accounts";
    an_account_comes_back_as_it_was;
    making_it_twice_is_making_it_once_and_another_is_refused;
    settings_are_replaced;
    lists_come_in_pages;
    a_key_is_found_by_its_hash;
    a_key_is_revoked_once_and_touched_forward;
    a_hash_belongs_to_one_key;
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
    cx.stores.accounts.add_key(&made, &hash).await?;
    cx.stores.accounts.add_key(&made, &hash).await?;
    ensure!(cx.stores.accounts.find_key(&hash).await?.as_ref() == Some(&made));
    ensure!(cx.stores.accounts.find_key(&[8; 32]).await?.is_none());
    ensure!(cx.stores.accounts.keys(cx.account).await? == std::slice::from_ref(&made));
    ensure!(cx.stores.accounts.keys(cx.stranger).await?.is_empty());
    let nobodys = ApiKey { account_id: AccountId::generate(), ..key(cx.account) };
    ensure_kind(cx.stores.accounts.add_key(&nobodys, &[9; 32]).await, ErrorKind::NotFound)
}

async fn a_key_is_revoked_once_and_touched_forward(cx: Cx) -> Result<()> {
    let made = key(cx.account);
    cx.stores.accounts.add_key(&made, &[1; 32]).await?;
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
    cx.stores.accounts.add_key(&key(cx.account), &[1; 32]).await?;
    let again = cx.stores.accounts.add_key(&key(cx.stranger), &[1; 32]).await;
    ensure_kind(again, ErrorKind::AlreadyExists)
}
