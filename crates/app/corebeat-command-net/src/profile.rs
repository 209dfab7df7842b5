//! `corebeat net profile`: measures the costs of the entities of a network, and the placement by
//! these costs (Prokesch 2011, section 6.2).

use crate::flow::{How, Reporter, Scene, To, count};
use crate::meter::{Meter, lock};
use crate::placing;
use crate::program::Which;
use corebeat_command::{Done, Failure, Output, print};
use corebeat_lpel::placement::{Measured, Place, Placement, TaskInfo};
use corebeat_lpel::{Runtime, Task};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// Largest number of tasks that are placed by their costs.
const PLACED_MAX: usize = 100_000;

/// Explains entities without a task.
const REMARK: &str = "Filters, synchrocells and choices run in the task that holds the record and count as part of\n\
    it; so do boxes of a star that cost less than dispatching a task.";

#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    how: How,
    /// Write records to this file [default: discard them]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write the costs of tasks to this file, for '--placement FILE'
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The profile of a run.
#[derive(Serialize)]
struct Profile {
    net: String,
    records_in: u64,
    records_out: u64,
    wall_ns: u64,
    entities: Vec<Row>,
    /// Boxes without a task.
    without_task: Vec<String>,
    workers: Vec<WorkerRow>,
    placement: Vec<Assignment>,
    /// Number of tasks in the placement, if not all are in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    placed_only_first: Option<usize>,
}

/// Tasks of one name.
#[derive(Serialize)]
struct Row {
    name: String,
    tasks: u64,
    dispatches: u64,
    total_ns: u64,
    /// Mean per task.
    average_ns: u64,
    /// Share of the run time of all tasks.
    share: f64,
}

#[derive(Serialize)]
struct WorkerRow {
    worker: usize,
    busy_ns: u64,
    waiting_ns: u64,
    waits: u64,
}

/// The tasks that the placement assigns to a worker.
#[derive(Default, Serialize)]
struct Assignment {
    worker: usize,
    expected_ns: u64,
    /// Number of tasks by name.
    tasks: BTreeMap<String, u64>,
}

pub(crate) fn main(options: Options) -> Done {
    let Options { which, how, output, save, json } = options;
    let to = To::Nowhere(output.as_deref());
    how.require_alone()?;
    how.require_distinct(&which, &to, save.as_deref())?;
    let save = save.map(|path| Output::create(&path)).transpose()?;
    let meter = Meter::of_tasks();
    let flow = how.start(&which, to, Some(&meter), Reporter::plain())?;
    let scene = flow.scene().clone();
    let done = flow.write();
    let profile = Profile::of(&meter, &scene, scene.begin.elapsed().as_nanos() as u64)?;
    match json {
        true => print(serde_json::to_string(&profile).map_err(Failure::internal)? + "\n")?,
        false => print(profile.text())?,
    }
    if let Some(save) = save {
        placing::save(profile.costs(), save)?;
    }
    done
}

impl Profile {
    fn of(meter: &Meter, scene: &Scene, wall_ns: u64) -> Result<Profile, Failure> {
        let mut by_name: BTreeMap<String, Row> = BTreeMap::new();
        let mut workers = Vec::new();
        let mut started: Vec<(u64, String)> = Vec::new();
        for (worker, figures) in meter.workers() {
            let figures = lock(&figures);
            for entity in &figures.entities {
                let row = by_name
                    .entry(entity.name.to_string())
                    .or_insert_with(|| Row::new(&entity.name));
                row.tasks += entity.tasks;
                row.dispatches += entity.dispatches;
                row.total_ns += entity.run_ns;
            }
            workers.push(WorkerRow {
                worker,
                busy_ns: figures.entities.iter().map(|e| e.run_ns).sum(),
                waiting_ns: figures.end.map_or(0, |end| end.wait_ns),
                waits: figures.end.map_or(0, |end| end.waits),
            });
            let first = figures.started.iter().take(PLACED_MAX);
            started.extend(
                first.map(|(task, entity)| (*task, figures.entities[*entity].name.to_string())),
            );
        }
        let total_ns: u64 = by_name.values().map(|row| row.total_ns).sum();
        let mut entities: Vec<Row> = by_name.into_values().collect();
        for row in &mut entities {
            row.average_ns = row.total_ns.checked_div(row.tasks).unwrap_or(0);
            row.share = if total_ns == 0 { 0.0 } else { row.total_ns as f64 / total_ns as f64 };
        }
        entities.sort_by(|a, b| b.total_ns.cmp(&a.total_ns).then_with(|| a.name.cmp(&b.name)));
        let is_unseen = |name: &&String| !entities.iter().any(|row| row.name == **name);
        let without_task = scene.boxes.iter().filter(is_unseen).cloned().collect();

        // Task numbers follow the order of spawning.
        started.sort();
        started.truncate(PLACED_MAX);
        let all: u64 = entities.iter().map(|row| row.tasks).sum();
        let placed_only_first = (all > started.len() as u64).then_some(started.len());
        let mut profile = Profile {
            net: scene.net.clone(),
            records_in: scene.tally.given.load(Ordering::Relaxed),
            records_out: scene.tally.put.load(Ordering::Relaxed),
            wall_ns,
            entities,
            without_task,
            workers,
            placement: Vec::new(),
            placed_only_first,
        };
        let names = started.into_iter().map(|(_, name)| name).collect();
        profile.placement = assign(profile.costs(), names, scene.workers)?;
        Ok(profile)
    }

