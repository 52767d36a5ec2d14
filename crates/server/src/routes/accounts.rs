//! Accounts, their keys, and what was done with them.

use crate::{
    audit::AuditEntry,
    error::{ApiError, ApiResult, Problems},
    extract::{self, Admin, Json, OptionalJson, PageQuery, Path, Query, Reader},
    idempotency::Secret,
    lists,
    state::AppState,
};
use axum::{
    Extension,
    extract::State,
    http::{HeaderValue, StatusCode, header::CACHE_CONTROL},
    response::{IntoResponse, Response},
};
use seawall_api::{
    AccountId, KeyId,
    account::{Account, AccountUsage, ApiKey},
    http::{CreateAccount, CreateKey, List, NewKey, RotateKey, SetSettings},
};
use seawall_core::{accounts::AccountSettings, keys::Identity, ports::store::Paged};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::time::Duration;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

const MAX_NAME: usize = 200;
const AUDIT: usize = 100;
const MAX_AUDIT: usize = 1000;
/// What all keys of an account take.
const KEYS: u64 = 1 << 20;

pub fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::default()
        .routes(routes!(get_account))
        .routes(routes!(account_usage))
        .routes(routes!(set_settings))
        .routes(routes!(list_keys, create_key))
        .routes(routes!(revoke_key))
        .routes(routes!(rotate_key))
        .routes(routes!(list_accounts, create_account))
        .routes(routes!(delete_account))
        .routes(routes!(suspend_account))
        .routes(routes!(resume_account))
        .routes(routes!(create_key_of))
        .routes(routes!(usage_of_account))
        .routes(routes!(set_settings_of))
        .routes(routes!(list_audit))
}

/// The account of the key.
#[utoipa::path(get, path = "/account", tag = "accounts", operation_id = "get_account",
    security(("key" = ["read"])),
    responses(
        (status = 200, body = Account),
        Problems,
    ))]
async fn get_account(State(state): State<AppState>, Reader(who): Reader) -> ApiResult<Json<Account>> {
    Ok(Json(state.services().stores.accounts.get(who.account).await?))
}

/// What the account uses of each of its limits. A limit without `value` has no bound.
#[utoipa::path(get, path = "/account/usage", tag = "accounts", operation_id = "get_account_usage",
    security(("key" = ["read"])),
    responses(
        (status = 200, body = AccountUsage),
        Problems,
    ))]
async fn account_usage(State(state): State<AppState>, Reader(who): Reader) -> ApiResult<Json<AccountUsage>> {
    Ok(Json(usage(&state, who.account).await?))
}

/// Returns the usage that the services count, together with the streams, waiters and previews of this server.
async fn usage(state: &AppState, account: AccountId) -> ApiResult<AccountUsage> {
    let mut usage = state.services().account_usage(account).await?;
    usage.limits.extend(state.open_now(account).await?);
    Ok(usage)
}

/// What another account uses of each of its limits. For operators.
#[utoipa::path(get, path = "/accounts/{id}/usage", tag = "accounts", operation_id = "get_usage_of_account",
    security(("key" = ["admin"])),
    params(("id" = String, Path, description = "The account's id")),
    responses(
        (status = 200, body = AccountUsage),
        Problems,
    ))]
async fn usage_of_account(
    State(state): State<AppState>,
    Admin(who): Admin,
    Path(account): Path<AccountId>,
) -> ApiResult<Json<AccountUsage>> {
    operator(&who)?;
    state.services().stores.accounts.get(account).await?;
    Ok(Json(usage(&state, account).await?))
}

/// Replaces all settings of the account. They limit it, so they are the operator's to set.
#[utoipa::path(put, path = "/account/settings", tag = "accounts", operation_id = "set_settings",
    security(("key" = ["admin"])),
    request_body = SetSettings,
    responses(
        (status = 200, body = Account),
        Problems,
    ))]
async fn set_settings(
    State(state): State<AppState>,
    Admin(who): Admin,
    Json(ask): Json<SetSettings>,
) -> ApiResult<Json<Account>> {
    operator(&who)?;
    settle(&state, who.account, &ask.settings).await
}

async fn settle(
    state: &AppState,
    account: AccountId,
    settings: &Map<String, Value>,
) -> ApiResult<Json<Account>> {
    AccountSettings::check(settings)?;
    let accounts = &state.services().stores.accounts;
    accounts.set_settings(account, settings).await?;
    state.services().accounts.forget(account);
    Ok(Json(accounts.get(account).await?))
}

/// All keys of the account, revoked ones too, oldest first.
#[utoipa::path(get, path = "/keys", tag = "accounts", operation_id = "list_keys",
    security(("key" = ["admin"])),
    responses(
        (status = 200, body = List<ApiKey>),
        Problems,
    ))]
