//! The table of DynamoDB: made in development, otherwise asked for.

use seawall_api::{AccountId, ErrorKind};
use seawall_stores::dynamodb::{DynamoMessages, DynamoSettings};
use std::io::Write;

/// The server of the tests, or why there is none.
fn settings(name: &str, make_table: bool) -> Option<DynamoSettings> {
    let Ok(endpoint) = std::env::var("SEAWALL_TEST_DYNAMODB") else {
        assert!(
            !std::env::var("SEAWALL_TEST_REQUIRE").is_ok_and(|what| what == "all"),
            "there is no DynamoDB"
        );
        // Not captured, so that it is counted.
        let _ = writeln!(
            std::io::stderr(),
            "skipped dynamodb::{name}: no DynamoDB: SEAWALL_TEST_DYNAMODB is not set"
        );
        return None;
    };
    let table = format!("seawall-{}", AccountId::generate().as_uuid().simple());
    Some(DynamoSettings { table, endpoint: Some(endpoint), region: Some("us-east-1".into()), make_table })
}

#[tokio::test]
async fn a_table_that_is_missing_is_asked_for_with_the_exact_command() {
    let name = "a_table_that_is_missing_is_asked_for_with_the_exact_command";
    let Some(settings) = settings(name, false) else { return };
    let refused = DynamoMessages::open(&settings).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    let command = format!("aws dynamodb create-table --table-name {} ", settings.table);
    assert!(refused.to_string().contains(&command), "{refused}");
    assert!(refused.to_string().contains("--region us-east-1 --endpoint-url http"), "{refused}");
}

#[tokio::test]
async fn several_replicas_make_it_once() {
    let Some(settings) = settings("several_replicas_make_it_once", true) else { return };
    let opened = futures::future::join_all((0..4).map(|_| DynamoMessages::open(&settings))).await;
    assert!(opened.iter().all(Result::is_ok), "{opened:?}");
    // From now on it is there.
    DynamoMessages::open(&DynamoSettings { make_table: false, ..settings }).await.unwrap();
}

#[tokio::test]
async fn a_server_that_is_not_there_is_retryable() {
    let settings = DynamoSettings {
        table: "none".into(),
        endpoint: Some("http://127.0.0.1:9".into()),
        region: Some("us-east-1".into()),
        make_table: false,
    };
    if std::env::var("AWS_ACCESS_KEY_ID").is_err() {
        // Not captured, so that it is counted.
        let reason =
            "skipped dynamodb::a_server_that_is_not_there_is_retryable: no credentials in the environment";
        let _ = writeln!(std::io::stderr(), "{reason}");
        return;
    }
    let failed = DynamoMessages::open(&settings).await.unwrap_err();
    assert!(failed.is_retryable(), "{}", failed.chain());
}
