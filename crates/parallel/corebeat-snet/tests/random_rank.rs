//! Random networks on several ranks, in one process: each run is compared with the sequential
//! interpreter, and with the bound of the protocol.
//!
//! All ranks and their transport are tasks of one deterministic runtime. The transport delivers
//! the messages of random pairs of ranks, one by one or together, and keeps only their order
//! between two ranks. A seed determines the network, its places, the schedule of the tasks and the
//! order of the messages. A failing network is printed with the command that repeats the case.
//! While all tasks wait, the nodes look for a run without progress, which must be reported. A lost
//! message appears as a run that is neither over nor reported, because its bytes do not arrive.

mod reference;

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use corebeat_lpel::{Runtime, Writer, spawn, stream, yield_now};
use corebeat_snet::body::BoxBody;
use corebeat_snet::plan::{
    Branch, FeedbackPlan, Net, Node as Part, ParallelPlan, SplitPlan, StarPlan,
};
use corebeat_snet::rank::{self, Node, Outbound, Window};
use corebeat_snet::{Fault, Network, NetworkOptions, OnFault, Record, Running};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use reference::{Case, Class, cases};

/// How the ranks are connected.
#[derive(Clone, Copy, Debug)]
struct Ranks {
    count: u32,
    /// Bound of the messages of a channel.
    window: Window,
    /// Largest field that moves with its record.
    eager_bytes: usize,
    /// Largest field whose elements are no message of their own.
    apart_bytes: usize,
    /// Capacity of a stream within a rank.
    capacity: usize,
    /// Records that are read before the output is dropped.
    taken: usize,
    on_fault: OnFault,
    seed: u64,
}

impl Ranks {
    /// Whether all records pass through the network.
    fn is_whole(&self) -> bool {
        self.taken == usize::MAX && self.on_fault == OnFault::Continue
    }
}

/// A defect of the transport or of the protocol, at one message.
#[derive(Clone, Copy, Debug)]
struct Plant {
    selects: fn(&[u8]) -> bool,
    /// Least number of selected messages before it.
    at: usize,
    effect: Effect,
}

#[derive(Clone, Copy, Debug)]
enum Effect {
    /// The transport delivers the message this number of times.
    Copies(usize),
    /// The sender has sent the message before the preceding record, if that waits, too.
    Early,
    /// The sender has sent another second number.
    Number(fn(u64) -> u64),
}

/// Messages under way between two ranks. A frame or a field.
type Queue = VecDeque<Outbound>;

impl Effect {
    /// Adds the message, with the defect, to those under way. Returns whether it has the defect.
    fn add(self, mut frame: Vec<u8>, queue: &mut Queue) -> bool {
        match self {
            Effect::Copies(copies) => {
                (0..copies).for_each(|_| queue.push_back(Outbound::Frames(frame.clone())));
                true
            }
            Effect::Early => {
                let is_before = |message: &Outbound| match message {
                    Outbound::Frames(before) => {
                        rank::is_record(before) && before[5..13] == frame[5..13]
                    }
                    Outbound::Field(_) => false,
                };
                let at = queue.iter().rposition(is_before);
                queue.insert(at.unwrap_or(queue.len()), Outbound::Frames(frame));
                at.is_some()
            }
            Effect::Number(change) => {
                let number = 13..21;
                let before = u64::from_le_bytes(frame[number.clone()].try_into().unwrap());
                frame[number].copy_from_slice(&change(before).to_le_bytes());
                queue.push_back(Outbound::Frames(frame));
                change(before) != before
            }
        }
    }
}

/// Bytes of the fields of the messages of a channel. With 0, a record with a larger field takes
/// half of a window.
const WINDOW_BYTES: [usize; 4] = [0, 100, 1000, 4 << 20];

/// Looks for a run without progress, while all tasks wait. Two waves need at most this number.
const LOOKS_MAX: usize = 10;

/// Result of a run.
#[derive(Debug)]
struct Outcome {
    records: Vec<Record>,
    faults: Vec<Fault>,
    fault_count: usize,
    kept: usize,
    /// Fields that ranks keep for each other after the run.
    held: usize,
    counts: Counts,
}