async fn list_keys(State(state): State<AppState>, Admin(who): Admin) -> ApiResult<Response> {
    let fetch = async { Ok(List { items: state.services().keys.list(who.account).await?, next: None }) };
    lists::value(&state, who.account, KEYS, fetch).await
}

/// A new key. Its secret is in the answer, this once.
#[utoipa::path(post, path = "/keys", tag = "accounts", operation_id = "create_key",
    security(("key" = ["admin"])),
    request_body = CreateKey,
    responses(
        (status = 201, body = NewKey),
        Problems,
    ))]
async fn create_key(
    State(state): State<AppState>,
    Admin(who): Admin,
    Json(ask): Json<CreateKey>,
) -> ApiResult<Response> {
    Ok(shown(StatusCode::CREATED, state.services().keys.create(who.account, &ask).await?))
}

/// A secret, for the caller alone: it is kept nowhere, also not for repeats.
fn shown(status: StatusCode, key: NewKey) -> Response {
    let headers = [(CACHE_CONTROL, HeaderValue::from_static("no-store"))];
    (status, headers, Extension(Secret), Json(key)).into_response()
}

/// From now on the key is worth nothing.
#[utoipa::path(delete, path = "/keys/{key}", tag = "accounts", operation_id = "revoke_key",
    security(("key" = ["admin"])),
    params(("key" = String, Path, description = "The key's id, not its secret")),
    responses(
        (status = 204, description = "It is revoked"),
        Problems,
    ))]
async fn revoke_key(
    State(state): State<AppState>,
    Admin(who): Admin,
    Path(key): Path<KeyId>,
) -> ApiResult<StatusCode> {
    state.services().keys.revoke(who.account, key).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A new key in the place of an old one, which works on for as long as `overlap_s` says.
#[utoipa::path(post, path = "/keys/{key}/rotate", tag = "accounts", operation_id = "rotate_key",
    security(("key" = ["admin"])),
    params(("key" = String, Path, description = "The key's id, not its secret")),
    request_body = Option<RotateKey>,
    responses(
        (status = 200, body = NewKey),
        Problems,
    ))]
async fn rotate_key(
    State(state): State<AppState>,
    Admin(who): Admin,
    Path(key): Path<KeyId>,
    OptionalJson(ask): OptionalJson<RotateKey>,
) -> ApiResult<Response> {
    let overlap = Duration::from_secs(ask.overlap_s.unwrap_or(0));
    Ok(shown(StatusCode::OK, state.services().keys.rotate(who.account, key, overlap).await?))
}

/// Other accounts are the operator's to see: admin keys of the account `local`.
pub fn operator(who: &Identity) -> ApiResult<()> {
    match who.is_operator() {
        true => Ok(()),
        false => Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "operator_only",
            "only admin keys of the account `local` may see to other accounts",
        )),
    }
}

/// All accounts, oldest first. For operators.
#[utoipa::path(get, path = "/accounts", tag = "accounts", operation_id = "list_accounts",
    security(("key" = ["admin"])),
    params(PageQuery),
    responses(
        (status = 200, body = List<Account>),
        Problems,
    ))]
async fn list_accounts(
    State(state): State<AppState>,
    Admin(who): Admin,
    Query(query): Query<PageQuery>,
) -> ApiResult<Response> {
    operator(&who)?;
    let page = extract::page(query.limit, query.after.as_deref())?;
    let fetch = state.services().stores.accounts.list(&page);
    lists::list(&state, who.account, page.limit as usize, fetch).await
}

/// A new account, without a key. For operators.
#[utoipa::path(post, path = "/accounts", tag = "accounts", operation_id = "create_account",
    security(("key" = ["admin"])),
    request_body = CreateAccount,
    responses(
        (status = 201, body = Account),
        Problems,
    ))]
async fn create_account(
    State(state): State<AppState>,
    Admin(who): Admin,
    Json(ask): Json<CreateAccount>,
) -> ApiResult<(StatusCode, Json<Account>)> {
    operator(&who)?;
    let name = ask.name.trim();
    if name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
        let detail = format!("an account needs a name of 1 to {MAX_NAME} bytes, without control characters");
        return Err(ApiError::invalid("invalid_name", detail));
    }
    AccountSettings::check(&ask.settings)?;
    let now = state.services().clock.now();
    let account = Account::new(AccountId::generate(), name.to_owned(), ask.settings, now);
    state.services().stores.accounts.create(&account).await?;
    Ok((StatusCode::CREATED, Json(account)))
}

