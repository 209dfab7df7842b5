//! `corebeat daemon status`: how the daemon is, and what it cannot do here.

use crate::beat::connect;
use crate::failure::{Done, Failure, print};
use corebeat_wire::host;
use std::process::ExitCode;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// One JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(options: Options) -> Done {
    let (status, _): (host::Status, _) =
        connect()?.call(host::STATUS, &host::Nothing {}, &[]).map_err(Failure::own)?;
    if options.json {
        print(serde_json::to_string(&status).map_err(Failure::own)? + "\n")?;
        return Ok(ExitCode::SUCCESS);
    }
    let host::Status { version, period_ns, steering, clients, programs, groups, claims, notes } = status;
    let steering = if steering { "yes" } else { "no" };
    print(format_args!(
        "version      {version}\nsteering     {steering}\nsamples      each {} ms\n",
        period_ns / 1_000_000
    ))?;
    print(format_args!(
        "connections  {clients}\nprograms     {programs}\ngroups       {groups}\nclaims       {claims}\n"
    ))?;
    notes.iter().try_for_each(|note| print(format_args!("note         {note}\n")))?;
    Ok(ExitCode::SUCCESS)
}