/// Numbers of messages between ranks.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    messages: usize,
    /// Defects among them.
    planted: usize,
    /// Requests for the data of a field, and releases of a field whose data has not moved.
    fetches: usize,
    releases: usize,
    /// Fields whose elements were a message of their own.
    fields: usize,
}

/// Passes messages between ranks until all have ended. `bell` waits for messages, and returns
/// false if all other tasks wait.
fn transport(
    nodes: &[Arc<Node>],
    mut bell: impl FnMut() -> bool,
    mut random: fastrand::Rng,
    plant: Option<Plant>,
) -> Result<Counts, String> {
    let count = nodes.len();
    let mut under_way: Vec<Queue> = vec![Queue::new(); count * count];
    let mut has_ended = vec![false; count * count];
    let (mut counts, mut selected, mut looks) = (Counts::default(), 0, 0);
    loop {
        for (pair, queue) in under_way.iter_mut().enumerate() {
            let (from, to) = (pair / count, pair % count);
            while let Some(message) = nodes[from].take(to as u32) {
                let Outbound::Frames(bytes) = message else {
                    counts.fields += 1;
                    queue.push_back(message);
                    continue;
                };
                for frame in rank::frames(&bytes) {
                    if std::mem::replace(&mut has_ended[pair], rank::is_last(&frame)) {
                        return Err(format!("rank {from} sends after its last message"));
                    }
                    if !rank::is_of_detection(&frame) {
                        looks = 0;
                    }
                    counts.fetches += usize::from(rank::is_fetch(&frame));
                    counts.releases += usize::from(rank::is_release(&frame));
                    let mut effect = None;
                    if let Some(plant) = plant
                        && (plant.selects)(&frame)
                    {
                        effect =
                            (counts.planted == 0 && selected >= plant.at).then_some(plant.effect);
                        selected += 1;
                    }
                    match effect {
                        None => queue.push_back(Outbound::Frames(frame)),
                        Some(effect) => {
                            counts.planted += usize::from(effect.add(frame, queue));
                        }
                    }
                }
            }
        }
        let full: Vec<usize> =
            (0..under_way.len()).filter(|pair| !under_way[*pair].is_empty()).collect();
        if full.is_empty() {
            if nodes.iter().all(|node| node.has_ended()) {
                return Ok(counts);
            }
            if !bell() {
                looks += 1;
                let lines: Vec<Option<String>> =
                    nodes.iter().map(|node| node.look_with(|| true, String::new)).collect();
                if let Some(line) = lines.into_iter().flatten().next() {
                    return Err(line);
                }
                if looks > LOOKS_MAX {
                    return Err("all tasks wait, and no report states it".into());
                }
            }
            continue;
        }
        let pair = full[random.usize(..full.len())];
        // Frames may arrive together.
        let is_frame = |message: &&Outbound| matches!(message, Outbound::Frames(_));
        let most = under_way[pair].iter().take_while(is_frame).count().clamp(1, 4);
        let count_of = random.usize(1..=most);
        let messages = under_way[pair].drain(..count_of);
        let bytes = messages.fold(Vec::new(), |bytes, message| [&bytes, message.as_ref()].concat());
        counts.messages += count_of;
        let (from, node) = ((pair / count) as u32, &nodes[pair % count]);
        let received = match random.bool() {
            true => node.receive(from, &bytes),
            false => node.receive_words(from, &mut rank::words(&bytes), bytes.len()),
        };
        received.map_err(|why| why.to_string())?;
        (0..random.usize(..3)).for_each(|_| yield_now());
    }
}

