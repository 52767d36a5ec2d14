//! Databases of the PostgreSQL that `make test` starts. Each has a name of its own, and goes when it is dropped.

use anyhow::{Context, Result, ensure};
use seawall_api::TurnId;
use std::{io::Write, process::Command};

/// Why there is none, where there is none.
pub const MISSING: &str = "no PostgreSQL: SEAWALL_TEST_POSTGRES is not set (`make test` starts one)";

/// Whether a missing service is a failure.
pub fn is_required() -> bool {
    std::env::var("SEAWALL_TEST_REQUIRE").is_ok_and(|what| what == "all")
}

pub fn is_there() -> bool {
    std::env::var("SEAWALL_TEST_POSTGRES").is_ok()
}

pub struct Database {
    /// Its address.
    pub url: String,
    server: String,
    name: String,
}

impl Database {
    pub fn new() -> Result<Database> {
        let server = std::env::var("SEAWALL_TEST_POSTGRES").context(MISSING)?;
        let name = format!("test_{}", TurnId::generate().as_uuid().simple());
        psql(&server, &["-c", &format!("CREATE DATABASE {name}")])?;
        let (base, options) = server.split_once('?').unwrap_or((&server, ""));
        let (host, _) = base.rsplit_once('/').context("an address with a database")?;
        Ok(Database { url: format!("{host}/{name}?{options}"), server, name })
    }

    /// For a test of the standard harness: where there is no server it is skipped by name.
    #[allow(dead_code)] // The other harness has its own way to skip.
    pub fn or_skip(test: &str) -> Option<Database> {
        if is_there() || is_required() {
            return Some(Database::new().expect("a database"));
        }
        // Not captured, so that it is counted.
        let _ = writeln!(std::io::stderr(), "skipped {test}: {MISSING}");
        None
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let _ = psql(&self.server, &["-c", &format!("DROP DATABASE {} WITH (FORCE)", self.name)]);
    }
}

pub fn psql(url: &str, args: &[&str]) -> Result<String> {
    let ran = Command::new("psql").args(["-qXAt", "-v", "ON_ERROR_STOP=1"]).args(args).arg(url).output()?;
    ensure!(ran.status.success(), "{args:?}: {}", String::from_utf8_lossy(&ran.stderr));
    Ok(String::from_utf8(ran.stdout)?)
}
