//! Collections of objects and processors, as Meyer, Kogtenkov, Akhi measured them (*Processors and their collection*, 2012, section 6).
//!
//! Each subject runs in a process of its own: it builds the objects with no collection in between, then collects a few times. All
//! objects live, but where the case says so, and each collection is to find that.

use crate::Bench;
use crate::apart::{self, Case};
use crate::round::{Measured, Subject as Turn};
use crate::row::Better;
use crate::session::Session;
use clap::ValueEnum;
use corebeat_scoop::{Gc, Here, Link, Separate, System, Trace};
use std::process::ExitCode;
use std::time::{Duration, Instant};

pub(crate) const BENCHES: [Bench; 1] = [Bench {
    name: "scoop.collect",
    summary: "time of a full collection of objects and processors",
    peers: &["objects only", "processor as object", "gc-arena"],
    tools: &[],
    cases: |session| apart::names(&cases(session)),
    run,
}];

/// A run is ended after this.
const RUN_MAX: Duration = Duration::from_secs(120);
/// Collections of a run: the mean of them is one value.
const COLLECTIONS: u32 = 3;

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Subject {
    Corebeat,
    ObjectsOnly,
    ProcessorAsObject,
    GcArena,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Work {
    /// Full binary trees, one a processor (figure 2).
    Trees,
    /// One ring of objects on random processors (figure 3).
    Ring,
    /// Ten random links an object (figure 4).
    Links,
    /// Trees, of which only the first processor's lives: the others die in the first collection, and that is the one that is timed.
    Dead,
}

/// What is built: how, objects, processors.
type Load = (Work, usize, usize);

fn cases(session: &Session) -> Vec<Case<Subject, Load>> {
    let loads: &[Load] = if session.quick {
        &[(Work::Trees, 700, 7), (Work::Ring, 500, 5), (Work::Links, 500, 5), (Work::Dead, 700, 7)]
    } else {
        &[
            (Work::Trees, 100_000, 1),
            (Work::Trees, 100_000, 100),
            (Work::Trees, 1_000_000, 1),
            (Work::Trees, 1_000_000, 100),
            (Work::Trees, 10_000_000, 100),
            (Work::Ring, 1_000_000, 2),
            (Work::Ring, 100_000, 100),
            (Work::Ring, 1_000_000, 100),
            (Work::Links, 100_000, 100),
            (Work::Links, 1_000_000, 100),
            (Work::Dead, 1_000_000, 100),
        ]
    };
    let case = |&(work, objects, processors): &Load| {
        let subjects = Subject::value_variants().iter().map(|subject| {
            let name =
                subject.to_possible_value().map_or_else(String::new, |v| v.get_name().replace('-', " "));
            let name = if *subject == Subject::GcArena { "gc-arena".to_owned() } else { name };
            (name, *subject, (work, objects, processors))
        });
        let all = match work {
            Work::Trees => "trees",
            Work::Ring => "ring",
            Work::Links => "ten links",
            Work::Dead => "trees, all but one dead",
        };
        Case {
            name: format!("{all}, {objects} objects, {processors} processors"),
            subjects: subjects.collect(),
        }
    };
    loads.iter().map(case).collect()
}

fn run(session: &Session) -> Result<(), String> {
    let cases = cases(session);
    apart::measure(
        session,
        BENCHES[0].name,
        |_| ("ms", Better::Lower),
        &cases,
        |case| {
            let turn = |(name, subject, load): &'_ (String, Subject, Load)| {
                let (subject, load) = (*subject, *load);
                Turn::new(name, move || measure(session, subject, load))
            };
            Ok(case.subjects.iter().map(turn).collect())
        },
    )
}

fn measure(
    session: &Session,
    subject: Subject,
    (work, objects, processors): Load,
) -> Result<Measured, String> {
    let mut command = apart::command(session, "scoop", subject)?;
    command.arg(format!("--work={}", apart::word(work)));
    command.arg(format!("--objects={objects}")).arg(format!("--processors={processors}"));
    // It has counted what lives itself.
    apart::value(command, RUN_MAX)
}

/// One subject.
#[derive(clap::Args)]
pub(crate) struct Options {
    #[arg(long)]
    subject: Subject,
    #[arg(long)]
    work: Work,
    #[arg(long)]
    objects: usize,
    #[arg(long)]
    processors: usize,
}

