//! `corebeat report`: what happened on this host in a period, from the history of the daemon.

use corebeat_command::{Done, Failure, Output, print, require_distinct};
use corebeat_history::{Error, FILE, Period, Report, read};
use corebeat_linux::state_dir;
use corebeat_web::{Machine, parse_utc, utc};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Begin at this time: some time ago, such as 90s, 30m, 1h or 1d, or in UTC, such as
    /// 2026-11-26T10:00Z
    #[arg(
        long, value_name = "TIME", default_value = "1h", value_parser = moment,
        allow_hyphen_values = true
    )]
    since: Moment,
    /// End at this time [default: now]
    #[arg(long, value_name = "TIME", value_parser = moment, allow_hyphen_values = true)]
    until: Option<Moment>,
    /// Report only programs of this name, with their heartbeats, claims and decisions
    #[arg(long, value_name = "NAME")]
    program: Option<String>,
    /// Write one JSON object
    #[arg(long)]
    json: bool,
    /// Write a page for browsers to this file, and print no table
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Folder of the history [default: as of 'corebeat daemon --history']
    #[arg(long, value_name = "DIR")]
    history: Option<PathBuf>,
}

/// A time, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    Ago(u64),
    Unix(u64),
}

impl Moment {
    fn unix_ms(self, now_ms: u64) -> u64 {
        match self {
            Moment::Ago(seconds) => now_ms.saturating_sub(seconds.saturating_mul(1000)),
            Moment::Unix(seconds) => seconds.saturating_mul(1000),
        }
    }
}

fn moment(text: &str) -> Result<Moment, String> {
    let unix = parse_utc(text).and_then(|seconds| u64::try_from(seconds).ok()).map(Moment::Unix);
    let ago = || {
        let units = [('s', 1), ('m', 60), ('h', 3600), ('d', 86_400)];
        let (number, unit_s) =
            units.iter().find_map(|(unit, seconds)| Some((text.strip_suffix(*unit)?, *seconds)))?;
        let is_number = number.bytes().all(|b| b.is_ascii_digit());
        let number: u64 = number.parse().ok().filter(|_| is_number)?;
        Some(Moment::Ago(number.saturating_mul(unit_s)))
    };
    unix.or_else(ago).ok_or_else(|| {
        "write a time ago such as 90s, 30m, 1h or 1d, or a time in UTC such as 2026-11-26T10:00Z"
            .into()
    })
}

pub(crate) fn main(options: Options) -> Done {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_ms = now.as_millis() as u64;
    let from_ms = options.since.unix_ms(now_ms);
    let to_ms = options.until.map_or(now_ms, |until| until.unix_ms(now_ms));
    if from_ms >= to_ms {
        let [from, to] = [from_ms, to_ms].map(|ms| utc(ms as f64 / 1000.0));
        return Err(Failure::usage(format!(
            "the period from {from} to {to} is empty; write an earlier time with --since"
        )));
    }
    let dir = options.history.map_or_else(state_dir, Ok)?;
    let history = dir.join(FILE);
    require_distinct([Some(&history), options.html.as_ref()].into_iter().flatten())?;
    let html = options.html.as_deref().map(Output::create_with_cleanup).transpose()?;
    let recorded = read(&dir, from_ms.saturating_add(1), to_ms).map_err(|e| match e {
        Error::Missing { .. } | Error::File { .. } => Failure::usage(e),
        Error::Damaged { .. } => Failure::data(e),
        Error::InUse { .. } | Error::Locked { .. } => Failure::internal(e),
    })?;
    let report =
        Report::of(&recorded, Period { from_ms, to_ms, now_ms }, options.program.as_deref());
    let json = || serde_json::to_value(&report).map_err(Failure::internal);
    if options.json {
        print(format_args!("{}\n", json()?))?;
    } else if html.is_none() {
        print(&report)?;
    }
    if let Some(file) = html {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let page = report.page(host, Machine::of_host(), Some(json()?));
        file.write(&page.file_page().map_err(Failure::internal)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_some_time_ago_or_in_utc() {
        for (text, expected) in [
            ("90s", Moment::Ago(90)),
            ("30m", Moment::Ago(1800)),
            ("1d", Moment::Ago(86_400)),
            ("1970-01-01T00:01Z", Moment::Unix(60)),
        ] {
            assert_eq!(moment(text), Ok(expected), "{text}");
        }
        for bad in ["", "h", "-1h", "+1h", "1.5h", "1w", "60", "99999999999999999999s", "now"] {
            assert!(moment(bad).is_err(), "{bad}");
        }
        assert_eq!(Moment::Ago(u64::MAX).unix_ms(5), 0);
        assert_eq!(Moment::Ago(2).unix_ms(5000), 3000);
    }
}
