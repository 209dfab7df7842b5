//! A run on several ranks of MPI.
//!
//! ```text
//!   rank 0: load --.           .-- load -- compare --.-- input, network, output -- end
//!   others:         '- agree -'    load -- compare --'-- parts with a place ------ end
//! ```
//!
//! Rank 0 loads the program first, and reports its mistakes. Then all ranks load it and compare
//! what they have, because a number names a part of the program on all ranks. A profile has the
//! figures of all ranks, which rank 0 gathers at the end.

use crate::flow::{How, Reporter, To};
use crate::meter::Meter;
use crate::profile::{self, Figures, TrafficRow};
use crate::program::Which;
use corebeat_command::{Done, Failure};
use corebeat_lpel::Runtime;
use corebeat_mpi::{Error, Exchange, Inbound, Outbound, Ranks};
use corebeat_snet::rank::Node;
use std::fs::{self, File};
use std::hash::Hasher;
use std::io::Read;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Weak};

/// Names and digests of what all ranks must have in common.
pub(crate) type Digests = Vec<(String, u64)>;

/// This process as one of several ranks.
pub(crate) struct Team {
    ranks: Ranks,
    node: Arc<Node>,
}

/// Endpoint of a network for the thread of MPI.
struct Endpoint {
    node: Arc<Node>,
    /// The runtime of this rank; dropped at the end of its tasks.
    runtime: Weak<Runtime>,
}

impl Exchange for Endpoint {
    fn take(&self, to: u32) -> Option<Outbound> {
        self.node.take(to).map(|message| Box::new(message) as Outbound)
    }

    fn receive(self: Arc<Self>, from: u32, message: &mut Inbound) -> Result<(), String> {
        let (words, len) = message.words();
        self.node.receive_words(from, words, len).map_err(|why| why.to_string())
    }

    fn look(&self) -> Result<(), String> {
        let stalled = match self.runtime.upgrade() {
            Some(runtime) => self.node.look(&runtime),
            None => self.node.look_with(|| false, String::new),
        };
        stalled.map_or(Ok(()), Err)
    }

    fn memory(&self, bytes: usize) -> Option<Vec<u128>> {
        Node::memory(bytes)
    }

    fn has_ended(&self) -> bool {
        self.node.has_ended()
    }
}

impl Team {
    /// Starts MPI, if this process is one of several ranks.
    pub(crate) fn join(how: &How) -> Result<Option<Team>, Failure> {
        if corebeat_mpi::expected() == 1 {
            return Ok(None);
        }
        let ranks = Ranks::start().map_err(Failure::internal)?;
        if ranks.size() == 1 {
            ranks.finish().map_err(Failure::internal)?;
            return Err(Failure::internal(format!(
                "the run has {} ranks, but each of them is alone: mpirun belongs to another MPI \
                 library than this program",
                corebeat_mpi::expected()
            )));
        }
        corebeat_lpel::name_process(&format!("rank {}", ranks.rank()));
        let at = (ranks.rank(), ranks.size());
        let node = Node::new(at, how.window(), how.eager_bytes(), true, ranks.bell());
        Ok(Some(Team { ranks, node }))
    }

    /// Endpoint of this rank.
    pub(crate) fn node(&self) -> Arc<Node> {
        self.node.clone()
    }

    fn is_first(&self) -> bool {
        self.node.rank() == 0
    }

    /// Begins the exchange of messages, after the network has started.
    pub(crate) fn exchange(&self, runtime: &Arc<Runtime>) -> Result<(), Failure> {
        let report = |why: &Error| {
            Failure::internal(why).report();
        };
        let runtime = Arc::downgrade(runtime);
        let node = Arc::new(Endpoint { node: self.node.clone(), runtime });
        self.ranks.exchange(node, report).map_err(Failure::internal)
    }

    /// Runs a network on all ranks, with a profile if one is wanted.
    pub(crate) fn run(
        self,
        which: &Which,
        how: &How,
        to: To,
        wanted: Option<profile::Wanted>,
    ) -> Done {
        let mut done = self.run_parts(which, how, to, wanted);
        match &done {
            // All ranks have ended in order.
            Ok(_) | Err(Ended::Together(_)) => {
                if let Err(why) = self.ranks.finish() {
                    done = Err(Ended::Together(Some(Failure::internal(why))));
                }
            }
            Err(Ended::Alone(why)) => {
                let named = format!("rank {}: {why}", self.node.rank());
                let status = why.status();
                Failure::internal(named).report();
                self.ranks.abort(status)
            }
        }
        match done {
            Ok(status) => Ok(status),
            Err(Ended::Together(Some(why)) | Ended::Alone(why)) => Err(why),
            // Rank 0 has the reason and the status.
            Err(Ended::Together(None)) => Ok(ExitCode::SUCCESS),
        }
    }

