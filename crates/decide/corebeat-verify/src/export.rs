//! Drawings as SVG, and traces in BTF and for Perfetto.

use crate::analysis::Report;
use crate::front::FrontPoint;
use crate::model::Model;
use crate::objective::Subject;
use crate::simulation::Activity;
use crate::time::Time;
use crate::witness::Replay;
use corebeat_chrome::{ChromeWriter, Track};
use std::collections::HashSet;
use std::fmt::Write as _;

/// Width of the drawings and of the names at their left, in pixels.
const WIDTH: f64 = 900.0;
const LEFT: f64 = 160.0;
/// Height of a row, in pixels.
const ROW: usize = 22;
/// Largest number of rows of a drawing.
const ROWS_MAX: usize = 500;

/// Text in XML.
fn escape(text: &str) -> String {
    quick_xml::escape::escape(text.chars().filter(|c| !c.is_control()).collect::<String>())
        .into_owned()
}

fn begin(rows: usize) -> String {
    let (w, h) = (LEFT + WIDTH + 20.0, rows * ROW + 60);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w}\" height=\"{h}\" \
         viewBox=\"0 0 {w} {h}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    )
}

fn axis(svg: &mut String, rows: usize, end_ns: u64) {
    for mark in 0..=8 {
        let ns = (u128::from(end_ns) * mark / 8) as u64;
        let x = LEFT + WIDTH * mark as f64 / 8.0;
        let y = rows * ROW + 24;
        let _ = writeln!(
            svg,
            "<path d=\"M{x:.1} 4V{}\" stroke=\"#ccc\"/><text x=\"{x:.1}\" y=\"{}\" \
             text-anchor=\"middle\">{:.3} ms</text>",
            y - 14,
            y + 4,
            ns as f64 / 1e6
        );
    }
}

/// A Gantt chart of a replayed witness: a row for each task, with arrivals as arrows and missed
/// deadlines in red.
pub fn gantt_svg(model: &Model, replay: &Replay) -> String {
    let entries = &replay.system.entries;
    let rows = entries.len().min(ROWS_MAX);
    let end = replay.worst.end_ns.max(1);
    let x = |ns: u64| LEFT + WIDTH * ns.min(end) as f64 / end as f64;
    let mut svg = begin(rows);
    axis(&mut svg, rows, end);
    for (e, entry) in entries.iter().enumerate().take(rows) {
        let name = format!("{} ({})", model.tasks[entry.task].name, model.cores[entry.core].name);
        let is_worst = match replay.worst.subject {
            Subject::Entry(worst) => worst == e,
            Subject::Core(core) => replay.system.group(entry.core).contains(&core),
        };
        let weight = if is_worst { " font-weight=\"bold\"" } else { "" };
        let y = e * ROW + 18;
        let _ = writeln!(svg, "<text x=\"4\" y=\"{y}\"{weight}>{}</text>", escape(&name));
    }
    for span in replay.record.spans.iter().filter(|s| s.entry < rows) {
        let colour = match span.activity {
            Activity::Run => "#4a7ebb",
            Activity::Section => "#2e4d75",
            Activity::Spin => "#e69138",
        };
        let (from, to, y) = (x(span.from_ns), x(span.to_ns), span.entry * ROW + 8);
        let _ = writeln!(
            svg,
            "<rect x=\"{from:.2}\" y=\"{y}\" width=\"{:.2}\" height=\"12\" fill=\"{colour}\"/>",
            (to - from).max(0.3)
        );
    }
    for done in replay.record.completions.iter().filter(|c| c.entry < rows) {
        let (at, y) = (x(done.job.arrival_ns), done.entry * ROW + 6);
        let _ = writeln!(svg, "<path d=\"M{at:.2} {}V{y}\" stroke=\"black\"/>", y + 15);
        let deadline = entries[done.entry].deadline_ns.map(|d| done.job.arrival_ns + d);
        if let Some(deadline) = deadline.filter(|deadline| *deadline < done.end_ns) {
            let (at, y) = (x(deadline), done.entry * ROW + 4);
            let _ = writeln!(
                svg,
                "<path d=\"M{at:.2} {}V{y}\" stroke=\"red\" stroke-width=\"2\"/>",
                y + 18
            );
        }
    }
    svg + "</svg>\n"
}

/// Bars of response times as shares of their deadlines: green if the deadline is met, red if not,
/// grey if it is unknown. A line marks the deadline.
pub fn response_svg(model: &Model, report: &Report) -> String {
    let rows = report.tasks.len().min(ROWS_MAX);
    let mut svg = begin(rows);
    // The deadline is at two thirds of the width.
    let line = LEFT + WIDTH * 2.0 / 3.0;
    for (row, result) in report.tasks.iter().enumerate().take(rows) {
        let task = &model.tasks[result.task];
        let mode = result.mode.map_or(String::new(), |m| format!(", {}", model.modes[m]));
        let y = row * ROW + 18;
        let _ = writeln!(
            svg,
            "<text x=\"4\" y=\"{y}\">{}</text>",
            escape(&(task.name.clone() + &mode))
        );
        let colour = match result.verdict {
            crate::Verdict::Schedulable => "#6aa84f",
            crate::Verdict::Unknown => "#999999",
            crate::Verdict::Unschedulable => "#cc0000",
        };
        let (Some(response), Some(deadline)) = (result.response_ns, result.deadline_ns) else {
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{y}\" fill=\"{colour}\">no bound</text>",
                LEFT + 4.0
            );
            continue;
        };
        let share = (response as f64 / deadline as f64).min(1.5);
        let _ = writeln!(
            svg,
            "<rect x=\"{LEFT}\" y=\"{}\" width=\"{:.1}\" height=\"14\" fill=\"{colour}\"/>\
             <text x=\"{:.1}\" y=\"{y}\">{} of {}</text>",
            y - 11,
            share * WIDTH * 2.0 / 3.0,
            LEFT + 4.0,
            Time::from(response),
            Time::from(deadline)
        );
    }
    let bottom = rows * ROW + 6;
    let _ = writeln!(
        svg,
        "<path d=\"M{line:.1} 4V{bottom}\" stroke=\"black\" stroke-dasharray=\"4 3\"/>\
         <text x=\"{line:.1}\" y=\"{}\" text-anchor=\"middle\">deadline</text>",
        bottom + 14
    );
    svg + "</svg>\n"
}

