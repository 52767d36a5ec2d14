//! Statements: the same text for both databases, but for a few words.

/// One statement in both dialects. Parameters are `$1`, `$2` …
#[derive(Debug)]
pub struct Sql {
    pub name: &'static str,
    pub sqlite: &'static str,
    pub postgres: &'static str,
}

/// The words that differ.
macro_rules! word {
    // Microseconds, by the database's own clock.
    (sqlite NOW) => {
        "CAST(unixepoch('subsec') * 1000000 AS INTEGER)"
    };
    (postgres NOW) => {
        "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)"
    };
    // Others wait until this transaction has ended. SQLite has one writer at a time anyway.
    (sqlite FOR_UPDATE) => {
        ""
    };
    (postgres FOR_UPDATE) => {
        " FOR UPDATE"
    };
    (sqlite SKIP_LOCKED) => {
        ""
    };
    (postgres SKIP_LOCKED) => {
        " FOR UPDATE SKIP LOCKED"
    };
    (sqlite GREATEST) => {
        "MAX"
    };
    (postgres GREATEST) => {
        "GREATEST"
    };
    (sqlite RANDOM_ID) => {
        "randomblob(16)"
    };
    (postgres RANDOM_ID) => {
        "uuid_send(gen_random_uuid())"
    };
    (sqlite NUMBERS) => {
        "(WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < $2) SELECT i FROM n) AS n"
    };
    (postgres NUMBERS) => {
        "generate_series(1, $2) AS n (i)"
    };
    // The numbers of a list, written as JSON, which is the first parameter.
    (sqlite EACH_NUMBER) => {
        "(SELECT CAST(value AS INTEGER) FROM json_each($1))"
    };
    (postgres EACH_NUMBER) => {
        "(SELECT CAST(value AS BIGINT) FROM json_array_elements_text(CAST(CAST($1 AS TEXT) AS JSON)))"
    };
    ($dialect:ident $text:literal) => {
        $text
    };
}

/// Names statements. With `listed;` in front the test that reads plans knows them: those of requests are.
macro_rules! statement {
    (listed; $($name:ident: $parts:tt;)+) => {
        $crate::sql::statement::statement! { $($name: $parts;)+ }
        pub(super) const ALL: &[&$crate::sql::statement::Sql] = &[$($name),+];
    };
    ($($name:ident: [$($part:tt),+ $(,)?];)+) => {
        $(
            const $name: &$crate::sql::statement::Sql = &$crate::sql::statement::Sql {
                name: concat!(module_path!(), "::", stringify!($name)),
                sqlite: concat!($($crate::sql::statement::word!(sqlite $part)),+),
                postgres: concat!($($crate::sql::statement::word!(postgres $part)),+),
            };
        )+
    };
}

pub(crate) use {statement, word};
