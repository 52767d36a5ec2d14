//! The committed document is the code's: drift fails the build.

use std::path::Path;

#[test]
fn the_committed_document_is_what_the_code_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    let now = seawall_server::openapi().to_pretty_json().unwrap() + "\n";
    if std::env::var_os("SEAWALL_WRITE_OPENAPI").is_some() {
        std::fs::write(&path, &now).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == now,
        "docs/openapi.json is not what the code says: write it with `make openapi`, look at the change, commit it"
    );
}

#[test]
fn every_operation_says_who_may_call_it() {
    let document: serde_json::Value =
        serde_json::from_str(&seawall_server::openapi().to_json().unwrap()).unwrap();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            assert!(operation["security"].is_array(), "{method} {path} says nothing of keys");
            assert!(operation["responses"].is_object(), "{method} {path}");
        }
    }
}
