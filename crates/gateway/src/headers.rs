//! Which headers pass, and in which direction.

use hyper::{
    HeaderMap,
    header::{ACCEPT_ENCODING, CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue},
};

/// Of what a box sends to a model: what the agents and the APIs' own libraries send, and an API reads. No credential,
/// nothing that is for a proxy between here and the API (`X-Original-URL`, `Forwarded`, …), nothing that names an
/// organisation or another's request (`Idempotency-Key`), and nothing that is not known.
const TO_MODELS: [&str; 19] = [
    "accept",
    "accept-language",
    "anthropic-beta",
    "anthropic-dangerous-direct-browser-access",
    "anthropic-version",
    "content-type",
    "conversation-id",
    "conversation_id",
    "openai-beta",
    "originator",
    "session-id",
    "session_id",
    "thread-id",
    "thread_id",
    "user-agent",
    "version",
    "x-app",
    "x-client-request-id",
    "x-openai-subagent",
];

const TO_MODELS_PREFIXES: [&str; 3] = ["x-claude-code-", "x-codex-", "x-stainless-"];

/// Of what a box sends to a repository. Not how long it says the body is: what comes is what counts.
const TO_GIT: [&str; 6] =
    ["accept", "accept-language", "content-encoding", "content-type", "git-protocol", "user-agent"];

/// Of what a model API answers. No cookies, and nothing that tells whose the key is.
const FROM_MODELS: [&str; 10] = [
    "cache-control",
    "content-type",
    "openai-model",
    "openai-processing-ms",
    "openai-version",
    "request-id",
    "retry-after",
    "retry-after-ms",
    "x-request-id",
    "x-should-retry",
];

const FROM_MODELS_PREFIXES: [&str; 2] = ["anthropic-ratelimit-", "x-ratelimit-"];

/// Of what a repository answers.
const FROM_GIT: [&str; 7] = [
    "cache-control",
    "content-encoding",
    "content-type",
    "expires",
    "pragma",
    "retry-after",
    "x-github-request-id",
];

pub fn to_models(headers: &HeaderMap) -> HeaderMap {
    let connection = named_by_connection(headers);
    let mut passed = chosen(headers, |name| {
        let known =
            TO_MODELS.contains(&name) || TO_MODELS_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
        known && !connection.iter().any(|named| named == name)
    });
    // What is compressed cannot be counted.
    passed.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    passed
}

pub fn to_git(headers: &HeaderMap) -> HeaderMap {
    let mut passed = chosen(headers, |name| TO_GIT.contains(&name));
    passed.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    passed
}

pub fn from_models(headers: &HeaderMap) -> HeaderMap {
    chosen(headers, |name| {
        FROM_MODELS.contains(&name) || FROM_MODELS_PREFIXES.iter().any(|prefix| name.starts_with(*prefix))
    })
}

pub fn from_git(headers: &HeaderMap) -> HeaderMap {
    chosen(headers, |name| FROM_GIT.contains(&name))
}

pub fn content_type(headers: &HeaderMap) -> Option<&str> {
    text(headers, CONTENT_TYPE)
}

pub fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

fn chosen(headers: &HeaderMap, passes: impl Fn(&str) -> bool) -> HeaderMap {
    let mut passed = HeaderMap::new();
    for (name, value) in headers {
        if passes(name.as_str()) {
            passed.append(name.clone(), value.clone());
        }
    }
    passed
}

/// `Connection` names more headers that are for the next hop alone.
fn named_by_connection(headers: &HeaderMap) -> Vec<String> {
    let values = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(|name| name.trim().to_ascii_lowercase()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(headers: &HeaderMap) -> Vec<&str> {
        let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        names
    }

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for &(name, value) in lines {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers
    }

    /// What proxies and frameworks act upon.
    const FOR_OTHERS: [&str; 47] = [
        "accept-encoding",
        "anthropic-organization-id",
        "api-key",
        "authorization",
        "cf-connecting-ip",
        "client-ip",
        "connection",
        "content-encoding",
        "content-length",
        "cookie",
        "expect",
        "forwarded",
        "host",
        "idempotency-key",
        "keep-alive",
        "max-forwards",
        "openai-organization",
        "openai-project",
        "origin",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "range",
        "referer",
        "te",
        "trailer",
        "transfer-encoding",
        "true-client-ip",
        "upgrade",
        "via",
        "x-api-key",
        "x-cluster-client-ip",
        "x-forwarded",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-prefix",
        "x-forwarded-proto",
        "x-host",
        "x-http-method",
        "x-http-method-override",
        "x-method-override",
        "x-original-host",
        "x-original-url",
        "x-proxyuser-ip",
        "x-real-ip",
        "x-rewrite-url",
        "x-whatever-comes-next",
    ];

    #[test]
    fn nothing_that_a_box_says_of_itself_goes_out() {
        let mut sent: Vec<_> = FOR_OTHERS.iter().map(|name| (*name, "x")).collect();
        sent.extend([
            ("connection", "x-codex-hop, close, Session_ID"),
            ("x-codex-hop", "1"),
            ("session_id", "1"),
            ("anthropic-version", "2023-06-01"),
            ("anthropic-beta", "a"),
            ("anthropic-beta", "b"),
            ("content-type", "application/json"),
        ]);
        let passed = to_models(&headers(&sent));
        assert_eq!(
            names(&passed),
            ["accept-encoding", "anthropic-beta", "anthropic-version", "content-type"]
        );
        assert_eq!(passed[ACCEPT_ENCODING], "identity");
        assert_eq!(passed.get_all("anthropic-beta").iter().count(), 2);
        // To repositories not either.
        assert_eq!(names(&to_git(&headers(&sent))), ["accept-encoding", "content-encoding", "content-type"]);
    }

    #[test]
    fn what_agents_send_goes_out() {
        let sent: Vec<_> = TO_MODELS
            .into_iter()
            .chain([
                "x-stainless-lang",
                "x-stainless-retry-count",
                "x-claude-code-session-id",
                "x-codex-turn-state",
            ])
            .map(|name| (name, "x"))
            .collect();
        assert_eq!(to_models(&headers(&sent)).len(), sent.len() + 1);
    }

    #[test]
    fn git_gets_what_it_needs() {
        let sent = [
            ("authorization", "Basic Ym94"),
            ("git-protocol", "version=2"),
            ("content-encoding", "gzip"),
            ("accept-encoding", "deflate, gzip"),
            ("content-length", "5"),
            ("transfer-encoding", "chunked"),
            ("cookie", "a=b"),
            ("x-anything", "y"),
        ];
        let passed = to_git(&headers(&sent));
        assert_eq!(names(&passed), ["accept-encoding", "content-encoding", "git-protocol"]);
        assert_eq!(passed[ACCEPT_ENCODING], "identity");
    }

    #[test]
    fn answers_carry_nothing_of_the_operator() {
        let answered = headers(&[
            ("set-cookie", "session=1"),
            ("anthropic-organization-id", "org"),
            ("openai-organization", "org"),
            ("openai-project", "proj"),
            ("transfer-encoding", "chunked"),
            ("content-length", "5"),
            ("strict-transport-security", "x"),
            ("content-type", "text/event-stream"),
            ("request-id", "req_1"),
            ("retry-after", "3"),
            ("anthropic-ratelimit-tokens-remaining", "7"),
        ]);
        let expected = ["anthropic-ratelimit-tokens-remaining", "content-type", "request-id", "retry-after"];
        assert_eq!(names(&from_models(&answered)), expected);
        assert_eq!(names(&from_git(&answered)), ["content-type", "retry-after"]);
    }
}