/// Deletes an account with all that is its own: sandboxes, volumes, versions, conversations, keys, events. It is marked
/// first; what cannot be deleted now is deleted by the server's next rounds. For operators.
#[utoipa::path(delete, path = "/accounts/{id}", tag = "accounts", operation_id = "delete_account",
    security(("key" = ["admin"])),
    params(("id" = String, Path, description = "The account's id")),
    responses(
        (status = 204, description = "It is gone. Deleting it again is fine."),
        (status = 202, description = "It is marked, its keys are refused, and the server goes on deleting."),
        Problems,
    ))]
async fn delete_account(
    State(state): State<AppState>,
    Admin(who): Admin,
    Path(account): Path<AccountId>,
) -> ApiResult<StatusCode> {
    operator(&who)?;
    let services = state.services();
    match services.delete_account(account).await {
        Ok(()) => Ok(StatusCode::NO_CONTENT),
        Err(error) => match services.stores.accounts.get(account).await {
            Ok(found) if found.deleting_at.is_some() => {
                tracing::warn!(%account, error = error.chain(), "an account is not deleted yet");
                Ok(StatusCode::ACCEPTED)
            }
            _ => Err(error.into()),
        },
    }
}

/// Suspends an account: its keys are refused, its turns end, its sandboxes stop once they are saved. For operators.
#[utoipa::path(post, path = "/accounts/{id}/suspend", tag = "accounts", operation_id = "suspend_account",
    security(("key" = ["admin"])),
    params(("id" = String, Path, description = "The account's id")),
    responses(
        (status = 200, body = Account),
        Problems,
    ))]
async fn suspend_account(
    State(state): State<AppState>,
    Admin(who): Admin,
    Path(account): Path<AccountId>,
) -> ApiResult<Json<Account>> {
    operator(&who)?;
    Ok(Json(state.services().suspend_account(account).await?))
}

/// Lets the keys of a suspended account in again. For operators.
#[utoipa::path(post, path = "/accounts/{id}/resume", tag = "accounts", operation_id = "resume_account",
    security(("key" = ["admin"])),
    params(("id" = String, Path, description = "The account's id")),
    responses(
        (status = 200, body = Account),
        Problems,
    ))]
async fn resume_account(
    State(state): State<AppState>,
    Admin(who): Admin,
    Path(account): Path<AccountId>,
) -> ApiResult<Json<Account>> {
    operator(&who)?;
    Ok(Json(state.services().resume_account(account).await?))
}

/// A new key of another account. For operators.
#[utoipa::path(post, path = "/accounts/{id}/keys", tag = "accounts", operation_id = "create_key_of_account",
    security(("key" = ["admin"])),
    params(("id" = String, Path, description = "The account's id")),
    request_body = CreateKey,
    responses(
        (status = 201, body = NewKey),
        Problems,
    ))]
async fn create_key_of(
    State(state): State<AppState>,
    Admin(who): Admin,
    Path(account): Path<AccountId>,
    Json(ask): Json<CreateKey>,
) -> ApiResult<Response> {
    operator(&who)?;
    // A key of nobody would be worth nothing.
    state.services().stores.accounts.get(account).await?;
    Ok(shown(StatusCode::CREATED, state.services().keys.create(account, &ask).await?))
}

/// Replaces all settings of another account. For operators.
#[utoipa::path(put, path = "/accounts/{id}/settings", tag = "accounts", operation_id = "set_settings_of_account",
    security(("key" = ["admin"])),
    params(("id" = String, Path, description = "The account's id")),
    request_body = SetSettings,
    responses(
        (status = 200, body = Account),
        Problems,
    ))]
async fn set_settings_of(
    State(state): State<AppState>,
    Admin(who): Admin,
    Path(account): Path<AccountId>,
    Json(ask): Json<SetSettings>,
) -> ApiResult<Json<Account>> {
    operator(&who)?;
    settle(&state, account, &ask.settings).await
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct AuditQuery {
    /// How many, 1 to 1000; 100 where it is not said.
    limit: Option<usize>,
}

/// The last mutating calls of the account, newest first, as far as the audit file goes back.
#[utoipa::path(get, path = "/audit", tag = "accounts", operation_id = "list_audit",
    security(("key" = ["admin"])),
    params(AuditQuery),
    responses(
        (status = 200, body = List<AuditEntry>),
        Problems,
    ))]
async fn list_audit(
    State(state): State<AppState>,
    Admin(who): Admin,
    Query(query): Query<AuditQuery>,
) -> ApiResult<Response> {
    let limit = query.limit.unwrap_or(AUDIT);
    if !(1..=MAX_AUDIT).contains(&limit) {
        return Err(ApiError::invalid("invalid_query", format!("`limit` is 1 to {MAX_AUDIT}")));
    }
    let fetch = async { Ok(Paged { items: state.audit().last(who.account, limit).await?, next: None }) };
    lists::list(&state, who.account, limit, fetch).await
}
