//! Answers whose size a caller decides: lists, trees, reports.
//!
//! Bytes of the memory budget are reserved before rows are read, rows are written as JSON piece by piece, and what was reserved
//! is held until the body has been sent. A list ends where it has [`MOST`] bytes: `next` says how it goes on.

use crate::{
    error::{ApiError, ApiResult},
    in_flight::hold,
    state::AppState,
};
use axum::{
    http::{HeaderValue, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use futures::future::BoxFuture;
use seawall_api::AccountId;
use seawall_core::{
    Result,
    budget::Reservation,
    ports::store::{Page, Paged},
};
use serde::Serialize;

/// A list that has more bytes ends.
const MOST: usize = 4 << 20;
/// Bytes of rows that are read at once, or one row that is larger.
const PIECE: u64 = 512 << 10;
/// What a row takes while it is read: as the store has it, parsed, and written.
pub const COPIES: u64 = 3;
/// What a row without texts of a caller's own takes.
const ROW: u64 = 2 << 10;

/// A list whose rows may be large: `sizes` tells how large before `fetch` reads them.
pub async fn gather<'a, T: Serialize>(
    state: &AppState,
    account: AccountId,
    page: Page,
    sizes: impl Fn(Page) -> BoxFuture<'a, Result<Vec<u64>>>,
    fetch: impl Fn(Page) -> BoxFuture<'a, Result<Paged<T>>>,
) -> ApiResult<Response> {
    let (mut list, mut page) = (ListBody::new(state, account), page);
    loop {
        let (count, bytes) = piece(&sizes(page.clone()).await?);
        list.reserve(bytes.saturating_mul(COPIES)).await?;
        let found = fetch(Page { limit: count.min(page.limit), ..page.clone() }).await?;
        list.add(found.items)?;
        let left = page.limit.saturating_sub(count);
        match found.next {
            Some(next) if left > 0 && list.body.len() < MOST => {
                page = Page { limit: left, after: Some(next) }
            }
            next => return list.end(next.map(|next| next.to_string())),
        }
    }
}

/// How many rows are read at once, at least one, and their bytes.
fn piece(sizes: &[u64]) -> (u32, u64) {
    let (mut count, mut bytes) = (0, 0);
    for size in sizes {
        if count > 0 && bytes + size > PIECE {
            break;
        }
        (count, bytes) = (count + 1, bytes + size);
    }
    (count.max(1), bytes + ROW * u64::from(count))
}

/// A list of rows that are small.
pub async fn list<T: Serialize>(
    state: &AppState,
    account: AccountId,
    rows: usize,
    fetch: impl Future<Output = Result<Paged<T>>>,
) -> ApiResult<Response> {
    let mut list = ListBody::new(state, account);
    list.reserve(ROW * rows as u64).await?;
    let found = fetch.await?;
    list.add(found.items)?;
    list.end(found.next.map(|next| next.to_string()))
}

/// A value that may take so many bytes while it is made and written.
pub async fn value<T: Serialize>(
    state: &AppState,
    account: AccountId,
    bytes: u64,
    fetch: impl Future<Output = Result<T>>,
) -> ApiResult<Response> {
    let room = state.budget().reserve(Some(account), bytes).await?;
    let made = fetch.await?;
    let body = serde_json::to_vec(&made).map_err(no_json)?;
    drop(made);
    Ok(answer(body, room))
}

/// A list that is being written.
struct ListBody {
    body: Vec<u8>,
    room: Reservation,
}

/// How a list begins.
const BEGINNING: &[u8] = b"{\"items\":[";

impl ListBody {
    fn new(state: &AppState, account: AccountId) -> ListBody {
        ListBody { body: BEGINNING.to_vec(), room: state.budget().open(Some(account)) }
    }

    /// Bytes for rows that are about to be read, beside what is written.
    async fn reserve(&mut self, rows: u64) -> ApiResult<()> {
        let needed = rows.saturating_add(self.body.capacity() as u64);
        Ok(self.room.grow(needed.saturating_sub(self.room.bytes())).await?)
    }

    /// Writes rows, which are gone then.
    fn add<T: Serialize>(&mut self, items: Vec<T>) -> ApiResult<()> {
        for item in items {
            if self.body.len() > BEGINNING.len() {
                self.body.push(b',');
            }
            serde_json::to_writer(&mut self.body, &item).map_err(no_json)?;
        }
        self.room.shrink_to(self.body.capacity() as u64);
        Ok(())
    }

    fn end(mut self, next: Option<String>) -> ApiResult<Response> {
        self.body.extend_from_slice(b"]");
        if let Some(next) = next {
            self.body.extend_from_slice(b",\"next\":");
            serde_json::to_writer(&mut self.body, &next).map_err(no_json)?;
        }
        self.body.extend_from_slice(b"}");
        Ok(answer(self.body, self.room))
    }
}

/// An answer that gives back what it takes when it has been sent.
fn answer(mut body: Vec<u8>, mut room: Reservation) -> Response {
    body.shrink_to_fit();
    room.shrink_to(body.len() as u64);
    let json = [(CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    hold((json, body).into_response(), room)
}

fn no_json(error: serde_json::Error) -> ApiError {
    tracing::error!(%error, "an answer is no JSON");
    ApiError::internal("the answer cannot be written as JSON; this is a bug")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k5_rows_are_read_in_pieces_and_large_ones_alone() {
        assert_eq!(piece(&[]), (1, 0));
        assert_eq!(piece(&[10, 10, 10]), (3, 30 + 3 * ROW));
        assert_eq!(piece(&[PIECE * 4, 10]), (1, PIECE * 4 + ROW));
        assert_eq!(piece(&[PIECE / 2, PIECE / 2, 1]), (2, PIECE + 2 * ROW));
    }
}
