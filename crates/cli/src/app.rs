//! The composition root: everything that a command needs, wired from the settings.

use crate::{config::Settings, records::FileRecords};
use anyhow::{Context, Result};
use seawall_core::{
    Providers, Sandboxes,
    ports::{Provider, SystemClock},
};
use seawall_providers::{local::LocalProvider, native::NativeProvider};
use std::sync::Arc;

pub struct App {
    pub settings: Settings,
    pub sandboxes: Sandboxes,
    /// Programs read the output.
    pub json: bool,
}

impl App {
    pub fn open(settings: Settings, json: bool) -> Result<App> {
        let data = &settings.data;
        make_data(data).with_context(|| unusable(data))?;
        let records = FileRecords::open(data).with_context(|| unusable(data))?;
        let local = LocalProvider::open(data).with_context(|| unusable(data))?;
        let native = NativeProvider::open(data, settings.native.clone()).with_context(|| unusable(data))?;
        // `mock` is for tests and is not offered here.
        let all: Vec<Arc<dyn Provider>> = vec![Arc::new(native), Arc::new(local)];
        let providers = Providers::new(&settings.provider, all)?;
        let sandboxes = Sandboxes::new(providers, Arc::new(records), Arc::new(SystemClock));
        Ok(App { settings, sandboxes, json })
    }
}

/// Others get through to what is theirs and list nothing; what is in it protects itself.
fn make_data(data: &std::path::Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o711).create(data)
}

fn unusable(data: &std::path::Path) -> String {
    format!(
        "cannot use the data folder {}: see `seawall doctor`, or choose another with --data",
        data.display()
    )
}
