//! Lists come in pages. A page begins after what the last one ended with, so that rows which come and go in between
//! make no other row appear twice or not at all. A row whose place changes in between, as in lists by the last change,
//! may itself be shown twice or be missed.

use crate::{Error, Result};
use jiff::Timestamp;
use std::{fmt, str::FromStr};

/// Rows of a page, at the most.
pub const MAX_PAGE: u32 = 1000;

/// Which part of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// At least 1, at most [`MAX_PAGE`].
    pub limit: u32,
    /// What the last page gave; none: from the beginning.
    pub after: Option<Cursor>,
}

impl Page {
    pub fn first(limit: u32) -> Page {
        Page { limit, after: None }
    }

    pub fn after(self, cursor: Cursor) -> Page {
        Page { after: Some(cursor), ..self }
    }

    /// Refuses what is no size of a page.
    pub fn check(&self) -> Result<()> {
        match self.limit {
            1..=MAX_PAGE => Ok(()),
            other => Err(Error::invalid(format!("a page has 1 to {MAX_PAGE} rows, not {other}"))),
        }
    }
}

/// Rows, and where the next page begins; none: there are no more now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paged<T> {
    pub items: Vec<T>,
    pub next: Option<Cursor>,
}

impl<T> Paged<T> {
    /// From one row more than asked for, where there was one.
    pub fn cut(mut items: Vec<T>, limit: u32, place: impl Fn(&T) -> Cursor) -> Paged<T> {
        let limit = limit as usize;
        let more = items.len() > limit;
        items.truncate(limit);
        let next = items.last().filter(|_| more).map(place);
        Paged { items, next }
    }
}

/// The place of a row in a list: what it is sorted by, and its id. For callers it is a word without meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    pub key: i64,
    pub id: u128,
}

impl Cursor {
    /// Before everything, where the oldest comes first.
    pub const OLDEST: Cursor = Cursor { key: i64::MIN, id: 0 };
    /// Before everything, where the newest comes first.
    pub const NEWEST: Cursor = Cursor { key: i64::MAX, id: u128::MAX };

    /// Of what is sorted by a time.
    pub fn at(time: Timestamp, id: u128) -> Cursor {
        Cursor { key: time.as_microsecond(), id }
    }

    /// Of what is sorted by a number of its own.
    pub fn number(number: u64) -> Cursor {
        Cursor { key: number.cast_signed(), id: 0 }
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{:032x}", self.key, self.id)
    }
}

impl FromStr for Cursor {
    type Err = Error;

    fn from_str(text: &str) -> Result<Cursor> {
        let parse = || {
            let (key, id) = text.split_once('-')?;
            let key = u64::from_str_radix(key, 16).ok()?.cast_signed();
            Some(Cursor { key, id: u128::from_str_radix(id, 16).ok()? })
        };
        parse()
            .ok_or_else(|| Error::invalid(format!("`{text}` is no cursor: pass on what the last page gave")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_survive_their_way() {
        for cursor in
            [Cursor { key: 0, id: 0 }, Cursor { key: -5, id: u128::MAX }, Cursor { key: i64::MAX, id: 7 }]
        {
            assert_eq!(cursor.to_string().parse::<Cursor>().unwrap(), cursor);
        }
        for bad in ["", "x", "1", "-", "zz-1", "1-zz"] {
            assert!(bad.parse::<Cursor>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_page_knows_whether_there_are_more() {
        let place = |n: &i64| Cursor { key: *n, id: 0 };
        assert_eq!(Paged::cut(vec![1, 2, 3], 2, place), Paged { items: vec![1, 2], next: Some(place(&2)) });
        assert_eq!(Paged::cut(vec![1, 2], 2, place), Paged { items: vec![1, 2], next: None });
        assert!(Page::first(0).check().is_err() && Page::first(1001).check().is_err());
    }
}
