//! Witnesses: scenarios in TOML that replay, as drawing and as traces.

use crate::error::Error;
use crate::model::{Activation, Model};
use crate::objective::{Objective, Subject, Worst};
use crate::search::Found;
use crate::simulation::{Job, Jobs, Record, Simulation};
use crate::system::{Entry, System};
use crate::time::{TIME_MAX_NS, Time};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Largest number of jobs of a witness.
const JOBS_MAX: usize = 1_000_000;

/// A scenario that demonstrates the worst case of an objective.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Witness {
    /// The mode in which it happens, in a model with modes.
    pub mode: Option<String>,
    /// The response time, the wait, or the busy time in the window.
    pub time: Time,
    /// Its limit: the deadline of the task, if it has one, or that of the search.
    pub limit: Option<Time>,
    /// The kind of the time.
    pub objective: Kind,
    /// All jobs up to the end of the worst case.
    pub jobs: Vec<WitnessJob>,
}

/// The figure of a witness, and the names in its place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase")]
pub enum Kind {
    /// A response time.
    Response {
        /// The task.
        task: String,
    },
    /// The time that a released job does not run.
    Wait {
        /// Its task.
        task: String,
    },
    /// The busy time of a core in a window.
    Load {
        /// The core.
        core: String,
        /// Length of the window.
        window: Time,
    },
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
    /// The worst case.
    pub worst: Worst,
}

impl Witness {
    /// A witness of what a search found.
    pub fn new(model: &Model, mode: Option<usize>, system: &System, found: &Found) -> Witness {
        let mut jobs = found.jobs.clone();
        for (entry, list) in system.entries.iter().zip(&mut jobs) {
            let follows = matches!(entry.activation, Activation::After(_));
            list.retain(|job| follows || job.release_ns <= found.worst.end_ns);
        }
        // Without the later jobs, a job that is not over may have a still worse end.
        let record = simulate(system, &jobs);
        let worst = found.objective.worst(system, &record).unwrap_or(found.worst);
        let name = name(model, system, worst.subject).to_owned();
        let objective = match found.objective {
            Objective::Response { .. } => Kind::Response { task: name },
            Objective::Wait { .. } => Kind::Wait { task: name },
            Objective::Load { window_ns, .. } => {
                Kind::Load { core: name, window: window_ns.into() }
            }
        };
        let jobs = system.entries.iter().zip(&jobs).flat_map(|(entry, list)| {
            list.iter().map(|job| WitnessJob {
                task: model.tasks[entry.task].name.clone(),
                arrival: job.arrival_ns.into(),
                release: (job.release_ns != job.arrival_ns).then(|| job.release_ns.into()),
                execution: job.execution_ns.into(),
            })
        });
        Witness {
            mode: mode.map(|m| model.modes[m].clone()),
            time: worst.value_ns.into(),
            limit: worst.limit_ns.map(Time::from),
            objective,
            jobs: jobs.collect(),
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

    /// Whether the time exceeds the limit.
    pub fn is_miss(&self) -> bool {
        self.limit.is_some_and(|limit| self.time > limit)
    }

    /// Simulates the witness again, and verifies that the model permits each job and that the worst
    /// case is that of the witness.
    ///
    /// # Errors
    /// A job that the model does not permit, another time, or another deadline.
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
        let mut record = simulate(&system, &jobs);
        let limit_ns = || {
            let limit = self.limit.filter(|limit| limit.ns > 0);
            limit.map(|limit| limit.ns).ok_or_else(|| Error::new("witness", "it has no limit"))
        };
        let task = |name| find(name).map(|e| Some(system.entries[e].task));
        let (objective, of) = match &self.objective {
            Kind::Response { task: name } => (Objective::Response { task: task(name)? }, name),
            Kind::Wait { task: name } => {
                (Objective::Wait { task: task(name)?, limit_ns: limit_ns()? }, name)
            }
            Kind::Load { core, .. } if !model.cores.iter().any(|known| known.name == *core) => {
                return Err(Error::new("witness", format!("core '{core}' is not in the model")));
            }
            Kind::Load { core, window } => {
                (Objective::Load { window_ns: window.ns, limit_ns: limit_ns()? }, core)
            }
        };
        let changed = |what| Err(Error::new("witness", format!("{what}; the model has changed")));
        let Some(worst) = objective.worst(&system, &record) else {
            return changed(format!("'{of}' does nothing"));
        };
        let name = name(model, &system, worst.subject);
        if (worst.value_ns, name) != (self.time.ns, of) {
            let (found, time) = (Time::from(worst.value_ns), self.time);
            let what = &self.objective;
            return changed(format!("the {what} of '{name}' is {found}, not {time} of '{of}'"));
        }
        if worst.limit_ns != self.limit.map(|limit| limit.ns) {
            return changed(format!("the deadline of '{of}' is another one"));
        }
        record.spans.retain(|s| s.from_ns < worst.end_ns);
        record.spans.iter_mut().for_each(|s| s.to_ns = s.to_ns.min(worst.end_ns));
        record.completions.retain(|c| c.end_ns <= worst.end_ns);
        Ok(Replay { system, record, worst })
    }
}

fn name<'a>(model: &'a Model, system: &System, subject: Subject) -> &'a String {
    match subject {
        Subject::Entry(e) => &model.tasks[system.entries[e].task].name,
        Subject::Core(core) => &model.cores[core].name,
    }
}

/// The figure in words.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Response { .. } => f.write_str("response time"),
            Kind::Wait { .. } => f.write_str("longest wait"),
            Kind::Load { window, .. } => write!(f, "busy time within {window}"),
        }
    }
}

fn simulate(system: &System, jobs: &Jobs) -> Record {
    let mut record = Record::default();
    Simulation::new(system).run(jobs, TIME_MAX_NS, Some(&mut record));
    record
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
