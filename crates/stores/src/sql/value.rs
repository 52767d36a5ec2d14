//! Values between Rust and the databases: numbers, texts and bytes. Everything else becomes one of these.

use jiff::Timestamp;
use seawall_core::{
    Error, Result,
    ports::store::{Cursor, Page},
};
use serde::{Serialize, de::DeserializeOwned};
use sqlx::{Row as _, postgres::PgRow, sqlite::SqliteRow};
use uuid::Uuid;

/// A parameter.
#[derive(Debug, Clone)]
pub enum Value {
    Int(Option<i64>),
    Text(Option<String>),
    Bytes(Option<Vec<u8>>),
}

/// PostgreSQL has no text with a zero in it, and what a program printed may have.
fn clean(text: String) -> String {
    if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text }
}

impl From<i64> for Value {
    fn from(number: i64) -> Value {
        Value::Int(Some(number))
    }
}

/// Numbers larger than the databases can hold become the largest.
impl From<u64> for Value {
    fn from(number: u64) -> Value {
        Value::Int(Some(i64::try_from(number).unwrap_or(i64::MAX)))
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Value {
        Value::Int(Some(i64::from(number)))
    }
}

impl From<bool> for Value {
    fn from(on: bool) -> Value {
        Value::Int(Some(i64::from(on)))
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Text(Some(clean(text.to_owned())))
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::Text(Some(clean(text)))
    }
}

impl From<Option<&str>> for Value {
    fn from(text: Option<&str>) -> Value {
        Value::Text(text.map(str::to_owned).map(clean))
    }
}

impl From<&Option<String>> for Value {
    fn from(text: &Option<String>) -> Value {
        Value::Text(text.clone().map(clean))
    }
}

impl From<&[u8]> for Value {
    fn from(bytes: &[u8]) -> Value {
        Value::Bytes(Some(bytes.to_vec()))
    }
}

impl From<Uuid> for Value {
    fn from(id: Uuid) -> Value {
        Value::Bytes(Some(id.as_bytes().to_vec()))
    }
}

impl From<Timestamp> for Value {
    fn from(time: Timestamp) -> Value {
        Value::Int(Some(time.as_microsecond()))
    }
}

impl From<Option<Timestamp>> for Value {
    fn from(time: Option<Timestamp>) -> Value {
        Value::Int(time.map(Timestamp::as_microsecond))
    }
}

/// An id that may be missing.
pub fn maybe_id(id: Option<impl Into<Uuid>>) -> Value {
    Value::Bytes(id.map(|id| id.into().as_bytes().to_vec()))
}

/// Where a page begins, and one row more than it has.
pub fn page_values(page: &Page, beginning: Cursor) -> [Value; 3] {
    let after = page.after.unwrap_or(beginning);
    [Value::from(after.key), Value::from(after.id.to_be_bytes().as_slice()), Value::from(page.limit + 1)]
}

pub fn id(id: impl Into<Uuid>) -> Value {
    Value::from(id.into())
}

/// How long, as the databases count. An eternity is shortened, so that it can be added to a time.
pub fn micros(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX).min(u64::MAX >> 8)
}

pub fn json(value: &impl Serialize) -> Result<Value> {
    let text = serde_json::to_string(value)
        .map_err(|error| Error::internal("a value that is no JSON").with_source(error))?;
    Ok(Value::from(text))
}

macro_rules! values {
    ($($value:expr),* $(,)?) => { vec![$($crate::sql::value::Value::from($value)),*] };
}
pub(crate) use values;

/// A row of an answer.
#[derive(Debug)]
pub enum Row {
    Sqlite(SqliteRow),
    Postgres(PgRow),
}

macro_rules! get {
    ($self:ident, $index:ident, $kind:ty) => {
        match $self {
            Row::Sqlite(row) => row.try_get::<$kind, _>($index),
            Row::Postgres(row) => row.try_get::<$kind, _>($index),
        }
        .map_err(|error| Error::internal(format!("column {}", $index)).with_source(error))
    };
}

impl Row {
    pub fn int(&self, index: usize) -> Result<i64> {
        get!(self, index, i64)
    }

    pub fn maybe_int(&self, index: usize) -> Result<Option<i64>> {
        get!(self, index, Option<i64>)
    }

    /// A count. What is below zero is none of ours.
    pub fn count(&self, index: usize) -> Result<u64> {
        u64::try_from(self.int(index)?).map_err(|error| broken(index).with_source(error))
    }

    pub fn flag(&self, index: usize) -> Result<bool> {
        Ok(self.int(index)? != 0)
    }

    pub fn text(&self, index: usize) -> Result<String> {
        get!(self, index, String)
    }

    pub fn maybe_text(&self, index: usize) -> Result<Option<String>> {
        get!(self, index, Option<String>)
    }

    pub fn bytes(&self, index: usize) -> Result<Vec<u8>> {
        get!(self, index, Vec<u8>)
    }

    pub fn maybe_bytes(&self, index: usize) -> Result<Option<Vec<u8>>> {
        get!(self, index, Option<Vec<u8>>)
    }

    pub fn time(&self, index: usize) -> Result<Timestamp> {
        to_time(index, self.int(index)?)
    }

    pub fn maybe_time(&self, index: usize) -> Result<Option<Timestamp>> {
        get!(self, index, Option<i64>)?.map(|micros| to_time(index, micros)).transpose()
    }

    pub fn id<I: TryFrom<Uuid>>(&self, index: usize) -> Result<I> {
        to_id(index, &self.bytes(index)?)
    }

    pub fn maybe_id<I: TryFrom<Uuid>>(&self, index: usize) -> Result<Option<I>> {
        self.maybe_bytes(index)?.map(|bytes| to_id(index, &bytes)).transpose()
    }

    pub fn json<T: DeserializeOwned>(&self, index: usize) -> Result<T> {
        serde_json::from_str(&self.text(index)?).map_err(|error| broken(index).with_source(error))
    }

    pub fn word<T: std::str::FromStr>(&self, index: usize) -> Result<T> {
        self.text(index)?.parse().map_err(|_| broken(index))
    }
}

fn to_time(index: usize, micros: i64) -> Result<Timestamp> {
    Timestamp::from_microsecond(micros).map_err(|error| broken(index).with_source(error))
}

fn to_id<I: TryFrom<Uuid>>(index: usize, bytes: &[u8]) -> Result<I> {
    let uuid = Uuid::from_slice(bytes).map_err(|error| broken(index).with_source(error))?;
    I::try_from(uuid).map_err(|_| broken(index))
}

/// Somebody else wrote it, or the disk is damaged.
fn broken(index: usize) -> Error {
    Error::internal(format!("column {index} of a row holds what seawall never wrote; run `seawall db check`"))
}
