//! `corebeat net profile`: measures the costs of the entities of a network, and the placement by
//! these costs (Prokesch 2011, section 6.2).
//!
//! On several ranks of MPI, rank 0 gathers the figures of all ranks at the end:
//!
//! ```text
//!   each rank: Meter, Traffic --> Figures --(MPI)--> rank 0: Profile --> text, JSON, costs
//! ```

use crate::flow::{How, Reporter, Scene, To, count};
use crate::meter::{Entity, Meter, lock};
use crate::placing;
use crate::program::Which;
use corebeat_command::{Done, Failure, Output, print};
use corebeat_lpel::placement::{Measured, Place, Placement, TaskInfo};
use corebeat_lpel::{Runtime, Task};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
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
    #[command(flatten)]
    wanted: Wanted,
}

/// Where the profile goes.
#[derive(clap::Args)]
pub(crate) struct Wanted {
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
    /// The traffic between ranks, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    traffic: Vec<TrafficRow>,
    placement: Vec<Assignment>,
    /// Number of tasks in the placement, if not all are in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    placed_only_first: Option<usize>,
}

/// The figures of one rank, or of a run on one.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Figures {
    entities: Vec<Row>,
    workers: Vec<WorkerRow>,
    worker_count: usize,
    pub(crate) traffic: Vec<TrafficRow>,
    /// Index of the entity of each task, in the order in which they were spawned.
    started: Vec<usize>,
}

/// Tasks of one name.
#[derive(Default, Serialize, Deserialize)]
struct Row {
    /// The rank, if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    rank: Option<u32>,
    name: String,
    tasks: u64,
    dispatches: u64,
    total_ns: u64,
    /// Mean per task.
    average_ns: u64,
    /// Share of the run time of all tasks.
    share: f64,
}

#[derive(Serialize, Deserialize)]
struct WorkerRow {
    #[serde(skip_serializing_if = "Option::is_none")]
    rank: Option<u32>,
    worker: usize,
    busy_ns: u64,
    waiting_ns: u64,
    waits: u64,
}

/// The traffic from one rank to another one.
#[derive(Serialize, Deserialize)]
pub(crate) struct TrafficRow {
    from: u32,
    to: u32,
    records: u64,
    messages: u64,
    bytes: u64,
}

#[cfg(feature = "mpi")]
impl TrafficRow {
    pub(crate) fn of(from: u32, to: u32, traffic: corebeat_snet::rank::Traffic) -> TrafficRow {
        let corebeat_snet::rank::Traffic { records, messages, bytes } = traffic;
        TrafficRow { from, to, records, messages, bytes }
    }
}

/// The tasks that the placement assigns to a worker.
#[derive(Default, Serialize)]
struct Assignment {
    #[serde(skip_serializing_if = "Option::is_none")]
    rank: Option<u32>,
    worker: usize,
    expected_ns: u64,
    /// Number of tasks by name.
    tasks: BTreeMap<String, u64>,
}

pub(crate) fn main(options: Options) -> Done {
    let Options { which, how, output, wanted } = options;
    let to = To::Nowhere(output.as_deref());
    if let Some(team) = how.team()? {
        return team.run(&which, &how, to, Some(wanted));
    }
    how.require_distinct(&which, &to, wanted.file())?;
    let wanted = wanted.open()?;
    let meter = Meter::of_tasks();
    let flow = how.start(&which, to, Some(&meter), Reporter::plain())?;
    let scene = flow.scene().clone();
    let done = flow.write();
    let wall_ns = scene.begin.elapsed().as_nanos() as u64;
    wanted.write(&scene, wall_ns, vec![Figures::of(&meter, scene.workers)])?;
    done
}

impl Wanted {
    /// The file of the costs.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.save.as_deref()
    }

    /// Opens the file of the costs.
    pub(crate) fn open(self) -> Result<Opened, Failure> {
        let save = self.save.as_deref().map(Output::create).transpose()?;
        Ok(Opened { save, json: self.json })
    }
}

/// Where the profile goes, with the file of the costs open.
pub(crate) struct Opened {
    save: Option<Output>,
    json: bool,
}