    fn run_parts(
        &self,
        which: &Which,
        how: &How,
        to: To,
        wanted: Option<profile::Wanted>,
    ) -> Result<ExitCode, Ended> {
        let meter = wanted.as_ref().map(|_| Meter::of_tasks());
        let first = match self.is_first() {
            true => {
                let in_file = how.require_program_in_file(which);
                let save = wanted.as_ref().and_then(profile::Wanted::file);
                let distinct = in_file.and_then(|()| how.require_distinct(which, &to, save));
                let fit = distinct.and_then(|()| how.require_observers_on_standard_error());
                let loaded = fit.and_then(|()| how.load(which, true));
                loaded.and_then(|loaded| {
                    let opened = wanted.map(profile::Wanted::open).transpose()?;
                    Ok((Some(loaded), opened))
                })
            }
            false => Ok((None, None)),
        };
        let (loaded, opened) = self.agree(first.map(|loaded| (loaded, Vec::new())))?;
        let loaded = loaded.map_or_else(|| how.load(which, false), Ok);
        let loaded = self.agree(loaded.and_then(|loaded| {
            let mut digests = how.digests(which)?;
            digests.push(("command".into(), u64::from(meter.is_some())));
            Ok((loaded, digests))
        }))?;
        if !self.is_first() {
            let workers = how.serve(loaded, meter.as_ref(), self).map_err(Ended::Alone)?;
            let gathered = meter.map_or(Ok(Vec::new()), |meter| self.gather(meter, workers));
            return gathered.map(|_| ExitCode::SUCCESS).map_err(Ended::Alone);
        }
        let flow = how.start_loaded(loaded, to, meter.as_ref(), Reporter::plain(), Some(self));
        let flow = flow.map_err(Ended::Alone)?;
        let scene = flow.scene().clone();
        let done = flow.write();
        if let (Some(meter), Some(opened)) = (meter, opened) {
            let wall_ns = scene.begin.elapsed().as_nanos() as u64;
            let figures = self.gather(meter, scene.workers).map_err(Ended::Alone)?;
            let written = opened.write(&scene, wall_ns, figures);
            written.map_err(|why| Ended::Together(Some(why)))?;
        }
        done.map_err(|why| Ended::Together(Some(why)))
    }

    /// Returns the figures of all ranks on rank 0, after the end of the network.
    fn gather(&self, meter: Meter, workers: usize) -> Result<Vec<Figures>, Failure> {
        let node = self.node.clone();
        let make = move || {
            let of_other = |to| TrafficRow::of(node.rank(), to, node.traffic(to));
            let others = (0..node.size()).filter(|to| *to != node.rank());
            let mut figures = Figures::of(&meter, workers);
            figures.traffic = others.map(of_other).collect();
            // Figures have a form in JSON: numbers and names.
            serde_json::to_vec(&figures).unwrap_or_default()
        };
        let gathered = self.ranks.gather(make).map_err(Failure::internal)?;
        let read = |bytes: &Vec<u8>| serde_json::from_slice(bytes).map_err(Failure::internal);
        gathered.iter().map(read).collect()
    }

    /// Continues if all ranks succeed and have the same digests.
    fn agree<T>(&self, mine: Result<(T, Digests), Failure>) -> Result<T, Ended> {
        let told = mine.as_ref().map(|(_, digests)| digests.clone()).map_err(Failure::to_string);
        let agreed = self.ranks.agree(told);
        match (agreed, mine) {
            (Ok(()), Ok((value, _))) => Ok(value),
            // Rank 0 reports its own failure as it would without other ranks.
            (Err(Error::Rank { rank: 0, .. }), Err(why)) => Err(Ended::Together(Some(why))),
            (Err(Error::Refused), _) => Err(Ended::Together(None)),
            (Err(why), _) => Err(Ended::Together(Some(Failure::data(why)))),
            (Ok(()), Err(why)) => Err(Ended::Alone(why)),
        }
    }
}

/// How a run failed.
enum Ended {
    /// All ranks end regularly. Without a failure, rank 0 reports it.
    Together(Option<Failure>),
    /// The other ranks still run.
    Alone(Failure),
}

