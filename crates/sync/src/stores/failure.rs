//! What a store's errors mean: whether trying again helps, and what to do where it does not.
//!
//! `object_store` gives the status of an answer only as text, and calls most failures generic. So the text is read
//! here, and nowhere else.

use crate::Error;
use object_store::client::{HttpError, HttpErrorKind};
use seawall_api::ErrorKind;
use std::{error::Error as StdError, io, time::Duration};

/// What messages say of a store.
#[derive(Debug, Clone)]
pub struct About {
    pub place: String,
    /// Where its credentials came from; none where it is a folder.
    pub access: Option<String>,
}

/// The store does not take who we are, however it numbers that.
const DENIED: [&str; 11] = [
    "AccessDenied",
    "AuthenticationFailed",
    "AuthorizationHeaderMalformed",
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidIdentityToken",
    "InvalidToken",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
];

/// Two writers were at one key: nothing is decided.
const UNDECIDED: [&str; 2] = ["ConditionalRequestConflict", "OperationAborted"];

impl About {
    pub fn failure(&self, error: object_store::Error) -> Error {
        let text = error.to_string();
        let (kind, why) = (kind(&error, &text), why(&error, &text));
        let place = &self.place;
        let message = match (kind, &self.access) {
            (ErrorKind::NotFound, _) => "there is no such object".to_owned(),
            (ErrorKind::Denied, Some(access)) => format!(
                "{place} refused: {why}; check the credentials, which came from {access}, and what they may do there"
            ),
            (ErrorKind::Denied, None) => {
                format!("{place}: {why}; the user that runs this must be able to read and write there")
            }
            (ErrorKind::Unsupported, _) => format!("{place} cannot do that: {why}"),
            _ => format!("{place}: {why}{}", advice(&error, &text)),
        };
        Error::new(kind, message).with_source(error)
    }

    pub fn silence(&self, after: Duration) -> Error {
        let message = format!("{} did not answer within {} s", self.place, after.as_secs());
        Error::new(ErrorKind::Timeout, message)
    }
}

fn kind(error: &object_store::Error, text: &str) -> ErrorKind {
    use object_store::Error as Told;
    let code = element(text, "Code").unwrap_or_default();
    match error {
        _ if code == "NoSuchBucket" => ErrorKind::Invalid,
        Told::AlreadyExists { .. } | Told::Precondition { .. } if UNDECIDED.contains(&code) => {
            ErrorKind::Unavailable
        }
        Told::AlreadyExists { .. } | Told::Precondition { .. } => ErrorKind::AlreadyExists,
        Told::NotFound { .. } => ErrorKind::NotFound,
        Told::PermissionDenied { .. } | Told::Unauthenticated { .. } => ErrorKind::Denied,
        Told::NotImplemented { .. } | Told::NotSupported { .. } => ErrorKind::Unsupported,
        Told::InvalidPath { .. } | Told::UnknownConfigurationKey { .. } => ErrorKind::Invalid,
        _ => match status(text) {
            Some(status) => of_answer(status, code, text),
            None => of_source(error, text),
        },
    }
}

fn of_answer(status: u16, code: &str, text: &str) -> ErrorKind {
    match status {
        _ if DENIED.contains(&code) || is_about_identity(text) => ErrorKind::Denied,
        401 | 403 => ErrorKind::Denied,
        404 => ErrorKind::NotFound,
        // S3 calls a connection that slept a bad request.
        400 if code == "RequestTimeout" => ErrorKind::Unavailable,
        408 | 409 | 425 | 429 => ErrorKind::Unavailable,
        413 => ErrorKind::TooLarge,
        501 => ErrorKind::Unsupported,
        500.. => ErrorKind::Unavailable,
        _ => ErrorKind::Invalid,
    }
}

/// The machine's own service for credentials answered, not the store.
fn is_about_identity(text: &str) -> bool {
    text.contains(" http://169.254.") && status(text).is_some_and(|status| status < 500)
}

fn of_source(error: &object_store::Error, text: &str) -> ErrorKind {
    if let Some(http) = source::<HttpError>(error) {
        return match http.kind() {
            HttpErrorKind::Timeout => ErrorKind::Timeout,
            _ => ErrorKind::Unavailable,
        };
    }
    if let Some(io) = source::<io::Error>(error) {
        return of_disk(io.kind());
    }
    match is_out_of_range(text) || is_redirect(text) {
        true => ErrorKind::Invalid,
        // Half an answer, or nonsense: the way may be to blame.
        false => ErrorKind::Unavailable,
    }
}

fn of_disk(kind: io::ErrorKind) -> ErrorKind {
    match kind {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => ErrorKind::Denied,
        io::ErrorKind::InvalidFilename | io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory => {
            ErrorKind::Invalid
        }
        io::ErrorKind::Unsupported => ErrorKind::Unsupported,
        // A folder that went because it was empty is made again at the next try.
        _ => ErrorKind::Unavailable,
    }
}

fn is_out_of_range(text: &str) -> bool {
    text.contains("Requested range was invalid") || text.contains("Wanted range starting at")
}

fn is_redirect(text: &str) -> bool {
    text.contains("Received redirect without LOCATION")
}

fn advice(error: &object_store::Error, text: &str) -> &'static str {
    if element(text, "Code") == Some("NoSuchBucket") {
        return "; make the bucket, or check its name and its region";
    }
    if is_redirect(text) || status(text).is_some_and(|status| (300..400).contains(&status)) {
        return "; it is in another region: set AWS_REGION";
    }
    match source::<io::Error>(error).map(io::Error::kind) {
        Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => "; make room there",
        _ => "",
    }
}