impl Opened {
    /// Writes the profile of a run with the figures of each rank.
    pub(crate) fn write(
        self,
        scene: &Scene,
        wall_ns: u64,
        figures: Vec<Figures>,
    ) -> Result<(), Failure> {
        let profile = Profile::of(figures, scene, wall_ns)?;
        match self.json {
            true => print(serde_json::to_string(&profile).map_err(Failure::internal)? + "\n")?,
            false => print(profile.text())?,
        }
        self.save.map_or(Ok(()), |save| placing::save(profile.costs(), save))
    }
}

impl Figures {
    /// The figures of a meter whose runtime had this number of workers, all of which have ended.
    pub(crate) fn of(meter: &Meter, workers: usize) -> Figures {
        let mut figures = Figures { worker_count: workers, ..Figures::default() };
        let mut places: HashMap<String, usize> = HashMap::new();
        let mut started: Vec<(u64, usize)> = Vec::new();
        for (worker, of_worker) in meter.workers() {
            let of_worker = lock(&of_worker);
            let mut place = |entity: &Entity| {
                *places.entry(entity.name.to_string()).or_insert_with(|| {
                    let name = entity.name.to_string();
                    figures.entities.push(Row { name, ..Row::default() });
                    figures.entities.len() - 1
                })
            };
            let entities: Vec<usize> = of_worker.entities.iter().map(&mut place).collect();
            for (entity, place) in of_worker.entities.iter().zip(&entities) {
                let row = &mut figures.entities[*place];
                row.tasks += entity.tasks;
                row.dispatches += entity.dispatches;
                row.total_ns += entity.run_ns;
            }
            figures.workers.push(WorkerRow {
                rank: None,
                worker,
                busy_ns: of_worker.entities.iter().map(|e| e.run_ns).sum(),
                waiting_ns: of_worker.end.map_or(0, |end| end.wait_ns),
                waits: of_worker.end.map_or(0, |end| end.waits),
            });
            let first = of_worker.started.iter().take(PLACED_MAX);
            started.extend(first.map(|(task, entity)| (*task, entities[*entity])));
        }
        // Task numbers follow the order of spawning.
        started.sort();
        started.truncate(PLACED_MAX);
        figures.started = started.into_iter().map(|(_, entity)| entity).collect();
        figures
    }
}

impl Profile {
    fn of(figures: Vec<Figures>, scene: &Scene, wall_ns: u64) -> Result<Profile, Failure> {
        let ranks = figures.len();
        let several = ranks > 1;
        let mut profile = Profile {
            net: scene.net.clone(),
            records_in: scene.tally.given.load(Ordering::Relaxed),
            records_out: scene.tally.put.load(Ordering::Relaxed),
            wall_ns,
            entities: Vec::new(),
            without_task: Vec::new(),
            workers: Vec::new(),
            traffic: Vec::new(),
            placement: Vec::new(),
            placed_only_first: None,
        };
        let mut started: Vec<(usize, Vec<String>)> = Vec::new();
        for (rank, of_rank) in (0u32..).zip(figures) {
            let rank = several.then_some(rank);
            let names = |entity: &usize| of_rank.entities.get(*entity).map(|row| row.name.clone());
            let first = of_rank.started.iter().take(PLACED_MAX / ranks);
            started.push((of_rank.worker_count, first.filter_map(names).collect()));
            profile.entities.extend(of_rank.entities.into_iter().map(|row| Row { rank, ..row }));
            let workers = of_rank.workers.into_iter();
            profile.workers.extend(workers.map(|row| WorkerRow { rank, ..row }));
            profile.traffic.extend(of_rank.traffic);
        }
        let total_ns: u64 = profile.entities.iter().map(|row| row.total_ns).sum();
        for row in &mut profile.entities {
            row.average_ns = row.total_ns.checked_div(row.tasks).unwrap_or(0);
            row.share = if total_ns == 0 { 0.0 } else { row.total_ns as f64 / total_ns as f64 };
        }
        profile.entities.sort_by(|a, b| {
            b.total_ns.cmp(&a.total_ns).then_with(|| (&a.name, a.rank).cmp(&(&b.name, b.rank)))
        });
        let is_unseen = |name: &&String| !profile.entities.iter().any(|row| row.name == **name);
        profile.without_task = scene.boxes.iter().filter(is_unseen).cloned().collect();

        let all: u64 = profile.entities.iter().map(|row| row.tasks).sum();
        let placed: usize = started.iter().map(|(_, names)| names.len()).sum();
        profile.placed_only_first = (all > placed as u64).then_some(placed);
        let costs = profile.costs();
        for (rank, (workers, names)) in (0u32..).zip(started) {
            let rank = several.then_some(rank);
            let assigned = assign(&costs, names, workers)?.into_iter();
            profile.placement.extend(assigned.map(|assigned| Assignment { rank, ..assigned }));
        }
        Ok(profile)
    }

