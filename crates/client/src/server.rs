//! The server itself, its volumes and its database: for operators.

use crate::{Client, Result, call::Repeat};
use reqwest::{Method, Response};
use seawall_api::http::{DatabaseCheck, List, ServerStatus, StopServer, VolumeInfo};

impl Client {
    pub async fn server_status(&self) -> Result<ServerStatus> {
        self.get(&["server"]).answer().await
    }

    /// Returns when the server has heard of it; it stops a while later.
    pub async fn stop_server(&self, ask: &StopServer) -> Result<()> {
        self.change(Method::POST, &["server", "stop"]).repeat(Repeat::Never).json(ask).done().await
    }

    pub async fn volumes(&self) -> Result<List<VolumeInfo>> {
        self.get(&["volumes"]).answer().await
    }

    pub async fn remove_volume(&self, name: &str) -> Result<()> {
        self.change(Method::DELETE, &["volumes", name]).done().await
    }

    pub async fn check_database(&self) -> Result<DatabaseCheck> {
        self.get(&["db", "check"]).answer().await
    }

    /// A copy of the database, whose bytes the caller reads.
    pub async fn backup_database(&self) -> Result<Response> {
        self.get(&["db", "backup"]).open().await
    }
}
