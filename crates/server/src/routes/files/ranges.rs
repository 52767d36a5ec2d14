//! Which part of a file a request wants, and whether it has it already (RFC 9110, 13 and 14).

use axum::http::{HeaderMap, header::IF_NONE_MATCH};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    Whole,
    Part(Range),
}

/// From the first byte to the last, both of them in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) first: u64,
    pub(super) last: u64,
}

impl Range {
    pub(super) fn length(&self) -> u64 {
        self.last - self.first + 1
    }
}

/// What a `Range` header means for a file of this size, which is not empty. Several ranges, and units that are not
/// bytes, are not known here, and then the whole is the answer. None: there is no such part.
pub(super) fn parse(asked: &str, size: u64) -> Option<Wanted> {
    let Some((unit, ranges)) = asked.split_once('=') else { return Some(Wanted::Whole) };
    if !unit.trim().eq_ignore_ascii_case("bytes") || ranges.contains(',') {
        return Some(Wanted::Whole);
    }
    let Some((first, last)) = ranges.trim().split_once('-') else { return Some(Wanted::Whole) };
    let range = match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => Range { first, last: last.min(size - 1) },
        (Some(first), None) if last.trim().is_empty() => Range { first, last: size - 1 },
        (None, Some(0)) if first.trim().is_empty() => return None,
        (None, Some(count)) if first.trim().is_empty() => {
            Range { first: size.saturating_sub(count), last: size - 1 }
        }
        // What makes no sense is ignored, as the standard wants it.
        _ => return Some(Wanted::Whole),
    };
    (range.first < size).then_some(Wanted::Part(range))
}

fn number(text: &str) -> Option<u64> {
    let text = text.trim();
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    // More than fits is behind every end.
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

/// Whether the request says that it has what has this tag.
pub(super) fn is_known(headers: &HeaderMap, tag: &str) -> bool {
    let known = headers.get_all(IF_NONE_MATCH).into_iter().filter_map(|value| value.to_str().ok());
    known.flat_map(|value| value.split(',')).any(|known| {
        let known = known.trim();
        known == "*" || known.strip_prefix("W/").unwrap_or(known) == tag
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn part(first: u64, last: u64) -> Option<Wanted> {
        Some(Wanted::Part(Range { first, last }))
    }

    #[test]
    fn v4_ranges_have_two_ends_or_one() {
        for (asked, is) in [
            ("bytes=0-0", part(0, 0)),
            ("bytes=2-5", part(2, 5)),
            ("Bytes = 2-5", part(2, 5)),
            ("bytes=2-", part(2, 9)),
            ("bytes=-3", part(7, 9)),
            ("bytes=-300", part(0, 9)),
            ("bytes=9-99999999999999999999999", part(9, 9)),
        ] {
            assert_eq!(parse(asked, 10), is, "{asked}");
        }
    }

    #[test]
    fn v4_a_range_behind_the_end_is_none() {
        for asked in ["bytes=10-", "bytes=10-20", "bytes=-0", "bytes=99999999999999999999999-"] {
            assert_eq!(parse(asked, 10), None, "{asked}");
        }
    }

    #[test]
    fn v4_what_is_no_single_range_is_the_whole() {
        for asked in
            ["", "bytes", "bytes=", "bytes=-", "bytes=a-b", "bytes=5-2", "bytes=0-1,3-4", "lines=1-2"]
        {
            assert_eq!(parse(asked, 10), Some(Wanted::Whole), "{asked}");
        }
    }

    #[test]
    fn v4_tags_are_compared_one_by_one() {
        let mut headers = HeaderMap::new();
        assert!(!is_known(&headers, "\"a\""));
        headers.insert(IF_NONE_MATCH, HeaderValue::from_static("\"b\", W/\"a\""));
        assert!(is_known(&headers, "\"a\"") && !is_known(&headers, "\"c\""));
        headers.insert(IF_NONE_MATCH, HeaderValue::from_static("*"));
        assert!(is_known(&headers, "\"c\""));
    }
}
