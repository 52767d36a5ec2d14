//! What is logged, and what never is.

use crate::gateway::{
    client::{Client, MESSAGES, gateway, with_models},
    upstream::Upstream,
};
use seawall_core::agents::ModelApi::Anthropic;
use std::{
    io,
    sync::{Arc, Mutex},
};

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn requests_are_logged_without_what_is_in_them() {
    let lines = Lines::default();
    let writer = lines.clone();
    let log = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    // For this thread: the runtime of this test has no other.
    let guard = tracing::subscriber::set_default(log);
    // Where there is but one subscriber, a thread of another test, which has none, may turn off for all what it is
    // the first to log.
    let _second = tracing::Dispatch::new(tracing_subscriber::fmt().with_writer(io::sink).finish());

    let body = r#"{"content":"an-answer","usage":{"input_tokens":11,"output_tokens":22}}"#;
    let upstream = Upstream::answering("200 OK", "", body).await;
    let access = Arc::new(with_models(Anthropic));
    let mut client = Client::connect(&gateway(&upstream.url()), &access);
    let line = format!("POST {MESSAGES}?token=in-the-query");
    client.send(&line, "x-api-key: of-the-box\r\n", r#"{"model":"some-model","x":"a-prompt"}"#).await;
    assert_eq!(client.reply().await.status, 200);
    assert_eq!(client.ask("POST /anthropic/v1/files?token=in-the-query", "a-prompt").await.status, 404);
    client.hang_up().await;
    drop(guard);

    let log = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    let passed = log.lines().find(|line| line.contains("INFO")).expect(&log);
    let refused = log.lines().find(|line| line.contains("WARN")).expect(&log);
    for line in [passed, refused] {
        for id in [access.sandbox.to_string(), access.account.to_string()] {
            assert!(line.contains(&id), "{line}");
        }
        assert!(line.contains(&access.conversation.unwrap().to_string()), "{line}");
        assert!(line.contains(&access.turn.unwrap().to_string()), "{line}");
        assert!(line.contains("duration_ms="), "{line}");
    }
    for part in ["anthropic/v1/messages", "some-model", "status=200", "input_tokens=11", "output_tokens=22"] {
        assert!(passed.contains(part), "{part}: {passed}");
    }
    assert!(refused.contains("status=404"), "{refused}");
    for secret in ["very-secret", "of-the-box", "in-the-query", "a-prompt", "an-answer"] {
        assert!(!log.contains(secret), "{secret}: {log}");
    }
}
