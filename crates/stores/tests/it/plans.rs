//! Every statement of a request has an index: a test reads the plans.

use crate::postgres::{Database, psql};
use seawall_api::AccountId;
use seawall_stores::{
    Db,
    sql::{self, Sql, fill},
};

/// Statements that read a whole table, and why they may.
const WHOLE: [(&str, &str); 2] = [
    ("outbox::WAITING", "a count for operators, of a table that is nearly empty"),
    ("migrate::VERSION", "as many rows as there are versions"),
];

fn is_whole(sql: &Sql) -> bool {
    WHOLE.iter().any(|(name, _)| sql.name.ends_with(name))
}

fn short(sql: &Sql) -> &str {
    sql.name.trim_start_matches("seawall_stores::sql::")
}

#[tokio::test]
async fn sqlite_uses_an_index_for_every_statement() {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::sqlite(&folder.path().join("seawall.db")).await.unwrap();
    fill::conversations(&db, AccountId::generate(), 20_000).await.unwrap();
    let mut bad = Vec::new();
    let statements = sql::statements();
    assert!(statements.len() > 60, "only {} statements", statements.len());
    for sql in statements.into_iter().filter(|sql| !is_whole(sql)) {
        for step in
            sql::plan(&db, sql).await.unwrap_or_else(|error| panic!("{}: {}", sql.name, error.chain()))
        {
            let scans = step.starts_with("SCAN ") && !step.contains("CONSTANT ROW")
                // The values of one call, handed over as a list.
                && !step.contains("json_each VIRTUAL TABLE")
                && !is_ordered(&step);
            if scans || step.contains("TEMP B-TREE FOR ORDER BY") {
                bad.push(format!("{}: {step}", short(sql)));
            }
        }
    }
    assert!(bad.is_empty(), "{bad:#?}");
}

/// In the order of an index, and ended by a limit.
fn is_ordered(step: &str) -> bool {
    step.contains("USING INDEX turns_running") || step.contains("USING COVERING INDEX turns_running")
}

#[test]
fn postgres_has_an_index_for_every_statement() {
    let Some(database) = Database::or_skip("plans::postgres_has_an_index_for_every_statement") else {
        return;
    };
    let open = async { Db::postgres(&database.url).await.unwrap().close().await };
    tokio::runtime::Runtime::new().unwrap().block_on(open);
    let mut bad = Vec::new();
    for sql in sql::statements().into_iter().filter(|sql| !is_whole(sql)) {
        let text = typed(sql);
        let count = (1..=20).rev().find(|number| text.contains(&format!("${number}"))).unwrap_or(0);
        let nulls = vec!["NULL"; count].join(", ");
        let arguments = if count == 0 { String::new() } else { format!("({nulls})") };
        // A table that is read whole although that is forbidden has no index for the statement.
        let script = format!(
            "SET enable_seqscan = off; SET plan_cache_mode = force_generic_plan; PREPARE q AS {text}; EXPLAIN EXECUTE q{arguments}"
        );
        let plan = psql(&database.url, &["-c", &script]).unwrap();
        for line in plan.lines().filter(|line| line.contains("Seq Scan")) {
            bad.push(format!("{}: {}", short(sql), line.trim()));
        }
    }
    assert!(bad.is_empty(), "{bad:#?}");
}

/// By itself PostgreSQL does not know what kind of thing might be missing; seawall tells it with each call.
fn typed(sql: &Sql) -> String {
    let missing = match short(sql) {
        name if name.starts_with("conversations::") => vec![(2, "text"), (3, "text"), (4, "bytea")],
        _ => Vec::new(),
    };
    missing.into_iter().fold(sql.postgres.to_owned(), |text, (number, kind)| {
        text.replace(&format!("${number} IS NULL"), &format!("${number}::{kind} IS NULL"))
    })
}