/// The child's side.
pub(crate) fn main(options: &Options) -> Result<ExitCode, String> {
    let (time, checksum) = match (options.subject, options.work) {
        (Subject::GcArena, Work::Trees | Work::Dead) => arena::<2>(options),
        (Subject::GcArena, Work::Ring) => arena::<1>(options),
        (Subject::GcArena, Work::Links) => arena::<10>(options),
        (_, Work::Trees | Work::Dead) => regions::<2>(options)?,
        (_, Work::Ring) => regions::<1>(options)?,
        (_, Work::Links) => regions::<10>(options)?,
    };
    println!("value {}\nchecksum {checksum:016x}", time.as_secs_f64() * 1e3);
    Ok(ExitCode::SUCCESS)
}

/// Where each link of an object leads, and on which processor objects are: the same for all subjects.
struct Plan {
    random: u64,
    work: Work,
    objects: usize,
    processors: usize,
}

impl Plan {
    fn below(&mut self, n: usize) -> usize {
        // Marsaglia, *Xorshift RNGs*, 2003.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        ((u128::from(self.random) * n as u128) >> 64) as usize
    }

    /// The objects of each processor.
    fn share(&mut self) -> Vec<Vec<usize>> {
        let mut share = vec![Vec::new(); self.processors];
        for object in 0..self.objects {
            let processor = match self.work {
                Work::Trees | Work::Dead => object * self.processors / self.objects,
                Work::Ring | Work::Links => self.below(self.processors),
            };
            share[processor].push(object);
        }
        share
    }

    /// Objects that a link leads to.
    fn links<const N: usize>(&mut self, object: usize) -> [usize; N] {
        std::array::from_fn(|_| match self.work {
            Work::Ring => (object + 1) % self.objects,
            _ => self.below(self.objects),
        })
    }
}

fn plan(options: &Options) -> Plan {
    let Options { work, objects, processors, .. } = *options;
    Plan { random: 0x9e37_79b9_7f4a_7c15, work, objects, processors }
}

/// An object with so many links, and one to its processor where processors are objects: else it is there, and empty, as in the paper.
#[derive(Trace)]
struct Node<const N: usize> {
    links: [Option<Link<Node<N>>>; N],
    processor: Option<Link<Root>>,
}

/// What stands for a processor where processors are objects.
#[derive(Trace)]
struct Root;

/// What a processor begins with: its objects; the first alone in a tree. A ring is known by the first object of the first processor.
#[derive(Trace)]
struct Home<const N: usize> {
    nodes: Vec<Gc<Node<N>>>,
    root: Gc<Root>,
}

fn regions<const N: usize>(options: &Options) -> Result<(Duration, u64), String> {
    let runtime = corebeat_lpel::Runtime::builder().workers(1).build().map_err(|e| e.to_string())?;
    let system = System::builder().processors_between(u64::MAX).bytes_between(u64::MAX).build(runtime);
    let client = system.client();
    let mut plan = plan(options);
    let as_object = options.subject == Subject::ProcessorAsObject;
    let share = plan.share();
    let failed = |e: corebeat_scoop::Error| e.to_string();
    let mut homes = Vec::new();
    for own in &share {
        let count = own.len();
        let home = client.create(move |here| {
            let root = here.make(Root);
            let node = || Node { links: [None; N], processor: as_object.then_some(root.into()) };
            let nodes: Vec<_> = (0..count).map(|_| here.make(node())).collect();
            Home { nodes, root }
        });
        home.query(&client, |here, home| here[here[home].root].touch()).map_err(failed)?;
        homes.push(home);
    }
    match options.work {
        Work::Trees | Work::Dead => {
            for home in &homes {
                home.query(&client, tree).map_err(failed)?;
            }
        }
        Work::Ring | Work::Links => link(&client, &homes, &share, &mut plan).map_err(failed)?,
    }
    if matches!(options.work, Work::Dead | Work::Ring) {
        homes.truncate(1);
    }
    let collections = if options.work == Work::Dead { 1 } else { COLLECTIONS };
    let begin = Instant::now();
    let mut found = 0;
    for _ in 0..collections {
        let collected =
            if options.subject == Subject::ObjectsOnly { system.collect_objects() } else { system.collect() };
        found = collected.objects;
    }
    let time = begin.elapsed() / collections;
    let live = if options.work == Work::Dead { share[0].len() } else { options.objects };
    // Homes and roots are objects as well.
    let roots = if as_object && options.work == Work::Ring { options.processors } else { homes.len() };
    let expected = live + homes.len() + roots;
    if found != expected as u64 {
        return Err(format!("{found} objects are left, not {expected}"));
    }
    Ok((time, found))
}

