//! Start of the guest: arguments, then what they ask for.

use seawall_guest::{boxed, config::Config, config::Part, daemon, init};
use std::process::ExitCode;

fn main() -> ExitCode {
    let part = match Config::from_args(std::env::args_os().skip(1)) {
        Ok(part) => part,
        Err(message) => {
            seawall_guest::say!("{message}");
            return ExitCode::from(2);
        }
    };
    let result = match part {
        Part::Version => {
            println!("seawall-guest {}", env!("CARGO_PKG_VERSION"));
            Ok(())
        }
        Part::Launcher => boxed::launcher(),
        Part::Guest(config) if config.daemon => daemon::run(config),
        Part::Guest(config) => init::run(config, init::Given::default(), Box::new(|| Ok(()))),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            seawall_guest::say!("{error}");
            ExitCode::FAILURE
        }
    }
}
