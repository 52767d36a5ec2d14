//! Serves the connections of boxes: decides by the path who answers.

use crate::{
    answer::{Answer, Refusal, Shape},
    exchange::Exchange,
    git, models,
    room::Rooms,
    settings::{GatewaySettings, Target},
    upstream,
};
use async_trait::async_trait;
use hyper::{Request, StatusCode, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use reqwest::Client;
use seawall_core::{
    Result,
    agents::ModelApi,
    budget::Budget,
    ports::gateway::{Access, Gateway},
};
use seawall_wire::Duplex;
use std::{convert::Infallible, sync::Arc, time::Duration};

/// What a connection may keep of what was not read yet, and the longest head of a request.
const BUFFER: usize = 128 << 10;

const NOTHING_HERE: &str = "seawall: this port leads to /anthropic/v1/... and /openai/v1/... (models), and to \
                            /git/HOST/PATH (the sandbox's repository). There is nothing else here.";

/// The gateway. Cloning is cheap, and all clones are one.
#[derive(Debug, Clone)]
pub struct HttpGateway(Arc<Inner>);

#[derive(Debug)]
pub struct Inner {
    pub client: Client,
    pub rooms: Rooms,
    anthropic: Target,
    openai: Target,
}

impl HttpGateway {
    pub fn new(settings: GatewaySettings) -> Result<HttpGateway> {
        Ok(HttpGateway(Arc::new(Inner {
            client: upstream::client()?,
            rooms: Rooms::default(),
            anthropic: Target::new(ModelApi::Anthropic, &settings.anthropic)?,
            openai: Target::new(ModelApi::OpenAi, &settings.openai)?,
        })))
    }
}

#[async_trait]
impl Gateway for HttpGateway {
    async fn serve(&self, connection: Box<dyn Duplex>, access: Arc<Access>) {
        let sandbox = access.sandbox;
        let inner = self.0.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let (inner, access) = (inner.clone(), access.clone());
            async move { Ok::<_, Infallible>(inner.answer(request, access).await) }
        });
        let mut server = http1::Builder::new();
        // An agent may keep a connection for its whole turn. How many there are is bounded where they are
        // made.
        server.header_read_timeout(None::<Duration>).max_buf_size(BUFFER);
        if let Err(error) = server.serve_connection(TokioIo::new(connection), service).await {
            // Either side may hang up at any time.
            tracing::debug!(%error, %sandbox, "a connection of a sandbox ended");
        }
    }

    fn check(&self, api: ModelApi) -> Result<()> {
        self.0.target(api).check()
    }

    fn count_in(&self, budget: &Budget) {
        self.0.rooms.count_in(budget);
    }
}

impl Inner {
    pub fn target(&self, api: ModelApi) -> &Target {
        match api {
            ModelApi::Anthropic => &self.anthropic,
            ModelApi::OpenAi => &self.openai,
        }
    }

    async fn answer(&self, request: Request<Incoming>, access: Arc<Access>) -> Answer {
        let path = request.uri().path();
        if beneath(path, "/anthropic").is_some() {
            models::answer(self, access, ModelApi::Anthropic, request).await
        } else if beneath(path, "/openai").is_some() {
            models::answer(self, access, ModelApi::OpenAi, request).await
        } else if beneath(path, "/git").is_some() {
            git::answer(self, access, request).await
        } else {
            let refusal = Refusal::new(StatusCode::NOT_FOUND, NOTHING_HERE);
            Exchange::new(access, "none").refuse(refusal, Shape::Text)
        }
    }
}

/// What follows a prefix, with its slash.
pub fn beneath<'a>(path: &'a str, prefix: &str) -> Option<&'a str> {
    path.strip_prefix(prefix).filter(|rest| rest.starts_with('/'))
}
