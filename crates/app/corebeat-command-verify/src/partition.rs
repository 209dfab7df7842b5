//! `corebeat verify partition`.

use crate::model::open;
use crate::print_beside;
use crate::table::{ms, table};
use corebeat_command::{Done, Failure, Output, require_distinct};
use corebeat_verify::{
    Answer, Constraint, FrontPoint, Model, Partition, PartitionOptions, Safety, UnitKind, explain,
    front, front_svg, partition, write_toml,
};
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

/// Options of `corebeat verify partition`.
#[derive(clap::Args)]
pub struct Options {
    /// Model: .amxmi (AMALTHEA), .toml or .csv
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Set the number of cores of a unit, for a model without a table [unit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_024))]
    cores: Option<u64>,
    /// Set the frequency of a unit's cores in MHz, for a model with ticks but no table [unit]
    #[arg(long, value_name = "MHZ", requires = "cores",
          value_parser = clap::value_parser!(u64).range(1..=100_000))]
    mhz: Option<u64>,
    /// Count tasks of modes that exclude each other as active together
    #[arg(long)]
    no_mode_sharing: bool,
    /// Permit components of different safety levels on a core, developed at the highest of them
    #[arg(long)]
    lift_safety: bool,
    /// Visit at most N nodes in each branch and bound
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    nodes: u64,
    /// State which constraints forbid one unit less
    #[arg(long)]
    explain: bool,
    /// Print the partitions that no other one exceeds in units, power and latency at once
    #[arg(long, conflicts_with_all = ["explain", "output"])]
    front: bool,
    /// Draw the partitions of --front, as SVG
    #[arg(long, value_name = "FILE", requires = "front")]
    svg: Option<PathBuf>,
    /// Write the model with the cores of the partition, as TOML
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(options: &Options) -> Done {
    let mut model = open(&options.model)?;
    match (options.cores, &model.unit) {
        (Some(_), Some(_)) => {
            let line = "the model defines its unit; leave --cores out";
            return Err(Failure::usage(line));
        }
        (Some(cores), None) => {
            model.unit = Some(UnitKind {
                cores: cores as usize,
                frequency_hz: options.mhz.map(|mhz| mhz * 1_000_000),
                ..UnitKind::default()
            });
        }
        _ => {}
    }
    let output = options.output.as_deref().map(Output::create_with_cleanup).transpose()?;
    require_distinct([&options.model].into_iter().chain(&options.output))?;
    let settings = PartitionOptions {
        shares_modes: !options.no_mode_sharing,
        lifts_safety: options.lift_safety,
        nodes: options.nodes,
    };
    let wrong = |e| Failure::data(format!("{}: {e}", options.model.display()));
    if options.front {
        return print_front(&model, &settings, options);
    }
    let found = partition(&model, &settings).map_err(wrong)?;
    let reasons = match options.explain {
        true => explain(&model, &settings, found.units - 1).map_err(wrong)?,
        false => vec![],
    };
    let written = output.map_or(Ok(()), |file| file.write(&write_toml(&found.apply(&model))));
    let text = match options.json {
        true => json_of(&found, &reasons),
        false => text_of(&model, &found, &reasons, options),
    };
    print_beside(written, text)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints and draws the Pareto front.
fn print_front(model: &Model, settings: &PartitionOptions, options: &Options) -> Done {
    let svg = options.svg.as_deref().map(Output::create_with_cleanup).transpose()?;
    require_distinct([&options.model].into_iter().chain(&options.svg))?;
    let wrong = |e| Failure::data(format!("{}: {e}", options.model.display()));
    let points = front(model, settings).map_err(wrong)?;
    let written = svg.map_or(Ok(()), |file| file.write(&front_svg(&points)));
    if options.json {
        let point = |p: &FrontPoint| {
            json!({
                "units": p.partition.units, "frequency_hz": p.frequency_hz,
                "power_mw": p.power_mw, "latency_ns": p.latency_ns,
                "communication_bytes_s": p.partition.communication,
                "places": p.partition.components.iter().zip(&p.partition.places).map(|(c, place)| {
                    json!({ "name": c.name, "unit": place.unit, "core": place.core })
                }).collect::<Vec<_>>(),
            })
        };
        let text = format!("{}\n", json!(points.iter().map(point).collect::<Vec<_>>()));
        print_beside(written, text)?;
        return Ok(ExitCode::SUCCESS);
    }
    let head = ["units", "MHz", "power", "mean latency", "bytes/s between units"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(points.iter().map(|p| {
        let mhz = p.frequency_hz.map_or("-".into(), |hz| (hz as f64 / 1e6).to_string());
        vec![
            p.partition.units.to_string(),
            mhz,
            format!("{} mW", p.power_mw),
            ms(Some(p.latency_ns)),
            p.partition.communication.to_string(),
        ]
    }));
    let of = if model.chains.is_empty() {
        "response times of the tasks"
    } else {
        "reactions of the chains"
    };
    let text = format!("{}\nlatency: mean of the {of}\n", table(&rows, &[0, 1, 2, 3, 4]));
    print_beside(written, text)?;
    Ok(ExitCode::SUCCESS)
}

/// The name of a safety level.
fn level(safety: Safety) -> &'static str {
    match safety {
        Safety::QM => "QM",
        Safety::A => "A",
        Safety::B => "B",
        Safety::C => "C",
        Safety::D => "D",
    }
}

fn text_of(
    model: &Model,
    found: &Partition,
    reasons: &[(Constraint, Answer)],
    options: &Options,
) -> String {
    let cores = model.unit.as_ref().map_or(1, |unit| unit.cores);
    let mut head: Vec<String> = ["unit", "core", "safety"].map(str::to_owned).to_vec();
    let modes = match options.no_mode_sharing || model.modes.is_empty() {
        true => vec!["use".to_owned()],
        false => model.modes.iter().map(|m| format!("use {m}")).collect(),
    };
    head.extend(modes.clone());
    head.push("components".into());
    let mut rows = vec![head];
    for unit in 0..found.units {
        for core in 0..cores {
            let on_core = || {
                let all = found.components.iter().zip(&found.places);
                all.filter(|(_, p)| p.unit == unit && p.core == core).map(|(c, _)| c)
            };
            let mut levels: Vec<Safety> = on_core().map(|c| c.safety).collect();
            levels.sort_unstable();
            levels.dedup();
            let levels: Vec<&str> = levels.into_iter().map(level).collect();
            // The sum of no numbers is -0.
            let share = |m: usize| on_core().fold(0.0, |sum, c| sum + c.shares[m]) * 100.0;
            let mut row = vec![unit.to_string(), core.to_string(), levels.join(" ")];
            row.extend((0..modes.len()).map(|m| format!("{:.1}%", share(m))));
            row.push(on_core().map(|c| c.name.as_str()).collect::<Vec<_>>().join(" "));
            rows.push(row);
        }
    }
    let numbers: Vec<usize> = (3..3 + modes.len()).collect();
    let mut text = table(&rows, &numbers);
    text += &format!(
        "\n{} components on {} units of {cores} cores; no partition has fewer than {} units\n",
        found.components.len(),
        found.units,
        found.lower_bound
    );
    text += &format!(
        "{} bytes/s between units{}\n",
        found.communication,
        if found.is_least_communication { ", the least with these units" } else { "" }
    );
    for (constraint, answer) in reasons {
        let answer = match answer {
            Answer::Yes => "would suffice",
            Answer::No => "would not suffice",
            Answer::Undecided => {
                "is undecided: --nodes, or the analysis of a core, is at its limit"
            }
        };
        text += &format!("without {}, one unit less {answer}\n", constraint.name());
    }
    text
}

fn json_of(found: &Partition, reasons: &[(Constraint, Answer)]) -> String {
    let component = |(c, p): (&corebeat_verify::Component, &corebeat_verify::Place)| {
        json!({
            "name": c.name, "unit": p.unit, "core": p.core, "safety": level(c.safety),
            "memory_bytes": c.memory_bytes, "shares": c.shares,
        })
    };
    let reason = |(constraint, answer): &(Constraint, Answer)| {
        let suffices = match answer {
            Answer::Yes => Some(true),
            Answer::No => Some(false),
            Answer::Undecided => None,
        };
        json!({ "without": constraint.name(), "one_unit_less_suffices": suffices })
    };
    let all = json!({
        "units": found.units, "lower_bound": found.lower_bound,
        "communication_bytes_s": found.communication,
        "least_communication": found.is_least_communication,
        "components": found.components.iter().zip(&found.places).map(component).collect::<Vec<_>>(),
        "explanation": reasons.iter().map(reason).collect::<Vec<_>>(),
    });
    format!("{all}\n")
}
