//! What fuzz targets do with bytes of a client: headers of previews, ranges, and places in lists.
//!
//! Each function panics where a promise is broken, and returns otherwise. `fuzz/` runs them on whatever libFuzzer
//! makes, and `tests/fuzz.rs` on the corpora that are kept there. Whole requests are in `tests/fuzz/requests.rs`.

pub use crate::routes::{previews, ranges};

use crate::extract::{PageQuery, page};
use axum::{extract::Query, http::Uri};
use seawall_core::ports::store::{Cursor, MAX_PAGE};

/// The query of a list: a page that is let through has a size, and its place survives the way to a client and back.
pub fn queries(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(cursor) = text.parse::<Cursor>() {
        assert!(cursor.to_string().parse::<Cursor>().is_ok_and(|again| again == cursor));
    }
    let Ok(uri) = format!("/?{text}").parse::<Uri>() else { return };
    let Ok(Query(PageQuery { limit, after })) = Query::try_from_uri(&uri) else { return };
    let Ok(page) = page(limit, after.as_deref()) else { return };
    assert!((1..=MAX_PAGE).contains(&page.limit));
    let told = page.after.map(|after| after.to_string());
    assert_eq!(told.and_then(|next| next.parse().ok()), page.after);
}