/// Runs a network on several ranks.
fn run(
    networks: Vec<Network>,
    input: Vec<Record>,
    ranks: Ranks,
    plant: Option<Plant>,
) -> Result<Outcome, String> {
    let workers = 1 + ranks.seed as usize % 3;
    let runtime = Runtime::builder().workers(workers).deterministic(ranks.seed).build().unwrap();
    let runtime = Arc::new(runtime);
    let (of_tasks, corrupt) = (runtime.clone(), Arc::new(Mutex::new(None)));
    let of_transport = corrupt.clone();
    let ran = runtime.run(move || {
        let (bell, mut rung) = stream(1);
        let bell: Arc<Mutex<Writer<()>>> = Arc::new(Mutex::new(bell));
        let node = |rank| {
            let bell = bell.clone();
            // A full stream has rung already.
            let ring = move || {
                let _ = bell.lock().unwrap().try_write(());
            };
            let node = Node::new((rank, ranks.count), ranks.window, ranks.eager_bytes, false, ring);
            node.set_apart_bytes(ranks.apart_bytes);
            node
        };
        let nodes: Vec<Arc<Node>> = (0..ranks.count).map(node).collect();
        let served = nodes.clone();
        let transport = spawn(move || {
            let random = fastrand::Rng::with_seed(ranks.seed);
            // The virtual clock does not reach the limit before all tasks wait.
            let bell = || rung.read_timeout(Duration::from_secs(10_000)).is_ok();
            transport(&served, bell, random, plant)
                .map_err(|why| *of_transport.lock().unwrap() = Some(why))
        });
        let serving: Vec<_> = (nodes[1..].iter().zip(&networks[1..]))
            .map(|(node, network)| {
                let serving = network.serve(&of_tasks, node.clone());
                spawn(move || serving.wait())
            })
            .collect();
        let started = networks[0].start_on_ranks(&of_tasks, nodes[0].clone());
        let Running { input: mut to, output, report } = started;
        let writer = spawn(move || {
            for record in input {
                if to.write(record).is_err() {
                    return;
                }
            }
        });
        let records: Vec<Record> = output.take(ranks.taken).collect();
        writer.join().unwrap();
        serving.into_iter().for_each(|serving| serving.join().unwrap());
        let counts = transport.join().unwrap().unwrap_or_default();
        Outcome {
            records,
            faults: report.faults(),
            fault_count: report.fault_count(),
            kept: report.kept(),
            held: nodes.iter().map(|node| node.fields_held()).sum(),
            counts,
        }
    });
    let corrupt = corrupt.lock().unwrap().take();
    match (ran, corrupt) {
        (Ok(outcome), None) => Ok(outcome),
        (_, Some(why)) => Err(why),
        (Err(why), None) => Err(why.to_string()),
    }
}

/// The part with random places.
fn scatter(part: &Part, random: &mut fastrand::Rng) -> Part {
    let inner = match part {
        Part::Identity | Part::Box(_) | Part::Filter(_) | Part::Sync(_) => part.clone(),
        Part::Serial(parts) => Part::Serial(parts.iter().map(|p| scatter(p, random)).collect()),
        Part::Parallel(plan) => {
            let branches = plan.branches.iter().map(|branch| Branch {
                accepts: branch.accepts.clone(),
                node: scatter(&branch.node, random),
            });
            let (deterministic, branches) = (plan.deterministic, branches.collect());
            Part::Parallel(Arc::new(ParallelPlan { deterministic, branches }))
        }
        Part::Star(plan) => Part::Star(Arc::new(StarPlan {
            deterministic: plan.deterministic,
            operand: scatter(&plan.operand, random),
            exits: plan.exits.clone(),
        })),
        Part::Split(plan) => Part::Split(Arc::new(SplitPlan {
            deterministic: plan.deterministic,
            placed: random.bool(),
            operand: scatter(&plan.operand, random),
            tag: plan.tag,
        })),
        Part::Feedback(plan) => Part::Feedback(Arc::new(FeedbackPlan {
            operand: scatter(&plan.operand, random),
            patterns: plan.patterns.clone(),
        })),
        Part::Place(inner, place) => Part::Place(Arc::new(scatter(inner, random)), *place),
        Part::Net(name, inner) => Part::Net(name.clone(), Arc::new(scatter(inner, random))),
    };
    match random.u8(..3) {
        0 => Part::Place(Arc::new(inner), random.u32(..9)),
        _ => inner,
    }
}

