//! The binary `seawall`.

fn main() -> std::process::ExitCode {
    seawall_cli::main()
}
