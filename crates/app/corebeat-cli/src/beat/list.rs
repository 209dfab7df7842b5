//! `corebeat beat list`: one line for each group.

use super::{band, connect, groups, number};
use corebeat_command::{Done, Failure, print};
use std::process::ExitCode;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Write one JSON object for each group
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(options: Options) -> Done {
    let groups = groups(&mut connect()?)?;
    if options.json {
        for group in &groups {
            let mut object = serde_json::to_value(group).map_err(Failure::internal)?;
            // A text in octal, as users write a mode: JSON has no octal numbers.
            object["mode"] = format!("{:o}", group.mode).into();
            print(format_args!("{object}\n"))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    print(format_args!(
        "{:>6} {:>6} {:>5} {:>12} {:>10} {:>10}  {:<20} {}\n",
        "owner", "group", "mode", "beats", "rate", "overall", "goal", "processes"
    ))?;
    for g in &groups {
        let pids: Vec<String> = g.pids.iter().map(ToString::to_string).collect();
        print(format_args!(
            "{:>6} {:>6} {:>5o} {:>12} {:>10} {:>10}  {:<20} {}\n",
            g.owner,
            g.group,
            g.mode,
            g.beats,
            number(g.window_rate),
            number(g.global_rate),
            band(&g.goal),
            pids.join(" ")
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}