/// The network of a case for each rank, with the same random places.
fn networks(case: &Case, ranks: Ranks) -> Vec<Network> {
    let net = &case.net;
    let root = scatter(net.root(), &mut fastrand::Rng::with_seed(ranks.seed));
    let net = Net::new(net.name(), root, net.input().to_vec(), net.output().to_vec());
    let bodies = case.bodies();
    let options = NetworkOptions {
        capacity: ranks.capacity,
        on_fault: ranks.on_fault,
        ..NetworkOptions::default()
    };
    let network = |_| {
        let find = |plan: &corebeat_snet::plan::BoxPlan| {
            Ok::<Arc<dyn BoxBody>, ()>(bodies[&plan.name].clone())
        };
        Network::new(net.clone(), find).unwrap().with_options(options.clone())
    };
    (0..ranks.count).map(network).collect()
}

/// Environment variables for the seed of one case, and for the number of cases.
const SEED: &str = "COREBEAT_SNET_SEED";

/// Cases of a test without `PROPTEST_CASES`.
const CASES: u32 = 150;

/// Tries cases with different seeds, or only the case of the seed in the environment.
fn compare(test: &str, mut try_case: impl FnMut(u64) -> Result<(), String>) {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number(SEED) {
        Some(seed) => seed..seed + 1,
        None => {
            let first = RandomState::new().hash_one(test) >> 1;
            first..first + number("PROPTEST_CASES").unwrap_or(CASES.into())
        }
    };
    for seed in seeds {
        if let Err(why) = try_case(seed) {
            panic!(
                "{why}\nrepeat the case: {SEED}={seed} cargo test -p corebeat-snet --test \
                 random_rank {test}"
            );
        }
    }
}

fn ranks() -> impl Strategy<Value = Ranks> {
    let window = prop_oneof![Just(1u32), Just(2), Just(3), Just(64)];
    let eager_bytes = prop_oneof![Just(0usize), Just(3), Just(rank::EAGER_BYTES)];
    let apart_bytes = prop_oneof![Just(0usize), Just(8 << 10)];
    let capacity = prop_oneof![Just(1usize), Just(64)];
    (1..=5u32, window, eager_bytes, apart_bytes, capacity, any::<u64>()).prop_map(
        |(count, messages, eager_bytes, apart_bytes, capacity, seed)| Ranks {
            count,
            window: Window { messages, bytes: WINDOW_BYTES[seed as usize % WINDOW_BYTES.len()] },
            eager_bytes,
            apart_bytes,
            capacity,
            taken: usize::MAX,
            on_fault: OnFault::Continue,
            seed,
        },
    )
}

/// Runs one case. Returns the numbers of messages between its ranks.
fn try_case(class: Class, seed: u64, plant: Option<Plant>) -> Result<Counts, String> {
    try_case_of(class, ranks(), seed, plant)
}

fn try_case_of(
    class: Class,
    ranks: impl Strategy<Value = Ranks>,
    seed: u64,
    plant: Option<Plant>,
) -> Result<Counts, String> {
    // The simplest case of a planted defect is of no interest.
    let max_shrink_iters = if plant.is_some() { 0 } else { 500 };
    let config =
        Config { cases: 1, max_shrink_iters, failure_persistence: None, ..Config::default() };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let mut runner =
        TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let counts = std::cell::Cell::new(Counts::default());
    let ended = runner.run(&(cases(class), ranks), |(case, ranks)| {
        let outcome = run(networks(&case, ranks), case.input.clone(), ranks, plant);
        let outcome = outcome.map_err(TestCaseError::fail)?;
        // A run that ends early has no certain output.
        if ranks.is_whole() {
            let same = case.check(&outcome.records, outcome.fault_count, outcome.kept);
            same.map_err(|why| format!("{why}\nfaults: {:?}", outcome.faults))
                .map_err(TestCaseError::fail)?;
        }
        if outcome.held > 0 {
            return Err(TestCaseError::fail(format!("{} fields are not freed", outcome.held)));
        }
        counts.set(outcome.counts);
        Ok(())
    });
    ended.map(|()| counts.get()).map_err(|why| why.to_string())
}

fn try_cases(test: &str, class: Class) {
    let (mut messages, mut fetches, mut releases, mut fields) = (0, 0, 0, 0);
    compare(test, |seed| {
        let counts = try_case(class, seed, None)?;
        messages += counts.messages;
        fetches += counts.fetches;
        releases += counts.releases;
        fields += counts.fields;
        Ok(())
    });
    if std::env::var_os(SEED).is_none() {
        assert!(messages > 1000, "only {messages} messages between ranks");
        assert!(fields > 50, "only {fields} fields were messages of their own");
        assert!(fetches > 50, "only {fetches} fields were read on another rank");
        assert!(releases > 20, "only {releases} fields were released on another rank");
    }
}

