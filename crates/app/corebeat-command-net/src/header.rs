//! `corebeat net header`: writes the headers that boxes in C include.

use corebeat_command::{Done, Output, print};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Directory for C4SNet.h and two headers that old boxes include [default: C4SNet.h on standard
    /// output]
    #[arg(value_name = "DIR")]
    folder: Option<PathBuf>,
}

pub(crate) fn main(options: Options) -> Done {
    match options.folder {
        Some(folder) => {
            for (name, text) in corebeat_snet::C_HEADERS {
                Output::create(&folder.join(name))?.write(text)?;
            }
        }
        None => print(corebeat_snet::C_HEADERS[0].1)?,
    }
    Ok(ExitCode::SUCCESS)
}
