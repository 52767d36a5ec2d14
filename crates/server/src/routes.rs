//! All routes. Handlers extract, call core and map; each says in the document what it takes and answers.

mod accounts;
mod conversations;
mod exec;
mod files;
mod messages;
mod misc;
mod proxy;
mod sandboxes;
mod server;
mod terminals;
mod turns;
mod wire;
mod workspaces;

pub use proxy::is_https;
#[cfg(feature = "fuzzing")]
pub use {files::ranges, proxy::previews};

use crate::state::AppState;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;

/// With a document that already says what the API is.
pub fn all(document: OpenApi) -> OpenApiRouter<AppState> {
    OpenApiRouter::with_openapi(document)
        .merge(conversations::router())
        .merge(turns::router())
        .merge(messages::router())
        .merge(sandboxes::router())
        .merge(exec::router())
        .merge(terminals::router())
        .merge(files::router())
        .merge(workspaces::router())
        .merge(proxy::router())
        .merge(wire::router())
        .merge(accounts::router())
        .merge(misc::router())
        .merge(server::router())
}