#[test]
fn random_confluent_network_on_ranks_equals_the_interpreter() {
    let test = "random_confluent_network_on_ranks_equals_the_interpreter";
    try_cases(test, Class::Confluent);
}

#[test]
fn random_ordered_network_on_ranks_outputs_the_same_sequence() {
    let test = "random_ordered_network_on_ranks_outputs_the_same_sequence";
    try_cases(test, Class::Ordered);
}

#[test]
fn random_merging_network_on_ranks_neither_loses_nor_duplicates() {
    let test = "random_merging_network_on_ranks_neither_loses_nor_duplicates";
    try_cases(test, Class::Merging);
}

#[test]
fn random_network_that_ends_early_ends_on_all_ranks_and_frees_all_fields() {
    let test = "random_network_that_ends_early_ends_on_all_ranks_and_frees_all_fields";
    let on_fault = prop_oneof![Just(OnFault::Stop), Just(OnFault::Continue)];
    let taken = prop_oneof![3 => 0..6usize, 1 => Just(usize::MAX)];
    let early = (ranks(), taken, on_fault).prop_map(|(ranks, taken, on_fault)| Ranks {
        taken,
        on_fault,
        ..ranks
    });
    compare(test, |seed| try_case_of(Class::Merging, &early, seed, None).map(drop));
}

/// Seeds until this number of cases have a defect, and the cases among them in which it is detected
/// with one of these texts.
fn detected_as(plant: Plant, cases: usize, texts: &[&str]) -> usize {
    let (mut planted, mut found) = (0, 0);
    for seed in 0.. {
        match try_case(Class::Confluent, seed, Some(plant)) {
            // Without a message of this kind, there is no defect.
            Ok(Counts { planted: 0, .. }) => continue,
            Ok(_) => {}
            Err(why) => found += usize::from(texts.iter().any(|text| why.contains(text))),
        }
        planted += 1;
        if planted == cases {
            break;
        }
    }
    found
}

fn detected(plant: Plant, cases: usize) -> usize {
    detected_as(plant, cases, &[""])
}

#[test]
fn lost_and_doubled_messages_are_detected() {
    let plant = |selects, at, copies| Plant { selects, at, effect: Effect::Copies(copies) };
    for at in [0, 2] {
        // The receiver of a channel without an end never ends, and a second end has no channel.
        assert_eq!(detected(plant(rank::is_close, at, 0), 12), 12, "lost end");
        assert_eq!(detected(plant(rank::is_close, at, 2), 12), 12, "second end");
        // A box may drop the record, and the last credit of a channel is not needed.
        let records = [0, 2].map(|copies| detected(plant(rank::is_record, at, copies), 12));
        assert!(records.iter().all(|found| *found >= 8), "lost and second records: {records:?}");
        let credits = detected(plant(rank::is_credit, at, 0), 30);
        assert!(credits >= 4, "lost credits: {credits} of 30");
    }
}

#[test]
fn faults_of_the_protocol_are_detected() {
    let plant = |selects, effect| Plant { selects, at: 0, effect };
    // The record after the end has no channel.
    let early = detected(plant(rank::is_close, Effect::Early), 8);
    assert_eq!(early, 8, "end before the last record");
    // The receiver has no room for the records that the sender may send.
    let more = Effect::Number(|credits| credits.min(1 << 20) + 64);
    let more = detected_as(plant(rank::is_credit, more), 30, &["no credit"]);
    assert!(more >= 4, "too many credits: {more} of 30");
    // The owner keeps the field for ever.
    let lost = detected_as(plant(rank::is_release, Effect::Copies(0)), 12, &["are not freed"]);
    assert_eq!(lost, 12, "lost release");
    // Nothing is lost, but the sender waits for ever, unless it needs no further credit.
    let none = detected_as(plant(rank::is_credit, Effect::Number(|_| 0)), 30, &["no progress"]);
    assert!(none >= 4, "no credits: {none} of 30");
}
