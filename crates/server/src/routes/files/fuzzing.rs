//! What a fuzz target does with the headers that ask for a part of a file.

use super::ranges::{self, Wanted};
use axum::http::{HeaderMap, HeaderValue, header::IF_NONE_MATCH};

/// The first eight bytes are the size of a file, the rest is a `Range` or an `If-None-Match`: a part lies within the
/// file.
pub fn ranges(data: &[u8]) {
    let Some((size, asked)) = data.split_first_chunk::<8>() else { return };
    let size = u64::from_be_bytes(*size).max(1);
    if let Ok(asked) = std::str::from_utf8(asked)
        && let Some(Wanted::Part(range)) = ranges::parse(asked, size)
    {
        assert!(range.first <= range.last && range.last < size, "{asked}: {range:?} of {size}");
        assert!((1..=size).contains(&range.length()));
    }
    if let Ok(tags) = HeaderValue::from_bytes(asked) {
        let headers = HeaderMap::from_iter([(IF_NONE_MATCH, tags)]);
        // A tag that is not there is not known.
        let known = ranges::is_known(&headers, "\"0a1b2c\"");
        let has = |part: &[u8]| asked.windows(part.len()).any(|window| window == part);
        assert!(!known || has(b"\"0a1b2c\"") || has(b"*"));
    }
}
