//! Witnesses: scenarios in TOML that replay, as drawing and as traces.

use crate::error::Error;
use crate::model::{Activation, Model};
use crate::search::Found;
use crate::simulation::{Job, Jobs, Record, Simulation};
use crate::system::{Entry, System};
use crate::time::Time;
use serde::{Deserialize, Serialize};

/// Largest number of jobs of a witness.
const JOBS_MAX: usize = 1_000_000;

/// A scenario that demonstrates a response time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Witness {
    /// The task.
    pub task: String,
    /// The mode in which it happens, in a model with modes.
    pub mode: Option<String>,
    /// Response time of the task.
    pub response: Time,
    /// Deadline of the task, if it has one.
    pub deadline: Option<Time>,
    /// All jobs up to the end of the job with the response time.
    pub jobs: Vec<WitnessJob>,
}

/// A job of a witness. A job of a task that follows another has only an execution time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WitnessJob {
    /// The task.
    pub task: String,
    /// Arrival.
    pub arrival: Time,
    /// Release; the arrival if it is left out.
    pub release: Option<Time>,
    /// Execution time.
    pub execution: Time,
}

/// A witness that was simulated again.
#[derive(Debug, Clone)]
pub struct Replay {
    /// The system of the mode.
    pub system: System,
    /// Everything that happened.
    pub record: Record,
    /// The entry of the witness's task.
    pub entry: usize,
    /// End of the job with the response time, in nanoseconds.
    pub end_ns: u64,
}

impl Witness {
    /// A witness of what a search found.
    pub fn new(model: &Model, mode: Option<usize>, system: &System, found: &Found) -> Witness {
        let mut record = Record::default();
        let mut simulation = Simulation::new(system);
        simulation.run(&found.jobs, u64::MAX, Some(&mut record));
        let of_target = record.completions.iter().filter(|c| c.entry == found.entry);
        let worst = of_target.max_by_key(|c| (c.end_ns - c.job.arrival_ns, u64::MAX - c.end_ns));
        let end_ns = worst.map_or(0, |c| c.end_ns);
        let name = |e: usize| model.tasks[system.entries[e].task].name.clone();
        let mut jobs = Vec::new();
        for (e, list) in found.jobs.iter().enumerate() {
            let follows = matches!(system.entries[e].activation, Activation::After(_));
            for job in list.iter().filter(|job| follows || job.release_ns <= end_ns) {
                jobs.push(WitnessJob {
                    task: name(e),
                    arrival: job.arrival_ns.into(),
                    release: (job.release_ns != job.arrival_ns).then(|| job.release_ns.into()),
                    execution: job.execution_ns.into(),
                });
            }
        }
        Witness {
            task: name(found.entry),
            mode: mode.map(|m| model.modes[m].clone()),
            response: found.response_ns.into(),
            deadline: system.entries[found.entry].deadline_ns.map(Time::from),
            jobs,
        }
    }

    /// Reads a witness.
    ///
    /// # Errors
    /// The first mistake, with its line.
    pub fn read(text: &str) -> Result<Witness, Error> {
        toml::from_str(text).map_err(|e| {
            let before = &text[..e.span().map_or(0, |span| span.start).min(text.len())];
            let line = 1 + before.matches('\n').count();
            Error::new(format!("line {line}"), e.message().trim())
        })
    }

    /// Writes the witness.
    pub fn write(&self) -> String {
        toml::to_string(self).unwrap_or_default()
    }

    /// Whether the response time exceeds the deadline.
    pub fn is_miss(&self) -> bool {
        self.deadline.is_some_and(|deadline| self.response > deadline)
    }

