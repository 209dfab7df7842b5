//! `corebeat net header`: the headers that boxes in C include.

use crate::failure::{Done, print};
use crate::output::Output;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// A folder for C4SNet.h, and for two headers that old boxes include; if nothing is said, C4SNet.h alone goes to standard
    /// output
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
