//! `corebeat trace cut`: writes a part of a trace.

use super::Input;
use corebeat_command::{Done, Failure, print};
use corebeat_trace::Cut;
use std::io::BufWriter;
use std::path::PathBuf;

#[derive(clap::Args)]
pub struct Options {
    #[command(flatten)]
    input: Input,
    /// Trace to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Start of the part, in seconds from the beginning of the trace
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    from: f64,
    /// End of the part, in seconds from the beginning of the trace
    #[arg(long, value_name = "SECONDS")]
    to: Option<f64>,
    /// Keep only this thread, by its number in the trace; may be repeated
    #[arg(long, value_name = "NUMBER")]
    thread: Vec<u32>,
}

pub(super) fn main(options: &Options) -> Done {
    let to = options.to.unwrap_or(f64::INFINITY);
    // NaN fails both comparisons.
    if !(options.from >= 0.0 && to > options.from) {
        return Err(Failure::usage(
            "--from must be 0 or more, and --to must be greater than --from",
        ));
    }
    let input = &options.input;
    // The output file stays unchanged if the input is not a trace.
    let timeline = input.timeline()?;
    let exists = |&number: &u32| timeline.threads().any(|thread| thread.stream == number);
    if let Some(thread) = options.thread.iter().find(|thread| !exists(thread)) {
        let line = format!(
            "the trace has no thread {thread}; 'corebeat trace info {}' lists its threads",
            input.shown()
        );
        return Err(Failure::usage(line));
    }
    let ns = |seconds: f64| (seconds * 1e9) as u64;
    let cut = Cut::new(input.open_file()?, ns(options.from)..ns(to), &options.thread);
    let cut = cut.map_err(|e| input.failed(e))?;
    let out = input.create(&options.output)?;
    let cut = cut.write(BufWriter::new(out));
    let (packets, ending) = cut.map_err(|e| input.failed_to(Some(&options.output), e))?;
    print(format_args!("{packets} packet{}\n", if packets == 1 { "" } else { "s" }))?;
    input.ended(&ending)
}