/// Digests of this binary and of these files.
pub(crate) fn digests<'a>(
    files: impl IntoIterator<Item = (&'a str, &'a Path)>,
) -> Result<Digests, Failure> {
    let machine = if cfg!(target_endian = "little") { 1 } else { 2 };
    let machine = machine << 8 | size_of::<usize>() as u64;
    let mut made = vec![("byte order or word size".to_owned(), machine)];
    made.push(("program corebeat".into(), digest(Path::new("/proc/self/exe"))?));
    for (name, path) in files {
        made.push((format!("{name} {}", path.display()), digest(path)?));
    }
    Ok(made)
}

/// Digest of the content of a file. Folders are built on each rank and have none.
fn digest(path: &Path) -> Result<u64, Failure> {
    // The keys of a new hasher are fixed.
    let mut hasher = std::hash::DefaultHasher::new();
    let cannot = |e| Failure::internal(format!("cannot read {}: {e}", path.display()));
    if fs::metadata(path).map_err(cannot)?.is_dir() {
        return Ok(0);
    }
    let mut file = File::open(path).map_err(cannot)?;
    let mut chunk = vec![0; 1 << 20];
    loop {
        match file.read(&mut chunk).map_err(cannot)? {
            0 => return Ok(hasher.finish()),
            len => hasher.write(&chunk[..len]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corebeat_lpel::stream;
    use corebeat_snet::body::Out;
    use corebeat_snet::rank::Window;
    use corebeat_snet::{Boxes, Kind, Label, Network, Record, Running, Value, check, parse};
    use corebeat_test_group::test_on_ranks;

    const STALLED: &str = "
        net stalled { box plus ((x) -> (x)); box wait ((x) -> (x)); }
        connect plus .. (plus .. wait) @ 1 .. plus;";

    /// A network whose box on rank 1 waits for ever at its second record.
    fn stalled() -> Network {
        let net = check(&parse(STALLED).unwrap(), None).net.unwrap();
        let plus = |(x,): (i32,), out: &mut Out| out.emit(1, (x + 1,));
        let wait = |(x,): (i32,), out: &mut Out| {
            let (_kept, mut reader) = stream::<()>(1);
            if x > 2 {
                reader.read();
            }
            out.emit(1, (x,))
        };
        let boxes = Boxes::new().with("plus", "(x) -> (x)", plus).unwrap();
        let boxes = boxes.with("wait", "(x) -> (x)", wait).unwrap();
        Network::new(net, |plan| boxes.find(plan)).unwrap()
    }

    /// This test starts itself on several ranks. Without `mpirun`, it passes with a line.
    #[test]
    fn run_whose_tasks_all_wait_ends_with_a_line_that_names_rank_and_box() {
        let test = "team::tests::run_whose_tasks_all_wait_ends_with_a_line_that_names_rank_and_box";
        if corebeat_mpi::expected() == 1 {
            let Some(output) = test_on_ranks(test, 3) else { return };
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{errors}");
            let lines = || errors.lines().filter(|line| line.contains("makes no progress"));
            let line = lines().next().unwrap_or_else(|| panic!("{errors}"));
            assert_eq!(lines().count(), 1, "{errors}");
            assert!(line.contains("rank 1: 'wait' waits for an item"), "{line}");
            assert!(line.contains("; rank 2: no task is left but its server"), "{line}");
            return;
        }
        let ranks = Ranks::start().unwrap();
        let node = Node::new((ranks.rank(), ranks.size()), Window::of(4), 1000, true, ranks.bell());
        let team = Team { ranks, node: node.clone() };
        let runtime = Arc::new(Runtime::builder().workers(2).build().unwrap());
        if !team.is_first() {
            let serving = stalled().serve(&runtime, node);
            team.exchange(&runtime).unwrap();
            serving.wait();
            panic!("the run ends");
        }
        let Running { mut input, output, report: _report } =
            stalled().start_on_ranks(&runtime, node);
        team.exchange(&runtime).unwrap();
        let x = Label::new(Kind::Field, "x").unwrap();
        for i in 0..3 {
            input.write(Record::from_pairs([(x, Value::from(i))]).unwrap()).unwrap();
        }
        drop(input);
        panic!("the run ends with {} records", output.count());
    }

    #[test]
    fn digest_depends_on_every_byte_of_the_file() {
        let folder = std::env::temp_dir().join(format!("corebeat-team-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("a");
        let mut seen = Vec::new();
        for text in ["", "a", "b", "ab"] {
            fs::write(&file, text).unwrap();
            seen.push(digest(&file).unwrap());
            assert_eq!(seen.last(), digest(&file).ok().as_ref());
        }
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 4);
        fs::remove_dir_all(&folder).unwrap();
        assert!(digest(&file).is_err());
    }
}
