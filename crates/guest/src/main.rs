//! Start of the guest: arguments, then [`seawall_guest::daemon`] or straight to the server.

use seawall_guest::{config::Config, daemon, init};
use std::process::ExitCode;

fn main() -> ExitCode {
    let config = match Config::from_args(std::env::args_os().skip(1)) {
        Ok(Some(config)) => config,
        Ok(None) => {
            println!("seawall-guest {}", env!("CARGO_PKG_VERSION"));
            return ExitCode::SUCCESS;
        }
        Err(message) => {
            seawall_guest::say!("{message}");
            return ExitCode::from(2);
        }
    };
    let result = match config.daemon {
        true => daemon::run(config),
        false => init::run(config, Box::new(|| Ok(()))),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            seawall_guest::say!("{error}");
            ExitCode::FAILURE
        }
    }
}