impl Root {
    fn touch(&self) {}
}

/// Makes a full binary tree of the objects, of which the home knows the first.
fn tree<const N: usize>(here: &mut Here<'_>, home: Gc<Home<N>>) {
    let nodes = std::mem::take(&mut here[home].nodes);
    for (n, node) in nodes.iter().enumerate() {
        for side in 0..N {
            here[*node].links[side] = nodes.get(N * n + side + 1).map(|child| Link::from(*child));
        }
    }
    here[home].nodes = nodes[..1].to_vec();
}

/// Links objects of any processors as planned.
fn link<const N: usize>(
    client: &corebeat_scoop::Client,
    homes: &[Separate<Home<N>>],
    share: &[Vec<usize>],
    plan: &mut Plan,
) -> Result<(), corebeat_scoop::Error> {
    let mut all: Vec<Option<Separate<Node<N>>>> = vec![None; plan.objects];
    for (home, own) in homes.iter().zip(share) {
        let nodes = home.query(client, |here, home| {
            here[home].nodes.iter().map(|node| here.separate(*node)).collect::<Vec<_>>()
        })?;
        own.iter().zip(nodes).for_each(|(number, node)| all[*number] = Some(node));
    }
    let all = std::sync::Arc::new(all);
    for (home, own) in homes.iter().zip(share) {
        let targets: Vec<[usize; N]> = own.iter().map(|object| plan.links(*object)).collect();
        let all = all.clone();
        home.query(client, move |here, home| {
            for (n, targets) in targets.iter().enumerate() {
                let node = here[home].nodes[n];
                for (side, target) in targets.iter().enumerate() {
                    let target = all[*target].as_ref().expect("each is on some processor");
                    here[node].links[side] = Some(here.link(target));
                }
            }
        })?;
    }
    if plan.work == Work::Ring {
        homes[0].query(client, |here, home| here[home].nodes.truncate(1))?;
    }
    Ok(())
}

// ---- gc-arena: one heap, for one thread

#[derive(gc_arena::Collect)]
#[collect(no_drop)]
struct ArenaNode<'gc, const N: usize> {
    links: [Option<gc_arena::Gc<'gc, gc_arena::lock::RefLock<ArenaNode<'gc, N>>>>; N],
}

type ArenaLink<'gc, const N: usize> = gc_arena::Gc<'gc, gc_arena::lock::RefLock<ArenaNode<'gc, N>>>;

fn arena<const N: usize>(options: &Options) -> (Duration, u64) {
    let mut plan = plan(options);
    let share = plan.share();
    let mut arena = gc_arena::Arena::<gc_arena::Rootable![Vec<ArenaLink<'_, N>>]>::new(|mc| {
        let new = |_| gc_arena::Gc::new(mc, gc_arena::lock::RefLock::new(ArenaNode { links: [None; N] }));
        let nodes: Vec<ArenaLink<'_, N>> = (0..options.objects).map(new).collect();
        let mut roots = Vec::new();
        for own in &share {
            for (n, object) in own.iter().enumerate() {
                let targets: [Option<usize>; N] = match options.work {
                    Work::Trees | Work::Dead => {
                        std::array::from_fn(|side| own.get(N * n + side + 1).copied())
                    }
                    Work::Ring | Work::Links => plan.links::<N>(*object).map(Some),
                };
                nodes[*object].borrow_mut(mc).links = targets.map(|target| target.map(|t| nodes[t]));
            }
            match options.work {
                Work::Trees | Work::Dead => roots.push(nodes[own[0]]),
                Work::Ring => {
                    roots.extend(own.first().filter(|_| roots.is_empty()).map(|first| nodes[*first]))
                }
                Work::Links => roots.extend(own.iter().map(|object| nodes[*object])),
            }
        }
        if options.work == Work::Dead {
            roots.truncate(1);
        }
        roots
    });
    let collections = if options.work == Work::Dead { 1 } else { COLLECTIONS };
    let begin = Instant::now();
    (0..collections).for_each(|_| arena.finish_cycle());
    (begin.elapsed() / collections, options.objects as u64)
}
