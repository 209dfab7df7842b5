//! `corebeat trace cut`.

use super::Input;
use crate::failure::{Done, Failure, print};
use corebeat_trace::{Reader, cut};
use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    input: Input,
    /// The trace to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Seconds from the begin, where the piece begins
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    from: f64,
    /// Seconds from the begin, where it ends
    #[arg(long, value_name = "SECONDS")]
    to: Option<f64>,
    /// Only this thread, by its number in the trace; may be said again for more
    #[arg(long, value_name = "NUMBER")]
    thread: Vec<u32>,
}

pub(crate) fn main(options: &Options) -> Done {
    let to = options.to.unwrap_or(f64::INFINITY);
    // No number is neither.
    if !(options.from >= 0.0 && to > options.from) {
        return Err(Failure::usage("--from is 0 or more, and --to is greater"));
    }
    let input = &options.input;
    let output = &options.output;
    // What is there stays there if this is no trace; the trace itself would be emptied before it is read.
    Reader::new(input.open_file()?).map_err(|e| input.failed(e))?;
    if output.canonicalize().is_ok_and(|o| input.path.canonicalize().is_ok_and(|i| i == o)) {
        return Err(Failure::usage(format!("{} is the trace itself; name another file", output.display())));
    }
    let out = File::create(output)
        .map_err(|e| Failure::usage(format!("cannot write {}: {e}; name another file", output.display())))?;
    let ns = |seconds: f64| (seconds * 1e9) as u64;
    let (packets, ending) =
        cut(input.open_file()?, BufWriter::new(out), ns(options.from)..ns(to), &options.thread)
            .map_err(|e| input.failed(e))?;
    print(format_args!("{packets} packets\n"))?;
    input.ended(&ending)
}
