//! `corebeat trace cut`.

use super::Input;
use crate::failure::{Done, Failure, print};
use corebeat_trace::Cut;
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
    // What is there stays there if this is no trace.
    let timeline = input.timeline()?;
    let is_there = |&number: &u32| timeline.threads().any(|thread| thread.stream == number);
    if let Some(thread) = options.thread.iter().find(|thread| !is_there(thread)) {
        let line = format!(
            "there is no thread {thread} in there; 'corebeat trace info {}' lists them",
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
