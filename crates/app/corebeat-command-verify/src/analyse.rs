//! `corebeat verify analyse`.

use crate::model::{mode, notes, notes_json, open, with_contention};
use crate::print_beside;
use crate::table::{ms, table};
use corebeat_command::{Done, Failure, Output, require_distinct};
use corebeat_verify::{Method, Model, Report, TaskResult, Verdict, analyse, response_svg};
use serde_json::json;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

/// Options of `corebeat verify analyse`.
#[derive(clap::Args)]
pub struct Options {
    /// Model: .amxmi (AMALTHEA), .toml or .csv
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Assume that cores wait for each other at memories, in turns (round robin)
    #[arg(long)]
    contention: bool,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
    /// Draw response times beside deadlines, as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Exit status of an answer.
pub(crate) fn status(verdict: Verdict) -> ExitCode {
    if verdict == Verdict::Schedulable { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

pub(crate) fn main(options: &Options) -> Done {
    let model = with_contention(open(&options.model)?, options.contention);
    let svg = options.svg.as_deref().map(Output::create_with_cleanup).transpose()?;
    require_distinct([&options.model].into_iter().chain(&options.svg))?;
    let report = analyse(&model);
    let written = svg.map_or(Ok(()), |file| file.write(&response_svg(&model, &report)));
    let text = match options.json {
        true => json_of(&model, &report),
        false => text_of(&model, &report),
    };
    print_beside(written, text)?;
    Ok::<_, Failure>(status(report.verdict))
}

fn text_of(model: &Model, report: &Report) -> String {
    let core = |t: &TaskResult| t.core.map_or("-".into(), |c| model.cores[c].name.clone());
    let strings = |row: &[&str]| row.iter().map(|&cell| cell.to_owned()).collect::<Vec<_>>();
    let of_mode = |m| mode(model, m).map_or("-".into(), Clone::clone);
    let mut rows = vec![strings(&[
        "task", "core", "mode", "worst", "response", "deadline", "figure", "verdict",
    ])];
    for t in &report.tasks {
        let figure = match (t.response_ns, t.is_exact, t.is_bound) {
            (None, ..) => "-",
            (_, true, _) => "exact",
            (_, _, true) => "bound",
            _ => "partial",
        };
        let name = model.tasks[t.task].name.clone();
        let (worst, response, deadline) = (ms(t.worst_ns), ms(t.response_ns), ms(t.deadline_ns));
        let verdict = t.verdict.name().to_owned();
        rows.push(vec![
            name,
            core(t),
            of_mode(t.mode),
            worst,
            response,
            deadline,
            figure.into(),
            verdict,
        ]);
    }
    let mut text = table(&rows, &[3, 4, 5]);
    let mut rows = vec![strings(&["core", "mode", "use"])];
    rows.extend(report.cores.iter().map(|c| {
        vec![model.cores[c.core].name.clone(), of_mode(c.mode), format!("{:.1}%", c.share * 100.0)]
    }));
    text += &format!("\n{}", table(&rows, &[2]));
    if !report.memories.is_empty() {
        let mut rows = vec![strings(&["memory", "used", "size"])];
        rows.extend(report.memories.iter().map(|m| {
            let memory = &model.memories[m.memory];
            let size = memory.size_bytes.map_or("-".into(), |s| format!("{s} B"));
            let more = if m.is_complete { "" } else { "+" };
            vec![memory.name.clone(), format!("{} B{more}", m.used_bytes), size]
        }));
        text += &format!("\n{}", table(&rows, &[1, 2]));
    }
    if !report.chains.is_empty() {
        let mut rows = vec![strings(&["chain", "mode", "reaction", "age", "verdict"])];
        rows.extend(report.chains.iter().map(|c| {
            let name = model.chains[c.chain].name.clone();
            let (reaction, age) = (ms(c.reaction_ns), ms(c.age_ns));
            vec![name, of_mode(c.mode), reaction, age, c.verdict.name().into()]
        }));
        text += &format!("\n{}", table(&rows, &[2, 3]));
    }
    let sources: BTreeSet<&str> = report
        .tasks
        .iter()
        .filter(|t| t.method != Method::None)
        .map(|t| t.method.source())
        .collect();
    let _ = writeln!(text, "\nmethods: {}", sources.into_iter().collect::<Vec<_>>().join("; "));
    text += &notes(model);
    let reasons = report.tasks.iter().filter(|t| t.verdict != Verdict::Schedulable);
    let mut lines: BTreeSet<String> =
        reasons.map(|t| format!("  {}: {}", model.tasks[t.task].name, t.why)).collect();
    let chains = report.chains.iter().filter(|c| c.verdict != Verdict::Schedulable);
    lines.extend(chains.map(|c| format!("  chain {}: {}", model.chains[c.chain].name, c.why)));
    let memories = report.memories.iter().filter(|m| !m.fits);
    lines.extend(
        memories.map(|m| format!("  memory {} is too small", model.memories[m.memory].name)),
    );
    if !lines.is_empty() {
        text += &format!("\nreasons\n{}\n", lines.into_iter().collect::<Vec<_>>().join("\n"));
    }
    let _ = writeln!(text, "\nverdict: {}", report.verdict.name());
    text
}

fn json_of(model: &Model, report: &Report) -> String {
    let task = |t: &TaskResult| {
        json!({
            "task": model.tasks[t.task].name, "core": t.core.map(|c| &model.cores[c].name),
            "mode": mode(model, t.mode), "worst_ns": t.worst_ns, "response_ns": t.response_ns,
            "deadline_ns": t.deadline_ns, "exact": t.is_exact, "bound": t.is_bound,
            "method": t.method.source(), "verdict": t.verdict.name(), "why": t.why,
        })
    };
    let core = |c: &corebeat_verify::CoreUse| json!({ "core": model.cores[c.core].name, "mode": mode(model, c.mode), "use": c.share });
    let memory = |m: &corebeat_verify::MemoryUse| {
        let memory = &model.memories[m.memory];
        json!({
            "memory": memory.name, "used_bytes": m.used_bytes, "size_bytes": memory.size_bytes,
            "complete": m.is_complete, "fits": m.fits,
        })
    };
    let chain = |c: &corebeat_verify::ChainResult| {
        json!({
            "chain": model.chains[c.chain].name, "mode": mode(model, c.mode),
            "reaction_ns": c.reaction_ns, "age_ns": c.age_ns, "verdict": c.verdict.name(),
            "why": c.why,
        })
    };
    let all = json!({
        "verdict": report.verdict.name(),
        "tasks": report.tasks.iter().map(task).collect::<Vec<_>>(),
        "cores": report.cores.iter().map(core).collect::<Vec<_>>(),
        "memories": report.memories.iter().map(memory).collect::<Vec<_>>(),
        "chains": report.chains.iter().map(chain).collect::<Vec<_>>(),
        "notes": notes_json(model),
    });
    format!("{all}\n")
}