/// The points of a Pareto front: the mean latency to the right, the power upwards, and the number
/// of units beside each point.
pub fn front_svg(points: &[FrontPoint]) -> String {
    let rows = 16;
    let height = (rows * ROW) as f64;
    let most = |of: fn(&FrontPoint) -> u64| points.iter().map(of).max().unwrap_or(0).max(1);
    let (latency, power) = (most(|p| p.latency_ns), most(|p| p.power_mw));
    let mut svg = begin(rows);
    axis(&mut svg, rows, latency);
    for mark in 0..=4u32 {
        let y = height * (1.0 - f64::from(mark) / 4.0) + 6.0;
        let mw = power * u64::from(mark) / 4;
        let _ = writeln!(svg, "<text x=\"4\" y=\"{y:.1}\">{mw} mW</text>");
    }
    for point in points {
        let x = LEFT + WIDTH * point.latency_ns as f64 / latency as f64;
        let y = height * (1.0 - point.power_mw as f64 / power as f64) + 6.0;
        let mhz =
            point.frequency_hz.map_or(String::new(), |hz| format!(", {} MHz", hz as f64 / 1e6));
        let _ = writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"#4a7ebb\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{} units{mhz}</text>",
            x - 6.0,
            y + 14.0,
            point.partition.units
        );
    }
    svg + "</svg>\n"
}

/// A name without the separator of BTF and without control characters.
fn plain(name: &str) -> String {
    name.chars().map(|c| if c == ',' || c.is_control() { '_' } else { c }).collect()
}

/// A trace in BTF (Best Trace Format, version 2.1.4, of Eclipse APP4MC and the tools around it).
pub fn btf(model: &Model, replay: &Replay) -> String {
    let mut events: Vec<(u64, u8, String)> = Vec::new();
    let entries = &replay.system.entries;
    let name = |e: usize| plain(&model.tasks[entries[e].task].name);
    let kind = |e: usize| if model.tasks[entries[e].task].is_isr { "I" } else { "T" };
    // Jobs of a task end in the order of their releases, so that a span belongs to the first job
    // that ends after it begins.
    let mut ends: Vec<Vec<u64>> = vec![vec![]; entries.len()];
    for done in &replay.record.completions {
        let (e, job) = (done.entry, ends[done.entry].len());
        let at = done.job.release_ns;
        events.push((
            at,
            1,
            format!("{at},{}_stimulus,{job},{},{},{job},activate,", name(e), kind(e), name(e)),
        ));
        ends[e].push(done.end_ns);
    }
    let begins: HashSet<(usize, u64)> =
        replay.record.spans.iter().map(|s| (s.entry, s.from_ns)).collect();
    let mut last: Vec<Option<usize>> = vec![None; entries.len()];
    // End of the span before, of each entry.
    let mut before: Vec<u64> = vec![u64::MAX; entries.len()];
    for span in &replay.record.spans {
        let e = span.entry;
        let job = ends[e].partition_point(|end| *end <= span.from_ns);
        let core = plain(&model.cores[span.core].name);
        let line =
            |at: u64, what: &str| format!("{at},{core},0,{},{},{job},{what},", kind(e), name(e));
        let begin = if last[e] == Some(job) { "resume" } else { "start" };
        let continues = last[e] == Some(job) && before[e] == span.from_ns;
        let state = if span.activity == Activity::Spin { "poll" } else { "run" };
        match continues {
            true => events.push((span.from_ns, 2, line(span.from_ns, state))),
            false => events.push((span.from_ns, 3, line(span.from_ns, begin))),
        }
        (last[e], before[e]) = (Some(job), span.to_ns);
        if ends[e].get(job) == Some(&span.to_ns) {
            events.push((span.to_ns, 0, line(span.to_ns, "terminate")));
        } else if !begins.contains(&(e, span.to_ns)) {
            events.push((span.to_ns, 0, line(span.to_ns, "preempt")));
        }
    }
    events.sort();
    let mut text = "#version 2.1.4\n#creator corebeat verify\n#timeScale ns\n".to_owned();
    for (_, _, line) in events {
        text += line.trim_end_matches(',');
        text.push('\n');
    }
    text
}

/// A timeline for Perfetto (ui.perfetto.dev): a track for each core.
///
/// # Errors
/// If the text cannot be written, which memory does not refuse.
pub fn perfetto(model: &Model, replay: &Replay) -> std::io::Result<String> {
    let mut writer = ChromeWriter::new(Vec::new())?;
    writer.process_name("witness")?;
    for (c, core) in model.cores.iter().enumerate() {
        writer.track_name(c as u32, &core.name)?;
    }
    for span in &replay.record.spans {
        let task = &model.tasks[replay.system.entries[span.entry].task].name;
        let category = match span.activity {
            Activity::Run => "run",
            Activity::Section => "critical section",
            Activity::Spin => "spin",
        };
        let duration = span.to_ns - span.from_ns;
        writer.slice(Track::Thread(span.core as u32), span.from_ns, duration, task, category)?;
    }
    Ok(String::from_utf8_lossy(&writer.finish()?).into_owned())
}
