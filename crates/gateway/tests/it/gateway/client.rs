//! A box: a client of HTTP/1.1 on one end of a connection, with the gateway at the other.

use crate::gateway::upstream::Upstream;
use seawall_api::{AccountId, ConversationId, SandboxId, TurnId, conversation::Usage};
use seawall_core::{
    agents::ModelApi,
    ports::{
        Clock as _, SystemClock,
        gateway::{Access, Gateway, GitAccess, ModelAccess, Secret},
        store::{Day, Tokens as _},
    },
    testing::MemoryStore,
    tokens::{TokenLedger, TokenLimits},
};
use seawall_gateway::{GatewaySettings, HttpGateway, Upstream as Api};
use std::{sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    task::JoinHandle,
    time::timeout,
};

pub const ANTHROPIC_KEY: &str = "sk-ant-very-secret";
pub const OPENAI_KEY: &str = "sk-proj-very-secret";
pub const MESSAGES: &str = "/anthropic/v1/messages";
pub const RESPONSES: &str = "/openai/v1/responses";

/// The gateway, with both APIs at one address.
pub fn gateway(base_url: &str) -> HttpGateway {
    let api = |key: &str| Api::new(base_url, Some(Secret::new(key)));
    HttpGateway::new(GatewaySettings { anthropic: api(ANTHROPIC_KEY), openai: api(OPENAI_KEY) }).unwrap()
}

pub fn access() -> Access {
    Access {
        account: AccountId::generate(),
        sandbox: SandboxId::generate(),
        conversation: Some(ConversationId::generate()),
        turn: Some(TurnId::generate()),
        models: None,
        git: None,
        meter: Arc::default(),
    }
}

/// May use every model of an API.
pub fn with_models(api: ModelApi) -> Access {
    with_budget(api, &Budget::new(None), AccountId::generate())
}

/// The token budgets of a server.
pub struct Budget {
    pub store: MemoryStore,
    pub ledger: TokenLedger,
    pub limits: TokenLimits,
}

impl Budget {
    pub fn new(per_day: Option<u64>) -> Budget {
        let store = MemoryStore::new();
        let ledger = TokenLedger::new(Arc::new(store.clone()), Arc::new(SystemClock));
        Budget { store, ledger, limits: TokenLimits { per_day, per_month: None } }
    }

    /// What the store has charged the account today.
    pub async fn charged(&self, account: AccountId) -> u64 {
        self.ledger.totals(account).await.unwrap();
        self.store.charge(account, &[], Day::of(SystemClock.now())).await.unwrap().day
    }
}

/// A turn of an account that may use every model of an API.
pub fn with_budget(api: ModelApi, budget: &Budget, account: AccountId) -> Access {
    let turn = TurnId::generate();
    let tokens = budget.ledger.turn(account, turn, budget.limits).unwrap();
    let models = ModelAccess { api, allowed: None, denied: Vec::new(), tokens };
    Access { account, turn: Some(turn), models: Some(models), ..access() }
}

/// May read and push `owner/repo.git` at a server.
pub fn with_git(upstream: &Upstream) -> Access {
    let url = format!("{}/owner/repo.git", upstream.url());
    let git = GitAccess { url, token: Some(Secret::new("ghs_secret")), may_push: true };
    Access { git: Some(git), ..access() }
}

pub fn usage(input_tokens: u64, output_tokens: u64, cache_tokens: u64) -> Usage {
    Usage { input_tokens, output_tokens, cache_tokens }
}

pub struct Client {
    connection: DuplexStream,
    unread: Vec<u8>,
    /// Ends when the gateway has done with the connection.
    pub served: JoinHandle<()>,
    /// How long any answer may take.
    pub patience: Duration,
}

#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The body as JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

impl Client {
    pub fn connect(gateway: &HttpGateway, access: &Arc<Access>) -> Client {
        let (connection, far) = tokio::io::duplex(64 << 10);
        let (gateway, access) = (gateway.clone(), access.clone());
        let served = tokio::spawn(async move { gateway.serve(Box::new(far), access).await });
        Client { connection, unread: Vec::new(), served, patience: Duration::from_secs(30) }
    }

    pub async fn write(&mut self, bytes: &[u8]) {
        self.connection.write_all(bytes).await.unwrap();
    }

    /// `line` is a method and a path; `headers` are lines that each end with CRLF.
    pub async fn send(&mut self, line: &str, headers: &str, body: &str) {
        let length = body.len();
        let head = format!("{line} HTTP/1.1\r\nhost: box\r\ncontent-length: {length}\r\n{headers}\r\n");
        self.write(head.as_bytes()).await;
        self.write(body.as_bytes()).await;
    }

    /// Sends, and reads the whole answer.
    pub async fn ask(&mut self, line: &str, body: &str) -> Reply {
        self.send(line, "", body).await;
        self.reply().await
    }

    pub async fn reply(&mut self) -> Reply {
        let mut reply = self.head().await;
        let mut body = Vec::new();
        match reply.header("content-length") {
            Some(length) => body = self.take(length.parse().unwrap()).await.unwrap(),
            None => {
                while let Some(part) = self.part().await.unwrap() {
                    body.extend_from_slice(&part);
                }
            }
        }
        reply.body = String::from_utf8(body).unwrap();
        reply
    }

    /// The head of an answer.
    pub async fn head(&mut self) -> Reply {
        let first = self.line().await.expect("no answer came");
        let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
        let mut headers = Vec::new();
        loop {
            let line = self.line().await.unwrap();
            let Some((name, value)) = line.split_once(": ") else {
                break;
            };
            headers.push((name.to_ascii_lowercase(), value.to_owned()));
        }
        Reply { status: status.expect(&first), headers, body: String::new() }
    }

    /// The next chunk of an answer; the inner none: it is complete; the outer one: it broke off.
    pub async fn part(&mut self) -> Option<Option<Vec<u8>>> {
        let size = usize::from_str_radix(&self.line().await?, 16).unwrap();
        let mut part = self.take(size + 2).await?;
        part.truncate(size);
        Some((size > 0).then_some(part))
    }

    async fn line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.unread.windows(2).position(|two| two == b"\r\n") {
                let line = self.unread.drain(..end + 2).collect::<Vec<u8>>();
                return Some(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            self.fill().await?;
        }
    }

    async fn take(&mut self, length: usize) -> Option<Vec<u8>> {
        while self.unread.len() < length {
            self.fill().await?;
        }
        Some(self.unread.drain(..length).collect())
    }

    async fn fill(&mut self) -> Option<()> {
        let mut part = [0; 16 << 10];
        let read = timeout(self.patience, self.connection.read(&mut part)).await;
        let read = read.expect("the gateway is silent").ok().filter(|read| *read > 0)?;
        self.unread.extend_from_slice(&part[..read]);
        Some(())
    }

    /// Hangs up, and waits until the gateway has noticed.
    pub async fn hang_up(self) {
        drop(self.connection);
        timeout(self.patience, self.served).await.expect("the gateway goes on").unwrap();
    }

    /// Both ways, for whoever reads while it writes.
    pub fn into_connection(self) -> DuplexStream {
        self.connection
    }
}
