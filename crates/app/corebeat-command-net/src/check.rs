//! `corebeat net check`: reports a network's mistakes, or else its signature.

use crate::program::Which;
use crate::remark::Remark;
use corebeat_command::{Done, Failure, print};
use corebeat_snet::Shape;
use corebeat_snet::plan::Net;
use serde::Serialize;
use std::process::ExitCode;

#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    which: Which,
    /// Print JSON, one object per line: remarks, then the network
    #[arg(long)]
    json: bool,
}

/// The signature of a network.
#[derive(Serialize)]
struct Signature {
    net: String,
    input: Vec<String>,
    output: Vec<String>,
    boxes: Vec<String>,
}

pub(crate) fn main(options: Options) -> Done {
    let program = options.which.read()?;
    if options.json {
        for remark in &program.remarks {
            print(line(&Remark::of(remark, &program.text))?)?;
        }
        print(line(&Signature::of(&program.sound()?))?)?;
    } else {
        print(Signature::of(&program.report_remarks()?).text())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn line(data: &impl Serialize) -> Result<String, Failure> {
    Ok(serde_json::to_string(data).map_err(Failure::internal)? + "\n")
}

impl Signature {
    fn of(net: &Net) -> Signature {
        let variants = |shapes: &[Shape]| shapes.iter().map(ToString::to_string).collect();
        Signature {
            net: net.name().to_owned(),
            input: variants(net.input()),
            output: variants(net.output()),
            boxes: net.boxes().iter().map(ToString::to_string).collect(),
        }
    }

    /// The declaration in S-Net, with the boxes below.
    fn text(&self) -> String {
        let mut text = format!(
            "net {} ({} -> {})\n",
            self.net,
            self.input.join(" | "),
            self.output.join(" | ")
        );
        for declared in &self.boxes {
            text += &format!("    box {declared}\n");
        }
        text
    }
}