    /// The mean cost of a task of each name, on all ranks.
    fn costs(&self) -> HashMap<String, u64> {
        let mut sums: HashMap<String, (u64, u64)> = HashMap::new();
        for row in &self.entities {
            let (total_ns, tasks) = sums.entry(row.name.clone()).or_default();
            *total_ns += row.total_ns;
            *tasks += row.tasks;
        }
        let mean = |(total_ns, tasks): (u64, u64)| total_ns.checked_div(tasks).unwrap_or(0);
        sums.into_iter().map(|(name, sum)| (name, mean(sum))).collect()
    }

    fn text(&self) -> String {
        let width =
            self.entities.iter().map(|row| row.name.chars().count()).max().unwrap_or(0).max(6);
        let several = !self.traffic.is_empty();
        let head = if several { "rank  " } else { "" };
        let lead = |rank: Option<u32>| rank.map_or(String::new(), |rank| format!("{rank:>4}  "));
        let mut text = format!(
            "net {}: {} in, {} out, {:.3} s\n\n{head}{:<width$}  {:>9}  {:>10}  {:>12}  {:>12}  {:>6}\n",
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
            text += &lead(row.rank);
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
            "\n{head}{:<width$}  {:>12}  {:>12}  {:>9}\n",
            "worker", "busy ms", "waiting ms", "waits"
        );
        for row in &self.workers {
            text += &lead(row.rank);
            text += &format!(
                "{:<width$}  {:>12.3}  {:>12.3}  {:>9}\n",
                row.worker,
                row.busy_ns as f64 / 1e6,
                row.waiting_ns as f64 / 1e6,
                row.waits
            );
        }
        if several {
            text += &self.traffic_text();
        }
        text += "\nplacement by these costs (--save FILE, then run with --placement FILE)\n";
        for assignment in &self.placement {
            text += &lead(assignment.rank);
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
            text += &match several {
                true => format!("({first} tasks: the first ones of each rank)\n"),
                false => format!("(the first {first} tasks)\n"),
            };
        }
        text += &format!("\n{REMARK}\n");
        if !self.without_task.is_empty() {
            text += &format!("Boxes without a task: {}.\n", self.without_task.join(", "));
        }
        text
    }

    /// The traffic between ranks, without pairs of ranks that exchanged no message.
    fn traffic_text(&self) -> String {
        let mut text = format!(
            "\nfrom    to  {:>10}  {:>10}  {:>12}  {:>13}  {:>10}\n",
            "records", "messages", "bytes", "messages/s", "bytes/s"
        );
        let per_s = |count: u64| count as f64 * 1e9 / self.wall_ns.max(1) as f64;
        for row in self.traffic.iter().filter(|row| row.messages > 0) {
            text += &format!(
                "{:>4}  {:>4}  {:>10}  {:>10}  {:>12}  {:>13.0}  {:>10.0}\n",
                row.from,
                row.to,
                row.records,
                row.messages,
                row.bytes,
                per_s(row.messages),
                per_s(row.bytes)
            );
        }
        text
    }
}

/// Places tasks of these names, spawned in this order, with [`Measured`]: empty tasks stand for the
/// real ones.
fn assign(
    costs: &HashMap<String, u64>,
    names: Vec<String>,
    workers: usize,
) -> Result<Vec<Assignment>, Failure> {
    let empty = |worker| Assignment { worker, ..Assignment::default() };
    let assigned = Arc::new(Mutex::new((0..workers).map(empty).collect::<Vec<_>>()));
    let placement = RecordingPlacement {
        inner: Measured::new(costs.clone()),
        costs: costs.clone(),
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
        let assigned = assign(&costs, names, 2).unwrap();
        let loads: Vec<u64> = assigned.iter().map(|a| a.expected_ns).collect();
        assert_eq!(loads, [110, 120]);
        assert_eq!(
            assigned[0].tasks,
            BTreeMap::from([("long".to_owned(), 1), ("short".to_owned(), 1)])
        );
    }
}