    /// The mean cost of a task of each name.
    fn costs(&self) -> HashMap<String, u64> {
        self.entities.iter().map(|row| (row.name.clone(), row.average_ns)).collect()
    }

    fn text(&self) -> String {
        let width =
            self.entities.iter().map(|row| row.name.chars().count()).max().unwrap_or(0).max(6);
        let mut text = format!(
            "net {}: {} in, {} out, {:.3} s\n\n{:<width$}  {:>9}  {:>10}  {:>12}  {:>12}  {:>6}\n",
            self.net,
            count(self.records_in as usize, "record", "records"),
            self.records_out,
            self.wall_ns as f64 / 1e9,
            "entity",
            "tasks",
            "dispatches",
            "total ms",
            "ms per task",
            "share"
        );
        for row in &self.entities {
            text += &format!(
                "{:<width$}  {:>9}  {:>10}  {:>12.3}  {:>12.6}  {:>5.1}%\n",
                row.name,
                row.tasks,
                row.dispatches,
                row.total_ns as f64 / 1e6,
                row.average_ns as f64 / 1e6,
                row.share * 100.0
            );
        }
        text += &format!(
            "\n{:<width$}  {:>12}  {:>12}  {:>9}\n",
            "worker", "busy ms", "waiting ms", "waits"
        );
        for row in &self.workers {
            text += &format!(
                "{:<width$}  {:>12.3}  {:>12.3}  {:>9}\n",
                row.worker,
                row.busy_ns as f64 / 1e6,
                row.waiting_ns as f64 / 1e6,
                row.waits
            );
        }
        text += "\nplacement by these costs (--save FILE, then run with --placement FILE)\n";
        for assignment in &self.placement {
            let tasks: Vec<String> =
                assignment.tasks.iter().map(|(name, tasks)| format!("{name} x {tasks}")).collect();
            text += &format!(
                "{:<width$}  {:>12.3} ms: {}\n",
                assignment.worker,
                assignment.expected_ns as f64 / 1e6,
                if tasks.is_empty() { "nothing".into() } else { tasks.join(", ") }
            );
        }
        if let Some(first) = self.placed_only_first {
            text += &format!("(the first {first} tasks)\n");
        }
        text += &format!("\n{REMARK}\n");
        if !self.without_task.is_empty() {
            text += &format!("Boxes without a task: {}.\n", self.without_task.join(", "));
        }
        text
    }
}

impl Row {
    fn new(name: &str) -> Row {
        Row { name: name.into(), tasks: 0, dispatches: 0, total_ns: 0, average_ns: 0, share: 0.0 }
    }
}

/// Places tasks of these names, spawned in this order, with [`Measured`]: empty tasks stand for the
/// real ones.
fn assign(
    costs: HashMap<String, u64>,
    names: Vec<String>,
    workers: usize,
) -> Result<Vec<Assignment>, Failure> {
    let empty = |worker| Assignment { worker, ..Assignment::default() };
    let assigned = Arc::new(Mutex::new((0..workers).map(empty).collect::<Vec<_>>()));
    let placement = RecordingPlacement {
        inner: Measured::new(costs.clone()),
        costs,
        assigned: assigned.clone(),
    };
    let runtime = Runtime::builder().workers(workers).deterministic(1).placement(placement).build();
    let spawn = move || {
        names
            .into_iter()
            .try_for_each(|name| Task::new().name(name).spawn_async(async {}).map(drop))
    };
    runtime
        .map_err(Failure::internal)?
        .run(spawn)
        .map_err(Failure::internal)?
        .map_err(Failure::internal)?;
    let assigned = std::mem::take(&mut *lock(&assigned));
    Ok(assigned)
}

/// Records where tasks are placed.
struct RecordingPlacement {
    inner: Measured,
    costs: HashMap<String, u64>,
    assigned: Arc<Mutex<Vec<Assignment>>>,
}

impl Placement for RecordingPlacement {
    fn place(&mut self, task: &TaskInfo<'_>, workers: usize) -> Place {
        // The task that spawns the others is not part of the network.
        let Some(name) = task.name else { return Place::Anywhere };
        let place = self.inner.place(task, workers);
        if let Place::Worker(worker) = place
            && let Some(assignment) = lock(&self.assigned).get_mut(worker)
        {
            assignment.expected_ns += self.costs.get(name).copied().unwrap_or(0);
            *assignment.tasks.entry(name.into()).or_default() += 1;
        }
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assignment_evens_out_costs() {
        let costs = HashMap::from([("long".to_owned(), 100), ("short".to_owned(), 10)]);
        let names = ["long", "short", "short", "long", "short"].map(String::from).into();
        let assigned = assign(costs, names, 2).unwrap();
        let loads: Vec<u64> = assigned.iter().map(|a| a.expected_ns).collect();
        assert_eq!(loads, [110, 120]);
        assert_eq!(
            assigned[0].tasks,
            BTreeMap::from([("long".to_owned(), 1), ("short".to_owned(), 1)])
        );
    }
}
