//! `corebeat verify convert`.

use crate::model::{notes, open, with_contention};
use corebeat_command::{Done, Failure, Output, print, print_error, require_distinct};
use corebeat_verify::{write_csv, write_toml};
use std::path::PathBuf;
use std::process::ExitCode;

/// Options of `corebeat verify convert`.
#[derive(clap::Args)]
pub struct Options {
    /// Model: .amxmi (AMALTHEA), .toml or .csv
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Assume that cores wait for each other at memories, in turns (round robin)
    #[arg(long)]
    contention: bool,
    /// Write the model to this file (.toml or .csv) instead of printing TOML
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(crate) fn main(options: &Options) -> Done {
    let is_table = match &options.output {
        None => false,
        Some(path) => match path.extension().and_then(|e| e.to_str()) {
            Some("csv") => true,
            Some("toml") => false,
            _ => {
                let line = format!("{} has no ending .toml or .csv; add one", path.display());
                return Err(Failure::usage(line));
            }
        },
    };
    let model = with_contention(open(&options.model)?, options.contention);
    let text = match is_table {
        true => write_csv(&model)
            .map_err(|e| Failure::data(format!("{}: {e}", options.model.display())))?,
        false => write_toml(&model),
    };
    match &options.output {
        None => print(text)?,
        Some(path) => {
            let output = Output::create_with_cleanup(path)?;
            require_distinct([&options.model, path])?;
            output.write(&text)?;
        }
    }
    print_error(notes(&model));
    Ok(ExitCode::SUCCESS)
}
