//! Errors of DynamoDB as ours.

use aws_sdk_dynamodb::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};
use seawall_api::ErrorKind;
use seawall_core::Error;
use std::error::Error as StdError;

/// Anything that the SDK returns.
pub trait Failure: StdError + Send + Sync + 'static {
    fn kind(&self) -> (ErrorKind, &'static str);
}

impl<E> Failure for SdkError<E>
where
    E: ProvideErrorMetadata + StdError + Send + Sync + 'static,
{
    fn kind(&self) -> (ErrorKind, &'static str) {
        let code = self.as_service_error().and_then(ProvideErrorMetadata::code).unwrap_or_default();
        match (self, code) {
            (SdkError::ConstructionFailure(_), _) => {
                (ErrorKind::Invalid, "DynamoDB cannot be asked: check region and credentials")
            }
            (SdkError::TimeoutError(_) | SdkError::DispatchFailure(_) | SdkError::ResponseError(_), _) => {
                (ErrorKind::Unavailable, "DynamoDB cannot be reached now")
            }
            (_, "ResourceNotFoundException") => (ErrorKind::NotFound, "DynamoDB has no such table"),
            (_, code) if code.contains("AccessDenied") || code.contains("UnrecognizedClient") => {
                (ErrorKind::Denied, "DynamoDB refuses these credentials: check what they are allowed to do")
            }
            (_, code)
                if code.contains("Throttl")
                    || code.contains("Throughput")
                    || code.contains("LimitExceeded") =>
            {
                (ErrorKind::Unavailable, "DynamoDB is throttled: raise the table's capacity")
            }
            (_, "InternalServerError" | "ServiceUnavailable") => {
                (ErrorKind::Unavailable, "DynamoDB cannot serve this now")
            }
            _ => (ErrorKind::Internal, "DynamoDB refused a request"),
        }
    }
}

impl Failure for aws_sdk_dynamodb::error::BuildError {
    fn kind(&self) -> (ErrorKind, &'static str) {
        (ErrorKind::Internal, "a request that is not whole")
    }
}

pub fn failed<F: Failure>(failure: F) -> Error {
    let (kind, message) = failure.kind();
    Error::new(kind, message).with_source(DisplayErrorContext(failure).to_string())
}