    /// Simulates the witness again, and verifies that the model permits each job and that the task
    /// has the response time.
    ///
    /// # Errors
    /// A job that the model does not permit, or another response time.
    pub fn replay(&self, model: &Model) -> Result<Replay, Error> {
        let position = |m: &String| {
            let at = model.modes.iter().position(|known| known == m);
            at.ok_or_else(|| Error::new("witness", format!("the model has no mode '{m}'")))
        };
        let mode = self.mode.as_ref().map(position).transpose()?;
        let system = System::new(model, mode);
        let find = |name: &String| {
            let is = |e: &Entry| model.tasks[e.task].name == *name;
            system.entries.iter().position(is).ok_or_else(|| {
                Error::new("witness", format!("task '{name}' is not in the model, or not analysed"))
            })
        };
        if self.jobs.len() > JOBS_MAX {
            return Err(Error::new("witness", "more than 1,000,000 jobs; shorten it"));
        }
        let mut jobs: Jobs = vec![vec![]; system.entries.len()];
        for job in &self.jobs {
            let e = find(&job.task)?;
            let job = Job {
                arrival_ns: job.arrival.ns,
                release_ns: job.release.unwrap_or(job.arrival).ns,
                execution_ns: job.execution.ns,
            };
            permit(&system.entries[e], &jobs[e], &job).map_err(|why| {
                let at = Time::from(job.arrival_ns);
                Error::new(
                    format!(
                        "witness, job of '{}' at {at}",
                        model.tasks[system.entries[e].task].name
                    ),
                    why,
                )
            })?;
            jobs[e].push(job);
        }
        let entry = find(&self.task)?;
        let mut record = Record::default();
        Simulation::new(&system).run(&jobs, u64::MAX, Some(&mut record));
        let of_target = record.completions.iter().filter(|c| c.entry == entry);
        let worst = of_target.max_by_key(|c| (c.end_ns - c.job.arrival_ns, u64::MAX - c.end_ns));
        let response = worst.map_or(0, |c| c.end_ns - c.job.arrival_ns);
        if response != self.response.ns {
            let what = format!(
                "task '{}' responds in {}, not in {}; the model has changed",
                self.task,
                Time::from(response),
                self.response
            );
            return Err(Error::new("witness", what));
        }
        let end_ns = worst.map_or(0, |c| c.end_ns);
        record.spans.retain(|s| s.from_ns < end_ns);
        record.spans.iter_mut().for_each(|s| s.to_ns = s.to_ns.min(end_ns));
        record.completions.retain(|c| c.end_ns <= end_ns);
        Ok(Replay { system, record, entry, end_ns })
    }
}

/// Whether the model permits a job after those before it.
fn permit(entry: &Entry, before: &[Job], job: &Job) -> Result<(), String> {
    let range = entry.execution_ns;
    if !(range.best..=range.worst).contains(&job.execution_ns) {
        return Err(format!(
            "execution time {} outside of {} to {}",
            Time::from(job.execution_ns),
            Time::from(range.best),
            Time::from(range.worst)
        ));
    }
    let last = before.last();
    let (arrival, release) = (job.arrival_ns, job.release_ns);
    let since =
        |n: usize| Some(arrival.checked_sub(before.get(before.len().checked_sub(n)?)?.arrival_ns));
    let is_late = last.is_some_and(|l| release < l.release_ns);
    let is_permitted = match &entry.activation {
        Activation::Periodic { period_ns, offset_ns, jitter_ns } => {
            let in_time = release.checked_sub(arrival).is_some_and(|delay| delay <= *jitter_ns);
            let first = offset_ns.is_none_or(|offset| arrival == offset);
            in_time && since(1).map_or(first, |distance| distance == Some(*period_ns))
        }
        Activation::Sporadic { distance_ns } => {
            release == arrival && since(1).is_none_or(|d| d.is_some_and(|d| d >= *distance_ns))
        }
        Activation::Curve(spans) => {
            let holds =
                |(n, span): (usize, &u64)| since(n).is_none_or(|d| d.is_some_and(|d| d >= *span));
            release == arrival && (1..).zip(spans).all(holds)
        }
        Activation::After(_) => return Ok(()),
    };
    match is_permitted && !is_late {
        true => Ok(()),
        false => Err("the model does not permit this arrival or release".into()),
    }
}
