//! The wire over the stdio of a process that the daemon runs in the container. It works with a daemon on another
//! machine, where nothing but the daemon's API reaches the container.

use super::{daemon::Daemon, labels::container_name, program::GUEST_PATH};
use bollard::{
    container::LogOutput,
    exec::{StartExecOptions, StartExecResults},
    models::ExecConfig,
};
use futures::{StreamExt, TryStreamExt};
use seawall_api::SandboxId;
use seawall_core::{Error, Result};
use seawall_wire::Duplex;
use std::io;
use tokio_util::io::StreamReader;

/// How much of the output is read at once.
const CAPACITY: usize = 128 << 10;

/// Connects to the guest of a container that runs.
pub async fn connect(daemon: &Daemon, id: SandboxId) -> Result<Box<dyn Duplex>> {
    let docker = daemon.docker().await?;
    let config = ExecConfig {
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        user: Some("0:0".to_owned()),
        working_dir: Some("/".to_owned()),
        cmd: Some(vec![GUEST_PATH.to_owned(), "--bridge".to_owned()]),
        ..ExecConfig::default()
    };
    let what = format!("connecting to sandbox {id}");
    let failed = |error| daemon.failed(&what, error);
    let exec = docker.create_exec(&container_name(id), config).await.map_err(failed)?;
    let options = StartExecOptions { output_capacity: Some(CAPACITY), ..StartExecOptions::default() };
    match docker.start_exec(&exec.id, Some(options)).await.map_err(failed)? {
        StartExecResults::Attached { output, input } => {
            let output = output.map_err(io::Error::other).map(|part| match part? {
                LogOutput::StdOut { message } => Ok(message),
                other => Err(io::Error::other(format!("the bridge into the container failed: {other}"))),
            });
            Ok(Box::new(tokio::io::join(StreamReader::new(output), input)))
        }
        StartExecResults::Detached => Err(Error::internal("the bridge into a container has no stdio")),
    }
}
