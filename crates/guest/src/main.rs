//! Start of the guest: arguments, then what they ask for.

use seawall_guest::{boxed, config::Config, config::Part, container, daemon, init, sudo};
use std::{ffi::OsStr, path::Path, process::ExitCode};

fn main() -> ExitCode {
    let mut args = std::env::args_os();
    if args.next().is_some_and(|name| Path::new(&name).file_name() == Some(OsStr::new("sudo"))) {
        let code = sudo::applet::run(args.map(|arg| arg.to_string_lossy().into_owned()));
        return ExitCode::from((code & 0xff) as u8);
    }
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
        Part::Bridge => container::bridge(),
        Part::Guest(config) if config.container => match container::run(*config) {
            Ok(code) => return ExitCode::from(code),
            Err(error) => Err(error),
        },
        Part::Guest(config) if config.daemon => daemon::run(*config),
        Part::Guest(config) => init::run(*config, init::Given::default(), Box::new(|| Ok(()))).map(drop),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            seawall_guest::say!("{error}");
            ExitCode::FAILURE
        }
    }
}
