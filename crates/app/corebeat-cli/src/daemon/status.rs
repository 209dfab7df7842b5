//! `corebeat daemon status`: the status of the daemon, and its limitations on this host.

use crate::beat::connect;
use corebeat_command::{Done, Failure, print, printable};
use corebeat_wire::host;
use std::process::ExitCode;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Write one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(options: Options) -> Done {
    let (status, _): (host::Status, _) =
        connect()?.call(host::STATUS, &host::Nothing {}, &[]).map_err(Failure::internal)?;
    if options.json {
        print(serde_json::to_string(&status).map_err(Failure::internal)? + "\n")?;
        return Ok(ExitCode::SUCCESS);
    }
    let host::Status {
        version,
        period_ns,
        steering,
        clients,
        programs,
        groups,
        claims,
        steered,
        notes,
    } = status;
    let steering = if steering { "yes" } else { "no" };
    print(format_args!(
        "version      {version}\nsteering     {steering}\nsamples      every {} ms\n",
        period_ns / 1_000_000
    ))?;
    print(format_args!(
        "connections  {clients}\nprograms     {programs}\ngroups       {groups}\nclaims       {claims}\n"
    ))?;
    for host::Steered { pid, name, policy, changes } in steered {
        let changes = if changes.is_empty() { "no changes".into() } else { changes.join(", ") };
        print(format_args!("steered      {pid} {}, {policy}: {changes}\n", printable(&name)))?;
    }
    notes.iter().try_for_each(|note| print(format_args!("note         {note}\n")))?;
    Ok(ExitCode::SUCCESS)
}