/// What the store said, or else the innermost reason.
fn why(error: &object_store::Error, text: &str) -> String {
    let said = |name| element(text, name).map(|said| said.chars().take(200).collect::<String>());
    match (status(text), said("Code"), said("Message")) {
        (Some(status), Some(code), Some(message)) => format!("{status} {code} ({message})"),
        (Some(status), Some(code), None) => format!("{status} {code}"),
        (Some(status), ..) => format!("it answered {status}"),
        (None, ..) => chain(error).last().map(ToString::to_string).unwrap_or_default(),
    }
}

fn status(text: &str) -> Option<u16> {
    let (_, rest) = text.split_once("non-2xx status code: ")?;
    rest.get(..3)?.parse().ok()
}

/// The text of an element of the XML that stores answer with.
fn element<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    rest.split_once("</").map(|(inner, _)| inner.trim())
}

fn chain<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    // Not `error.source()`: a reference is an error too, and would not live long enough.
    std::iter::successors(Some(error), |error| (**error).source())
}

fn source<'a, T: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a T> {
    chain(error).find_map(|error| error.downcast_ref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::Error as Told;

    fn about() -> About {
        About { place: "s3://docs".into(), access: Some("profile `work`".into()) }
    }

    fn generic(text: &str) -> Told {
        Told::Generic { store: "S3", source: text.into() }
    }

    fn answer(status: &str, code: &str) -> Told {
        generic(&format!(
            "Error performing GET http://s3/docs in 3ms - Server returned non-2xx status code: {status}: \
             <?xml version=\"1.0\"?>\n<Error><Code>{code}</Code><Message>Do better.</Message></Error>"
        ))
    }

    #[test]
    fn s10_answers_of_a_store_by_what_to_do() {
        for (status, code, kind) in [
            ("403 Forbidden", "InvalidAccessKeyId", ErrorKind::Denied),
            ("403 Forbidden", "", ErrorKind::Denied),
            ("400 Bad Request", "ExpiredToken", ErrorKind::Denied),
            ("400 Bad Request", "RequestTimeout", ErrorKind::Unavailable),
            ("400 Bad Request", "InvalidArgument", ErrorKind::Invalid),
            ("404 Not Found", "NoSuchBucket", ErrorKind::Invalid),
            ("404 Not Found", "NoSuchKey", ErrorKind::NotFound),
            ("416 Range Not Satisfiable", "InvalidRange", ErrorKind::Invalid),
            ("429 Too Many Requests", "", ErrorKind::Unavailable),
            ("500 Internal Server Error", "InternalError", ErrorKind::Unavailable),
            ("501 Not Implemented", "NotImplemented", ErrorKind::Unsupported),
            ("503 Service Unavailable", "SlowDown", ErrorKind::Unavailable),
        ] {
            assert_eq!(about().failure(answer(status, code)).kind(), kind, "{status} {code}");
        }
    }

    #[test]
    fn s10_a_refusal_names_the_credentials_that_were_used() {
        let error = about().failure(answer("403 Forbidden", "SignatureDoesNotMatch")).to_string();
        assert_eq!(
            error,
            "s3://docs refused: 403 SignatureDoesNotMatch (Do better.); check the credentials, which came from \
             profile `work`, and what they may do there"
        );
    }

    #[test]
    fn a_conflict_that_decides_nothing_is_tried_again() {
        let told =
            |code| Told::AlreadyExists { path: "k".into(), source: Box::new(answer("409 Conflict", code)) };
        assert_eq!(about().failure(told("ConditionalRequestConflict")).kind(), ErrorKind::Unavailable);
        assert_eq!(about().failure(told("BlobAlreadyExists")).kind(), ErrorKind::AlreadyExists);
    }

    #[test]
    fn connections_and_nonsense_may_pass() {
        for (http, kind) in
            [(HttpErrorKind::Connect, ErrorKind::Unavailable), (HttpErrorKind::Timeout, ErrorKind::Timeout)]
        {
            let source = Box::new(HttpError::new(http, io::Error::from(io::ErrorKind::ConnectionRefused)));
            assert_eq!(about().failure(Told::Generic { store: "S3", source }).kind(), kind);
        }
        assert_eq!(about().failure(generic("Got invalid list response: x")).kind(), ErrorKind::Unavailable);
    }

    #[test]
    fn s10_disks_that_are_full_or_closed() {
        let about = About { place: "file:///x".into(), access: None };
        let failure = |kind: io::ErrorKind| {
            let source = Box::new(io::Error::from(kind));
            about.failure(Told::Generic { store: "LocalFileSystem", source })
        };
        let full = failure(io::ErrorKind::StorageFull);
        assert_eq!(full.kind(), ErrorKind::Unavailable);
        assert!(full.to_string().contains("make room"), "{full}");
        let closed = failure(io::ErrorKind::PermissionDenied);
        assert_eq!(closed.kind(), ErrorKind::Denied);
        assert!(closed.to_string().contains("must be able to read and write"), "{closed}");
    }

    #[test]
    fn an_instance_without_a_role_has_no_credentials() {
        let error = generic(
            "Error performing GET http://169.254.169.254/latest/meta-data/iam/security-credentials/ in 1ms - \
             Server returned non-2xx status code: 404 Not Found: ",
        );
        assert_eq!(about().failure(error).kind(), ErrorKind::Denied);
    }
}
