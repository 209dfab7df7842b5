//! The command `cargo autofuture`.

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    // Cargo starts `cargo-autofuture autofuture ARGUMENTS`.
    let mut args: Vec<_> = std::env::args_os().collect();
    if args.get(1).is_some_and(|arg| arg == "autofuture") {
        args.remove(1);
    }
    match cargo_autofuture::run(&cargo_autofuture::Options::parse_from(args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
