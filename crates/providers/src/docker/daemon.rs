//! The connection to a Docker daemon.

use super::address::{self, Address};
use crate::boxes::io_error;
use bollard::{API_DEFAULT_VERSION, BollardRequest, Docker, errors::Error as DockerError};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use seawall_api::ErrorKind;
use seawall_core::{Error, Result};
use std::{fs, path::PathBuf, sync::Arc};
use tokio::sync::OnceCell;

/// How long the daemon may take for one answer, in seconds. Pulling an image streams its answer.
const PATIENCE_SECONDS: u64 = 120;

/// A daemon that is connected to when it is first needed.
#[derive(Debug)]
pub struct Daemon {
    pub address: Address,
    docker: OnceCell<Docker>,
    /// The file with the id of the daemon that has the containers of this installation. It is missing until there are any.
    mark: PathBuf,
}

impl Daemon {
    pub fn new(host: Option<&str>, mark: PathBuf) -> Result<Daemon> {
        Ok(Daemon { address: address::find(host)?, docker: OnceCell::new(), mark })
    }

    /// The client. The version of the API is negotiated with the first use. Fails if the daemon is another one than that
    /// with the containers: they would all seem to be lost.
    pub async fn docker(&self) -> Result<&Docker> {
        self.docker
            .get_or_try_init(|| async {
                let client = self.client().map_err(|error| self.unreachable(error))?;
                let docker = client.negotiate_version().await.map_err(|error| self.unreachable(error))?;
                self.check_identity(&docker).await?;
                Ok(docker)
            })
            .await
    }

    async fn check_identity(&self, docker: &Docker) -> Result<()> {
        let known = fs::read_to_string(&self.mark).unwrap_or_default();
        // Earlier versions wrote an empty file.
        if known.is_empty() || self.identity(docker).await? == known {
            return Ok(());
        }
        let message = format!(
            "the Docker daemon at {} is not the one that has the containers of this data folder; name that one by `host` of \
             section [docker] or DOCKER_HOST; if the daemon is the same and only its folder was moved, remove {}",
            self.address.host,
            self.mark.display()
        );
        Err(Error::unavailable(message).with_code("other_daemon"))
    }

    /// The daemon's id and its folder: several daemons of one machine can have one id.
    async fn identity(&self, docker: &Docker) -> Result<String> {
        let info = docker.info().await.map_err(|error| self.failed("the Docker daemon", error))?;
        Ok(format!("{} {}", info.id.unwrap_or_default(), info.docker_root_dir.unwrap_or_default()))
    }

    /// Whether this installation has made a container. One that has not needs no daemon.
    pub fn is_used(&self) -> bool {
        self.mark.exists()
    }

    /// Notes that this daemon has containers of this installation.
    pub async fn note_use(&self) -> Result<()> {
        let identity = self.identity(self.docker().await?).await?;
        fs::write(&self.mark, identity).map_err(|error| io_error(&self.mark, error))
    }

    fn client(&self) -> std::result::Result<Docker, DockerError> {
        let Address { host, certificates } = &self.address;
        if host.starts_with("unix://") {
            return Docker::connect_with_unix(host, PATIENCE_SECONDS, API_DEFAULT_VERSION);
        }
        match certificates {
            Some(folder) => {
                let [key, cert, ca] = ["key.pem", "cert.pem", "ca.pem"].map(|name| folder.join(name));
                Docker::connect_with_ssl(host, &key, &cert, &ca, PATIENCE_SECONDS, API_DEFAULT_VERSION)
            }
            None => plain(host),
        }
    }

    /// The daemon's address, its version, and its runtimes.
    pub async fn describe(&self) -> Result<String> {
        let info = self.docker().await?.info().await;
        let info = info.map_err(|error| self.failed("the Docker daemon", error))?;
        let mut runtimes: Vec<String> = info.runtimes.unwrap_or_default().into_keys().collect();
        runtimes.sort();
        let version = info.server_version.unwrap_or_default();
        let driver = info.driver.unwrap_or_default();
        Ok(format!(
            "version {version} at {}, storage driver {driver}, runtimes {}",
            self.address.host,
            runtimes.join(", ")
        ))
    }

    /// The daemon's own time, as its events take it.
    pub async fn time(&self) -> Result<String> {
        let info =
            self.docker().await?.info().await.map_err(|error| self.failed("the Docker daemon", error))?;
        let time: Option<jiff::Timestamp> = info.system_time.and_then(|text| text.parse().ok());
        let time = time.ok_or_else(|| Error::internal("the Docker daemon reports no time"))?;
        Ok(format!("{}.{:09}", time.as_second(), time.subsec_nanosecond()))
    }

    /// Returns the reason if the daemon cannot limit the root file system of a container.
    pub async fn no_root_limit(&self) -> Result<Option<String>> {
        let info =
            self.docker().await?.info().await.map_err(|error| self.failed("the Docker daemon", error))?;
        let driver = info.driver.unwrap_or_default();
        let status = info.driver_status.unwrap_or_default();
        let below = status.iter().find(|row| row.first().is_some_and(|key| key == "Backing Filesystem"));
        let below = below.and_then(|row| row.get(1)).map_or("", String::as_str);
        // On XFS the daemon itself checks whether quotas are on.
        Ok(match (driver.as_str(), below) {
            ("overlay2", "xfs") | ("btrfs" | "zfs" | "windowsfilter", _) => None,
            _ => Some(format!(
                "the storage driver {driver} on {below} cannot limit the root file system of a container"
            )),
        })
    }

    fn unreachable(&self, error: DockerError) -> Error {
        let message = format!(
            "the Docker daemon at {} does not answer; is it running, and may this user use it?",
            self.address.host
        );
        Error::new(ErrorKind::Unavailable, message).with_source(error)
    }

    /// Converts the error of a call. `what` names the operation.
    pub fn failed(&self, what: &str, error: DockerError) -> Error {
        let DockerError::DockerResponseServerError { status_code, message } = &error else {
            return match &error {
                DockerError::DockerStreamError { error: message } => {
                    Error::new(ErrorKind::Unavailable, format!("{what}: {message}"))
                }
                _ => self.unreachable(error),
            };
        };
        let kind = match status_code {
            400 => ErrorKind::Invalid,
            401 | 403 => ErrorKind::Denied,
            404 => ErrorKind::NotFound,
            409 => ErrorKind::Conflict,
            _ => ErrorKind::Unavailable,
        };
        Error::new(kind, format!("{what}: the Docker daemon refuses: {}", message.trim()))
    }
}

/// Creates a client over TCP without TLS. Nagle's algorithm is off: it delays the small messages of a wire over exec.
fn plain(host: &str) -> std::result::Result<Docker, DockerError> {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client = Arc::new(Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector));
    let transport = move |request: BollardRequest| {
        let client = client.clone();
        Box::pin(async move { client.request(request).await.map_err(DockerError::from) })
    };
    let address = host.replacen("tcp://", "http://", 1);
    Docker::connect_with_custom_transport(transport, Some(address), PATIENCE_SECONDS, API_DEFAULT_VERSION)
}

/// Whether the daemon reports that something is missing.
pub fn is_missing(error: &DockerError) -> bool {
    has_status(error, 404)
}

/// Whether the daemon reports a conflict, such as a name in use.
pub fn is_conflict(error: &DockerError) -> bool {
    has_status(error, 409)
}

fn has_status(error: &DockerError, code: u16) -> bool {
    matches!(error, DockerError::DockerResponseServerError { status_code, .. } if *status_code == code)
}
