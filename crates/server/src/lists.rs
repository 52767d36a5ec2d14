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
    budget::{MEMORY_BUDGET, Reservation},
    ports::store::{Page, Paged},
};
use serde::Serialize;
use std::io;

/// A list that has more bytes ends.
const MOST: usize = 4 << 20;
/// Bytes of rows that are read at once, or one row that is larger.
const PIECE: u64 = 512 << 10;
/// What a row takes while it is read: as the store has it, and parsed.
const COPIES: u64 = 3;
/// What a row without texts of a caller's own takes.
const ROW: u64 = 2 << 10;
/// How much an answer grows by.
const STEP: u64 = 64 << 10;

/// A list whose rows may be large: `sizes` tells how large before `fetch` reads them.
pub async fn gather<'a, T: Serialize>(
    state: &AppState,
    account: AccountId,
    page: Page,
    sizes: impl Fn(Page) -> BoxFuture<'a, Result<Vec<u64>>>,
    fetch: impl Fn(Page) -> BoxFuture<'a, Result<Paged<T>>>,
) -> ApiResult<Response> {
    let (mut list, mut page) = (ListBody::new(state, account)?, page);
    loop {
        let (count, bytes) = piece(&sizes(page.clone()).await?);
        let rows = state.budget().reserve(Some(account), bytes.saturating_mul(COPIES)).await?;
        let found = fetch(Page { limit: count.min(page.limit), ..page.clone() }).await?;
        let left = page.limit.saturating_sub(count);
        list.add(found.items)?;
        drop(rows);
        match found.next {
            Some(next) if left > 0 && list.body.bytes.len() < MOST => {
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
    (count.max(1), bytes)
}

/// A list of rows that are small.
pub async fn list<T: Serialize>(
    state: &AppState,
    account: AccountId,
    rows: usize,
    fetch: impl Future<Output = Result<Paged<T>>>,
) -> ApiResult<Response> {
    let room = state.budget().reserve(Some(account), ROW * rows as u64).await?;
    let found = fetch.await?;
    let mut list = ListBody::new(state, account)?;
    list.add(found.items)?;
    drop(room);
    list.end(found.next.map(|next| next.to_string()))
}

/// A value that may take so many bytes while it is made.
pub async fn value<T: Serialize>(
    state: &AppState,
    account: AccountId,
    bytes: u64,
    fetch: impl Future<Output = Result<T>>,
) -> ApiResult<Response> {
    let room = state.budget().reserve(Some(account), bytes).await?;
    let made = fetch.await?;
    let mut body = Buffer::new(state.budget().open(Some(account)));
    body.write(&made)?;
    drop((made, room));
    Ok(body.answer())
}

/// A list that is being written.
struct ListBody {
    body: Buffer,
    is_empty: bool,
}

impl ListBody {
    fn new(state: &AppState, account: AccountId) -> ApiResult<ListBody> {
        let mut body = Buffer::new(state.budget().open(Some(account)));
        body.text("{\"items\":[")?;
        Ok(ListBody { body, is_empty: true })
    }

    fn add<T: Serialize>(&mut self, items: Vec<T>) -> ApiResult<()> {
        for item in items {
            if !std::mem::replace(&mut self.is_empty, false) {
                self.body.text(",")?;
            }
            self.body.write(&item)?;
        }
        Ok(())
    }

    fn end(mut self, next: Option<String>) -> ApiResult<Response> {
        match next {
            Some(next) => {
                self.body.text("],\"next\":")?;
                self.body.write(&next)?;
                self.body.text("}")?;
            }
            None => self.body.text("]}")?,
        }
        Ok(self.body.answer())
    }
}

/// JSON that grows within a reservation.
struct Buffer {
    bytes: Vec<u8>,
    room: Reservation,
}

impl Buffer {
    fn new(room: Reservation) -> Buffer {
        Buffer { bytes: Vec::new(), room }
    }

    fn text(&mut self, text: &str) -> ApiResult<()> {
        io::Write::write_all(self, text.as_bytes()).map_err(|_| no_room())
    }

    fn write<T: Serialize>(&mut self, value: &T) -> ApiResult<()> {
        serde_json::to_writer(&mut *self, value).map_err(|error| match error.is_io() {
            true => no_room(),
            false => {
                tracing::error!(%error, "an answer is no JSON");
                ApiError::internal("the answer cannot be written as JSON; this is a bug")
            }
        })
    }

    /// The body, which gives back what it takes when it has been sent.
    fn answer(mut self) -> Response {
        self.bytes.shrink_to_fit();
        self.room.shrink_to(self.bytes.len() as u64);
        let json = [(CONTENT_TYPE, HeaderValue::from_static("application/json"))];
        hold((json, self.bytes).into_response(), self.room)
    }
}

impl io::Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let needed = (self.bytes.len() + bytes.len()) as u64;
        if needed > self.room.bytes() {
            // Growing copies, so that both are there for a moment.
            let more = STEP.max(needed.next_power_of_two() - self.room.bytes());
            if !self.room.try_grow(more) {
                return Err(io::Error::other(MEMORY_BUDGET));
            }
            self.bytes
                .reserve_exact(usize::try_from(self.room.bytes()).unwrap_or(usize::MAX) - self.bytes.len());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn no_room() -> ApiError {
    let detail =
        "the answer does not fit into the memory that this account has on the server now; ask for less";
    ApiError::new(axum::http::StatusCode::TOO_MANY_REQUESTS, MEMORY_BUDGET, detail).retry_after(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k5_rows_are_read_in_pieces_and_large_ones_alone() {
        assert_eq!(piece(&[]), (1, 0));
        assert_eq!(piece(&[10, 10, 10]), (3, 30));
        assert_eq!(piece(&[PIECE * 4, 10]), (1, PIECE * 4));
        assert_eq!(piece(&[PIECE / 2, PIECE / 2, 1]), (2, PIECE));
    }
}
