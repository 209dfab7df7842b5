//! `corebeat net header`: the header that boxes in C include.

use crate::failure::{Done, print};
use crate::output::Output;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// A folder for it, where it is named C4SNet.h; standard output if nothing is said
    #[arg(value_name = "DIR")]
    folder: Option<PathBuf>,
}

pub(crate) fn main(options: Options) -> Done {
    match options.folder {
        Some(folder) => Output::create(&folder.join("C4SNet.h"))?.write(corebeat_snet::C_HEADER)?,
        None => print(corebeat_snet::C_HEADER)?,
    }
    Ok(ExitCode::SUCCESS)
}
