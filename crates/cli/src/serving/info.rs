//! `<data>/server.json`: the description of the server of a data folder. It saves commands a request. Only the locks and the
//! socket prove anything.

use super::environment;
use crate::app::private_file_over;
use anyhow::Result;
use seawall_api::http::ServerInfo;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

const FILE: &str = "server.json";

/// The file's content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Described {
    pub server: ServerInfo,
    /// Whether it answers. Before that it is starting.
    pub is_ready: bool,
    /// Variables that its templates name.
    #[serde(default)]
    pub named: Vec<String>,
    /// The configuration file as it was read.
    #[serde(default)]
    pub stamp: Option<Stamp>,
}

/// Tells versions of a file apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl Stamp {
    pub fn of(file: &Path) -> Option<Stamp> {
        let found = std::fs::metadata(file).ok()?;
        let modified = (found.mtime(), found.mtime_nsec());
        Some(Stamp { device: found.dev(), inode: found.ino(), size: found.size(), modified })
    }
}

impl Described {
    /// `None` where there is none, or one of a version that writes it otherwise.
    pub fn read(data: &Path) -> Option<Described> {
        serde_json::from_slice(&std::fs::read(data.join(FILE)).ok()?).ok()
    }

    pub fn write(&self, data: &Path) -> Result<()> {
        Ok(private_file_over(data, FILE, &serde_json::to_vec(self)?)?)
    }

    pub fn remove(data: &Path) {
        let _ = std::fs::remove_file(data.join(FILE));
    }

    /// How the settings of a command differ from the server's: a line each.
    pub fn differences(&self, config: Option<&PathBuf>) -> Vec<String> {
        let here = environment::compared(std::env::vars_os(), &self.named);
        let mut all = environment::differences(&self.server.environment, &here);
        let shown =
            |file: Option<&str>| file.map_or("no configuration file".to_owned(), |file| format!("`{file}`"));
        let own = config.map(|file| file.display().to_string());
        if own != self.server.config {
            let (own, theirs) = (shown(own.as_deref()), shown(self.server.config.as_deref()));
            all.push(format!("the configuration is {own} here and {theirs} there"));
        } else if let Some(file) = config
            && Stamp::of(file) != self.stamp
        {
            all.push(format!("`{}` was changed after the server had read it", file.display()));
        }
        all
    }
}

/// The environment of this process as a server's settings see it.
pub fn own_environment(named: &[String]) -> BTreeMap<String, String> {
    environment::compared(std::env::vars_os(), named)
}
