//! Random networks, compared with an interpreter that runs one node after another.
//!
//! Process networks are determinate: the content of each stream does not depend on the schedule.
//! Where a set merges streams, the order is undefined, but the content is not.
//!
//! A plan is a seed and a list of genes of four bytes. `compile` makes nodes of it, and their
//! expected output. A failing plan is shrunk and printed with the command that replays it.

use corebeat_lpel::monitor::{Dispatch, End, Level, Listener, Monitor, StreamUse, Wait};
use corebeat_lpel::placement::{Balanced, RoundRobin};
use corebeat_lpel::scheduler::{Fifo, Lifo, Prioritised, Ready, Scheduler};
use corebeat_lpel::*;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

// ---- plans

#[derive(Clone, PartialEq)]
struct Plan {
    seed: u64,
    genes: Vec<[u8; 4]>,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.seed)?;
        self.genes.iter().try_for_each(|g| write!(f, ".{:08x}", u32::from_be_bytes(*g)))
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl Plan {
    fn parse(text: &str) -> Plan {
        let mut parts = text.split('.');
        let seed = u64::from_str_radix(parts.next().unwrap(), 16)
            .expect("a plan begins with its seed, in hex");
        let gene =
            |g| u32::from_str_radix(g, 16).expect("a gene has eight hex digits").to_be_bytes();
        Plan { seed, genes: parts.map(gene).collect() }
    }

    /// Random number below `bound`, which depends on the seed and on `what` only.
    fn draw(&self, what: u64, bound: u64) -> u64 {
        // A generator per `what` makes draws independent of their order.
        let seed = self.seed ^ what.rotate_left(u32::BITS);
        fastrand::Rng::with_seed(seed).u64(..bound)
    }
}

fn plans() -> impl Strategy<Value = Plan> {
    (any::<u64>(), prop::collection::vec(any::<[u8; 4]>(), 1..24))
        .prop_map(|(seed, genes)| Plan { seed, genes })
}

/// Static properties of a stream.
#[derive(Debug, Clone)]
struct Flow {
    items: Vec<u64>,
    /// Whether the order of items is undefined.
    is_bag: bool,
    /// Streams with equal numbers have a common source.
    family: usize,
    capacity: usize,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Style {
    /// A task with a stack, which blocks.
    Stackful,
    Async,
    /// A task with a stack, which polls and yields.
    Polling,
    Blocking,
}

#[derive(Debug, Clone, Copy)]
enum Pause {
    None,
    Yield,
    Sleep,
}

/// Properties of a node that do not change its results.
#[derive(Debug, Clone, Copy)]
struct Manner {
    style: Style,
    /// Pause after each group of this number of items.
    every: u64,
    pause: Pause,
    worker: Option<usize>,
    priority: Option<Priority>,
}

/// Streams are identified by their number.
#[derive(Debug, Clone)]
enum Work {
    Source {
        items: Vec<u64>,
        out: usize,
    },
    Map {
        input: usize,
        out: usize,
        add: u64,
    },
    Filter {
        input: usize,
        out: usize,
        modulus: u64,
    },
    /// Routes items by value.
    Split {
        input: usize,
        outs: [usize; 2],
    },
    Copy {
        input: usize,
        outs: [usize; 2],
    },
    /// Reads one item of each in turn, and then the rest.
    Zip {
        inputs: [usize; 2],
        out: usize,
    },
    /// Merges by a set. The last few streams are added while the set is in use.
    Merge {
        inputs: Vec<usize>,
        out: usize,
        late: usize,
    },
    /// Reads the first few items, and then closes its input.
    Take {
        input: usize,
        out: usize,
        items: usize,
    },
    /// Reads the first few items, and produces nothing.
    Waste {
        input: usize,
        items: usize,
    },
    /// Sends each item around a loop as often as its value requires, in bursts of a fixed size.
    Loop {
        input: usize,
        out: usize,
        burst: usize,
    },
    /// Spawns a task for each item. Its stream is sent to a task that reads the streams in order.
    Delegate {
        input: usize,
        out: usize,
        add: u64,
    },
    /// As `Map`, by tasks that pass their ends to the next task after a number of items.
    Relay {
        input: usize,
        out: usize,
        add: u64,
        items: usize,
    },
    Batch {
        input: usize,
        out: usize,
        items: usize,
    },
    Sink {
        input: usize,
    },
}

#[derive(Debug)]
struct Node {
    work: Work,
    manner: Manner,
}

/// A compiled plan.
#[derive(Debug)]
struct Network {
    plan: Plan,
    flows: Vec<Flow>,
    /// Whether all streams may grow. Otherwise no node may need room to continue.
    growing: bool,
    nodes: Vec<Node>,
}

#[derive(Clone, Copy, PartialEq)]
enum Order {
    Fifo,
    Lifo,
    Prioritised,
}

fn order(plan: &Plan) -> Order {
    [Order::Fifo, Order::Fifo, Order::Lifo, Order::Prioritised][plan.draw(2, 4) as usize]
}

const ITEMS_MAX: usize = 400;
const BLOCKING_MAX: usize = 3;

fn round(n: u64) -> u64 {
    n.wrapping_mul(3).wrapping_add(1)
}

fn laps(n: u64) -> u64 {
    1 + n % 3
}

fn compile(plan: &Plan) -> Network {
    let growing = plan.draw(1, 2) == 0;
    // A node that polls and yields starves others where the order is unfair, and hides from the
    // search for artificial deadlocks, which needs idle workers.
    let may_poll =
        order(plan) == Order::Fifo && !growing && plan.genes.iter().all(|g| g[0] % 16 != 8);
    let mut compiler =
        Compiler { growing, may_poll, flows: Vec::new(), open: Vec::new(), blocking_tasks: 0 };
    let mut nodes = Vec::new();
    for (n, gene) in plan.genes.iter().enumerate() {
        nodes.push(compiler.node(n, *gene));
    }
    for (n, input) in compiler.open.into_iter().enumerate() {
        let style = if plan.draw(100 + n as u64, 2) == 0 { Style::Stackful } else { Style::Async };
        let manner = Manner { style, every: 1, pause: Pause::None, worker: None, priority: None };
        nodes.push(Node { work: Work::Sink { input }, manner });
    }
    Network { plan: plan.clone(), flows: compiler.flows, growing, nodes }
}

/// State of a compilation.
struct Compiler {
    growing: bool,
    may_poll: bool,
    flows: Vec<Flow>,
    /// Streams that no node reads yet.
    open: Vec<usize>,
    blocking_tasks: usize,
}

impl Compiler {
    fn node(&mut self, n: usize, gene: [u8; 4]) -> Node {
        let [kind, a, b, c] = gene;
        let manner = self.manner(c);
        let input = if kind % 16 > 1 { self.pick(a) } else { None };
        let work = match input {
            Some(input) => self.work(gene, input),
            None => {
                let items: Vec<_> =
                    (0..u64::from(a % 64)).map(|i| i * u64::from(b) + n as u64).collect();
                Work::Source { items: items.clone(), out: self.flow(b, items, false, n) }
            }
        };
        Node { work, manner }
    }

    fn manner(&mut self, c: u8) -> Manner {
        let style = match c % 8 {
            0..3 => Style::Stackful,
            3..6 => Style::Async,
            6 if self.may_poll => Style::Polling,
            7 if self.blocking_tasks < BLOCKING_MAX => {
                self.blocking_tasks += 1;
                Style::Blocking
            }
            _ => Style::Stackful,
        };
        Manner {
            style,
            every: u64::from(c / 8 % 4 + 1),
            pause: [Pause::None, Pause::Yield, Pause::Sleep, Pause::None][usize::from(c / 32 % 4)],
            worker: (c >= 192).then_some(usize::from(c)),
            priority: (c < 32).then_some(Priority(c)),
        }
    }

    /// Takes an open stream, if there is one.
    fn pick(&mut self, by: u8) -> Option<usize> {
        let open = &mut self.open;
        (!open.is_empty()).then(|| open.swap_remove(usize::from(by) % open.len()))
    }

    /// Adds an open stream.
    fn flow(&mut self, b: u8, items: Vec<u64>, is_bag: bool, family: usize) -> usize {
        let at = self.flows.len();
        self.flows.push(Flow { items, is_bag, family, capacity: usize::from(b % 5 + 1) });
        self.open.push(at);
        at
    }

    /// Makes `family` the family of all streams of the other families.
    fn join_families(&mut self, others: &[usize], family: usize) {
        let joined = self.flows.iter_mut().filter(|f| others.contains(&f.family));
        joined.for_each(|f| f.family = family);
    }

    /// Returns the work of a node that reads `input`.
    fn work(&mut self, gene: [u8; 4], input: usize) -> Work {
        let [kind, a, b, _] = gene;
        let Flow { items, is_bag, family, .. } = self.flows[input].clone();
        let add = u64::from(b);
        let added: Vec<_> = items.iter().map(|n| n.wrapping_add(add)).collect();
        match kind % 16 {
            12 | 13 => return self.merge(input, a, b),
            14 | 15 if !is_bag => {
                if let Some(work) = self.zip(input, b) {
                    return work;
                }
            }
            _ => {}
        }
        let mut flow = |items| self.flow(b, items, is_bag, family);
        match kind % 16 {
            3 => {
                let modulus = u64::from(b % 3 + 2);
                let items = items.into_iter().filter(|n| n % modulus != 0).collect();
                Work::Filter { input, out: flow(items), modulus }
            }
            4 => {
                let (even, odd) = items.into_iter().partition::<Vec<_>, _>(|n| n % 2 == 0);
                Work::Split { input, outs: [flow(even), flow(odd)] }
            }
            5 if items.len() <= ITEMS_MAX => {
                Work::Copy { input, outs: [flow(items.clone()), flow(items)] }
            }
            6 if !is_bag => {
                let items_max = usize::from(b % 16);
                let out = flow(items[..items.len().min(items_max)].into());
                Work::Take { input, out, items: items_max }
            }
            7 => Work::Waste { input, items: usize::from(b % 16) },
            8 => {
                let result = |n| (0..laps(n)).fold(n, |n, _| round(n));
                let results = items.into_iter().map(result).collect();
                // Larger than the capacity: the loop must grow.
                Work::Loop { input, out: flow(results), burst: usize::from(b % 8 + 1) }
            }
            9 => Work::Delegate { input, out: flow(added), add },
            10 => {
                let items = usize::from(b % 8 + 1);
                Work::Relay { input, out: flow(added), add, items }
            }
            11 => Work::Batch { input, out: flow(items), items: usize::from(b % 8 + 1) },
            _ => Work::Map { input, out: flow(added), add },
        }
    }

    fn merge(&mut self, input: usize, a: u8, b: u8) -> Work {
        let family = self.flows[input].family;
        let mut inputs = vec![input];
        for by in 0..b % 4 {
            inputs.extend(self.pick(by));
        }
        let all = inputs.iter().flat_map(|&i| self.flows[i].items.clone()).collect();
        let families: Vec<usize> = inputs.iter().map(|&i| self.flows[i].family).collect();
        self.join_families(&families, family);
        let out = self.flow(b, all, true, family);
        Work::Merge { late: usize::from(a) % inputs.len(), inputs, out }
    }

    /// Returns `None` if no open stream can be zipped with `input`.
    fn zip(&mut self, input: usize, b: u8) -> Option<Work> {
        let family = self.flows[input].family;
        let fits =
            |&o: &usize| !self.flows[o].is_bag && (self.growing || self.flows[o].family != family);
        let at = self.open.iter().position(fits)?;
        let other = self.open.swap_remove(at);
        let mut items = self.flows[input].items.clone().into_iter();
        let mut other_items = self.flows[other].items.clone().into_iter();
        let mut all = Vec::new();
        loop {
            let before = all.len();
            all.extend(items.next());
            all.extend(other_items.next());
            if all.len() == before {
                break;
            }
        }
        self.join_families(&[self.flows[other].family], family);
        Some(Work::Zip { inputs: [input, other], out: self.flow(b, all, false, family) })
    }
}

// ---- running nodes

struct In {
    reader: Reader<u64>,
    manner: Manner,
    count: u64,
}

impl In {
    async fn get(&mut self) -> Option<u64> {
        self.count += 1;
        if self.count.is_multiple_of(self.manner.every) {
            match self.manner.pause {
                Pause::None => {}
                Pause::Yield => yield_now(),
                Pause::Sleep => sleep(Duration::from_micros(1)),
            }
        }
        match self.manner.style {
            Style::Stackful | Style::Blocking => self.reader.read(),
            Style::Async => self.reader.read_async().await,
            Style::Polling => loop {
                let peeked = self.reader.peek().copied();
                match self.reader.try_read() {
                    Ok(n) => {
                        assert!(peeked.is_none_or(|p| p == n));
                        return Some(n);
                    }
                    Err(TryReadError::Empty) => yield_now(),
                    Err(TryReadError::Closed) => return None,
                }
            },
        }
    }
}

struct Out {
    writer: Option<Writer<u64>>,
    style: Style,
    /// Planted fault: each item with a number divisible by this one is lost.
    loses: Option<u64>,
    count: u64,
}

impl Out {
    /// Returns false if the reader was dropped.
    fn put(&mut self, n: u64) -> bool {
        self.count += 1;
        if self.loses.is_some_and(|every| self.count.is_multiple_of(every)) {
            return true;
        }
        let Some(writer) = &mut self.writer else { return false };
        let written = if self.style == Style::Polling {
            let mut n = n;
            loop {
                match writer.try_write(n) {
                    Ok(()) => break true,
                    Err(TryWriteError::Full(back)) => n = back,
                    Err(TryWriteError::Closed(_)) => break false,
                }
                yield_now();
            }
        } else {
            writer.write(n).is_ok()
        };
        if !written {
            self.writer = None;
        }
        written
    }
}

/// Runs a future that blocks the task where it would await.
fn block_through<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("a node that blocks does not await"),
    }
}

/// Ends of streams that no node owns yet.
struct Ends {
    writers: HashMap<usize, Writer<u64>>,
    readers: HashMap<usize, Reader<u64>>,
    loses: Option<u64>,
    workers: usize,
}

impl Ends {
    fn new(network: &Network, workers: usize, loses: Option<u64>) -> Ends {
        let (mut writers, mut readers) = (HashMap::new(), HashMap::new());
        for (n, flow) in network.flows.iter().enumerate() {
            let make = if network.growing { growing_stream } else { stream };
            let (writer, reader) = make(flow.capacity);
            writers.insert(n, writer);
            readers.insert(n, reader);
        }
        Ends { writers, readers, loses, workers }
    }

    /// Starts a node. Only sinks have a result.
    fn start(&mut self, node: &Node) -> JoinHandle<Vec<u64>> {
        Starter { manner: node.manner, workers: self.workers, ends: self }.start(node.work.clone())
    }
}

/// Starts the tasks of one node.
struct Starter<'a> {
    manner: Manner,
    workers: usize,
    ends: &'a mut Ends,
}

impl Starter<'_> {
    fn input(&mut self, n: usize) -> In {
        In { reader: self.ends.readers.remove(&n).unwrap(), manner: self.manner, count: 0 }
    }

    fn out(&mut self, n: usize) -> Out {
        let writer = self.ends.writers.remove(&n);
        Out { writer, style: self.manner.style, loses: self.ends.loses, count: 0 }
    }

    /// Starts the task of a node without a result.
    fn task(&self, future: impl Future<Output = ()> + Send + 'static) -> JoinHandle<Vec<u64>> {
        start(self.manner, self.workers, async move {
            future.await;
            Vec::new()
        })
    }

    /// Starts a task with a stack.
    fn stackful(&self, future: impl Future<Output = ()> + Send + 'static) -> JoinHandle<Vec<u64>> {
        let manner = Manner { style: Style::Stackful, ..self.manner };
        start(manner, self.workers, async move {
            future.await;
            Vec::new()
        })
    }

    fn start(mut self, work: Work) -> JoinHandle<Vec<u64>> {
        match work {
            Work::Source { items, out } => {
                let mut out = self.out(out);
                self.task(async move {
                    items.into_iter().take_while(|&n| out.put(n)).count();
                })
            }
            Work::Map { input, out, add } => {
                self.each(input, out, usize::MAX, move |n| Some(n.wrapping_add(add)))
            }
            Work::Filter { input, out, modulus } => {
                self.each(input, out, usize::MAX, move |n| (n % modulus != 0).then_some(n))
            }
            Work::Take { input, out, items } => self.each(input, out, items, Some),
            Work::Split { input, outs } => self.route(input, outs, |n, at| n % 2 == at),
            Work::Copy { input, outs } => self.route(input, outs, |_, _| true),
            Work::Zip { inputs, out } => self.zip(inputs, out),
            Work::Merge { inputs, out, late } => self.merge(inputs, out, late),
            Work::Waste { input, items } => {
                let mut input = self.input(input);
                self.task(async move {
                    for _ in 0..items {
                        input.get().await;
                    }
                })
            }
            Work::Loop { input, out, burst } => self.run_loop(input, out, burst),
            Work::Delegate { input, out, add } => self.delegate(input, out, add),
            Work::Relay { input, out, add, items } => {
                relay(self.workers, self.input(input), self.out(out), add, items)
            }
            Work::Batch { input, out, items } => self.batch(input, out, items),
            Work::Sink { input } => {
                let mut input = self.input(input);
                start(self.manner, self.workers, async move {
                    let mut items = Vec::new();
                    while let Some(n) = input.get().await {
                        items.push(n);
                    }
                    items
                })
            }
        }
    }

    /// Reads up to `items_max` items, and writes the results of `f`.
    fn each(
        mut self,
        input: usize,
        out: usize,
        items_max: usize,
        f: impl Fn(u64) -> Option<u64> + Send + 'static,
    ) -> JoinHandle<Vec<u64>> {
        let (mut input, mut out) = (self.input(input), self.out(out));
        self.task(async move {
            for _ in 0..items_max {
                let Some(n) = input.get().await else { break };
                if f(n).is_some_and(|n| !out.put(n)) {
                    break;
                }
            }
        })
    }

    /// Writes each item to the outputs that `goes_to` selects by number.
    fn route(
        mut self,
        input: usize,
        outs: [usize; 2],
        goes_to: fn(u64, u64) -> bool,
    ) -> JoinHandle<Vec<u64>> {
        let mut input = self.input(input);
        let mut outs = outs.map(|o| self.out(o));
        self.task(async move {
            while let Some(n) = input.get().await {
                for (out, _) in outs.iter_mut().zip(0..).filter(|(_, at)| goes_to(n, *at)) {
                    out.put(n);
                }
                if outs.iter().all(|o| o.writer.is_none()) {
                    break;
                }
            }
        })
    }

    fn zip(mut self, inputs: [usize; 2], out: usize) -> JoinHandle<Vec<u64>> {
        let mut inputs = inputs.map(|i| Some(self.input(i)));
        let mut out = self.out(out);
        self.task(async move {
            while inputs.iter().any(|i| i.is_some()) {
                for slot in &mut inputs {
                    let Some(input) = slot else { continue };
                    match input.get().await {
                        Some(n) if !out.put(n) => return,
                        Some(_) => {}
                        None => *slot = None,
                    }
                }
            }
        })
    }

    fn merge(mut self, inputs: Vec<usize>, out: usize, late: usize) -> JoinHandle<Vec<u64>> {
        let mut inputs: Vec<_> = inputs.into_iter().map(|i| self.input(i).reader).collect();
        let mut out = self.out(out);
        let lates = inputs.split_off(inputs.len() - late);
        // Late streams arrive over a stream.
        let (mut late_writer, mut late_reader) = stream(1);
        self.stackful(async move {
            for reader in lates {
                yield_now();
                if late_writer.write(reader).is_err() {
                    break;
                }
            }
        });
        let style = self.manner.style;
        self.task(async move {
            let mut set = StreamSet::new();
            inputs.into_iter().for_each(|reader| {
                set.add(reader);
            });
            // The first streams may be armed when the others arrive.
            if let Some((_, Event::Item(n))) = set.try_read() {
                out.put(n);
            }
            while let Some(reader) = late_reader.read() {
                set.add(reader);
            }
            loop {
                let event = match style {
                    Style::Async => set.read_async().await,
                    Style::Polling => set.try_read(),
                    _ => set.read(),
                };
                match event {
                    Some((_, Event::Item(n))) if !out.put(n) => break,
                    Some(_) => {}
                    None if set.is_empty() => break,
                    None => yield_now(),
                }
            }
        })
    }

    fn delegate(mut self, input: usize, out: usize, add: u64) -> JoinHandle<Vec<u64>> {
        let (mut input, mut out) = (self.input(input), self.out(out));
        let (mut send, mut receive) = stream::<Reader<u64>>(2);
        self.stackful(async move {
            while let Some(mut reader) = receive.read() {
                while let Some(n) = reader.read() {
                    if !out.put(n) {
                        return;
                    }
                }
            }
        });
        let (each, workers) = (Manner { style: Style::Async, ..self.manner }, self.workers);
        self.task(async move {
            while let Some(n) = input.get().await {
                let (mut writer, reader) = stream(1);
                start(each, workers, async move { writer.write(n.wrapping_add(add)).is_ok() });
                if send.write(reader).is_err() {
                    break;
                }
            }
        })
    }

    fn batch(mut self, input: usize, out: usize, items: usize) -> JoinHandle<Vec<u64>> {
        let (mut input, mut out) = (self.input(input).reader, self.out(out));
        self.stackful(async move {
            let mut batch = Vec::new();
            while input.read_batch(&mut batch, items) > 0 {
                let Some(writer) = &mut out.writer else { break };
                if writer.write_batch(&mut batch).is_err() {
                    break;
                }
                assert!(batch.is_empty());
            }
        })
    }

    fn run_loop(mut self, input: usize, out: usize, burst: usize) -> JoinHandle<Vec<u64>> {
        let (mut input, mut out) = (self.input(input), self.out(out));
        // Two numbers per item: position in the burst, and value.
        let (mut forth, to_body) = growing_stream::<(usize, u64)>(1);
        let (mut back, mut from_body) = growing_stream::<(usize, u64)>(2);
        self.stackful(async move {
            for (at, n) in to_body {
                if back.write((at, round(n))).is_err() {
                    break;
                }
            }
        });
        let style = self.manner.style;
        self.task(async move {
            let mut ended = false;
            while !ended {
                let mut going = Vec::new();
                while going.len() < burst && !ended {
                    match input.get().await {
                        Some(n) => going.push((n, laps(n))),
                        None => ended = true,
                    }
                }
                let mut under_way = going.len();
                for (at, &(n, _)) in going.iter().enumerate() {
                    forth.write((at, n)).unwrap();
                }
                while under_way > 0 {
                    let came = match style {
                        Style::Async => from_body.read_async().await,
                        _ => from_body.read(),
                    };
                    let (at, n) = came.unwrap();
                    going[at] = (n, going[at].1 - 1);
                    if going[at].1 > 0 {
                        forth.write((at, n)).unwrap();
                    } else {
                        under_way -= 1;
                    }
                }
                for (n, _) in going {
                    if !out.put(n) {
                        return;
                    }
                }
            }
        })
    }
}

fn start<T: Send + 'static>(
    manner: Manner,
    workers: usize,
    future: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    let mut task = Task::new().name("node");
    if let Some(worker) = manner.worker {
        task = task.worker(worker % workers);
    }
    if let Some(priority) = manner.priority {
        task = task.priority(priority);
    }
    match manner.style {
        Style::Async => task.spawn_async(future),
        Style::Blocking => task.blocking().spawn(move || block_through(future)),
        Style::Stackful | Style::Polling => task.spawn(move || block_through(future)),
    }
    .unwrap()
}

/// As a map, by tasks that pass their ends to the next task.
fn relay(
    workers: usize,
    mut input: In,
    mut out: Out,
    add: u64,
    items: usize,
) -> JoinHandle<Vec<u64>> {
    let manner = input.manner;
    let next = Manner { worker: manner.worker.map(|w| w + 1), ..manner };
    start(manner, workers, async move {
        for _ in 0..items {
            match input.get().await {
                Some(n) if out.put(n.wrapping_add(add)) => {}
                _ => return Vec::new(),
            }
        }
        input.manner = next;
        relay(workers, input, out, add, items);
        Vec::new()
    })
}

// ---- runs

/// A monitor that receives all records, and checks their consistency.
#[derive(Clone, Default)]
struct Auditor {
    dispatches: Arc<AtomicU64>,
    ended: Arc<AtomicU64>,
}

impl Monitor for Auditor {
    fn level(&self) -> Level {
        Level::Workers
    }

    fn listener(&self, _: usize) -> Box<dyn Listener> {
        Box::new(self.clone())
    }
}

impl Listener for Auditor {
    fn dispatched(&mut self, dispatch: &Dispatch<'_>) {
        self.dispatches.fetch_add(1, Ordering::Relaxed);
        let ended = dispatch.status == Status::Zombie;
        assert_eq!(dispatch.created_ns.is_some(), ended);
        self.ended.fetch_add(u64::from(ended), Ordering::Relaxed);
        assert!(dispatch.streams.iter().all(|s| !s.moved || s.items > 0));
        let has_effect = |s: &StreamUse| s.moved || s.opened || s.closed || s.blocked || s.woke;
        assert!(dispatch.streams.iter().all(has_effect));
    }

    fn waited(&mut self, wait: &Wait) {
        assert!(wait.wait_ns <= wait.end_ns);
    }

    fn ended(&mut self, _: &End) {}
}

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// Nodes lose each item with a number divisible by this one.
    LosesItems(u64),
    /// The scheduler loses each task with a number divisible by this one.
    LosesTasks(u64),
}

/// A scheduler that loses tasks.
struct Leaky {
    within: Fifo,
    every: u64,
    count: u64,
}

impl Scheduler for Leaky {
    fn put(&mut self, task: Ready) {
        self.count += 1;
        if !self.count.is_multiple_of(self.every) {
            self.within.put(task);
        }
    }

    fn fetch(&mut self) -> Option<Ready> {
        self.within.fetch()
    }

    fn len(&self) -> usize {
        self.within.len()
    }
}

/// Kind of run: on threads, or by a seed.
#[derive(Debug, Clone, Copy)]
enum How {
    Threads(usize),
    Seed(usize, u64),
}

impl How {
    fn workers(self) -> usize {
        match self {
            How::Threads(workers) | How::Seed(workers, _) => workers,
        }
    }
}

/// Time after which a run is considered stuck. A run takes milliseconds, but other processes may
/// take the CPUs for seconds.
const STUCK_AFTER: Duration = Duration::from_secs(60);

/// Runs the network, and describes a failure.
fn run(
    network: &Arc<Network>,
    how: How,
    fault: Fault,
    stuck_after: Duration,
) -> Result<(), String> {
    let plan = &network.plan;
    let auditor = Auditor::default();
    let mut builder = Runtime::builder().workers(how.workers());
    if let How::Seed(_, seed) = how {
        builder = builder.deterministic(seed);
    }
    let is_chance = matches!(how, How::Seed(..)) && plan.draw(3, 2) == 0;
    builder = match (order(plan), fault) {
        (_, Fault::LosesTasks(every)) => {
            builder.scheduler(move |_| Box::new(Leaky { within: Fifo::default(), every, count: 0 }))
        }
        // Without a scheduler, a seed determines the order of ready tasks as well.
        (Order::Fifo, _) | (Order::Lifo, _) if is_chance => builder,
        (Order::Fifo, _) => builder.scheduler(|_| Box::new(Fifo::default())),
        (Order::Lifo, _) => builder.scheduler(|_| Box::new(Lifo::default())),
        (Order::Prioritised, _) => builder.scheduler(|_| Box::new(Prioritised::default())),
    };
    builder = match plan.draw(4, 4) {
        0 => builder.placement(RoundRobin::default()),
        1 => builder.placement(Balanced::default()),
        _ => builder,
    };
    let is_audited = plan.draw(5, 3) == 0;
    if is_audited {
        builder = builder.monitor(auditor.clone());
    }
    let rt = Arc::new(builder.build().map_err(|e| e.to_string())?);
    let loses = if let Fault::LosesItems(every) = fault { Some(every) } else { None };
    run_on(&rt, network, loses, stuck_after)?;
    if is_audited {
        let counters = rt.counters();
        let received =
            (auditor.dispatches.load(Ordering::Relaxed), auditor.ended.load(Ordering::Relaxed));
        // The last records of other workers may not have arrived yet.
        if received.0 > counters.dispatches || received.1 > counters.ended {
            return Err(format!("the monitor received {received:?}: {counters:?}"));
        }
    }
    Ok(())
}

/// Runs the network on this runtime.
fn run_on(
    rt: &Arc<Runtime>,
    network: &Arc<Network>,
    loses: Option<u64>,
    stuck_after: Duration,
) -> Result<(), String> {
    let ran = thread::spawn({
        let (rt, network) = (rt.clone(), network.clone());
        let workers = rt.workers();
        move || {
            rt.run(move || {
                let mut ends = Ends::new(&network, workers, loses);
                // A task starts half of the nodes, in reverse order.
                let half = network.nodes.len() / 2;
                let started: Vec<_> = network.nodes[..half].iter().map(|n| ends.start(n)).collect();
                let rest = spawn({
                    let network = network.clone();
                    move || {
                        network.nodes[half..]
                            .iter()
                            .rev()
                            .map(|n| ends.start(n))
                            .collect::<Vec<_>>()
                    }
                });
                let rest = rest.join().expect("the task starts nodes").into_iter().rev();
                started.into_iter().chain(rest).map(JoinHandle::join).collect::<Vec<_>>()
            })
        }
    });
    let begin = Instant::now();
    while !ran.is_finished() {
        if begin.elapsed() > stuck_after {
            // This thread and those of the workers are leaked.
            return Err(format!("stuck: {}{:?}", rt.dump(), rt.counters()));
        }
        thread::sleep(Duration::from_micros(100));
    }
    let results =
        ran.join().map_err(|_| "run panicked".to_owned())?.map_err(|why| why.to_string())?;
    for (node, result) in network.nodes.iter().zip(results) {
        let mut got = result.map_err(|why| format!("{node:?}: {why}"))?;
        if let Work::Sink { input } = node.work {
            let flow = &network.flows[input];
            let mut expected = flow.items.clone();
            if flow.is_bag {
                got.sort_unstable();
                expected.sort_unstable();
            }
            if got != expected {
                return Err(format!("stream {input} delivered {got:?}, not {expected:?}"));
            }
        }
    }
    let counters = rt.counters();
    if counters.spawned != counters.ended {
        return Err(format!("{counters:?}"));
    }
    Ok(())
}

/// Adds the description of the plan and the replay command to a failure.
fn explained(network: &Network, how: How, result: Result<(), String>) -> Result<(), String> {
    result.map_err(|why| {
        let nodes: String = network.nodes.iter().map(|n| format!("  {n:?}\n")).collect();
        let flows = if network.growing { "streams that grow" } else { "streams that do not grow" };
        format!(
            "{how:?}: {why}\n{nodes}  {flows}\nreplay with: COREBEAT_LPEL_PLAN={} \
             cargo test -p corebeat-lpel --test network plan",
            network.plan
        )
    })
}

/// Checks a plan on one to four threads, and by seeds.
fn check(plan: &Plan) -> Result<(), String> {
    let network = Arc::new(compile(plan));
    let threads = (1..=4).map(How::Threads);
    let seeds = (0..4).map(|n| How::Seed(1 + n as usize, plan.draw(50 + n, u64::MAX)));
    for how in threads.chain(seeds) {
        explained(&network, how, run(&network, how, Fault::None, STUCK_AFTER))?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases / 4,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn network_delivers_the_results_of_its_interpreter(plan in plans()) {
        check(&plan).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn equal_seeds_produce_equal_runs(plan in plans()) {
        let network = Arc::new(compile(&plan));
        let counters = || {
            let builder = Runtime::builder().workers(3).deterministic(plan.seed);
            let rt = builder.build().unwrap();
            let network = network.clone();
            let done = rt.run(move || {
                let mut ends = Ends::new(&network, 3, None);
                let started: Vec<_> = network.nodes.iter().map(|n| ends.start(n)).collect();
                started.into_iter().filter_map(|s| s.join().ok()).collect::<Vec<_>>()
            });
            (done.map_err(|why| why.to_string()), rt.counters())
        };
        prop_assert_eq!(counters(), counters());
    }
}

#[test]
fn plan_is_parsed_from_its_text() {
    let plan = Plan { seed: 77, genes: vec![[0, 1, 2, 3], [255, 0, 9, 16]] };
    assert_eq!(plan.to_string(), "4d.00010203.ff000910");
    assert_eq!(Plan::parse(&plan.to_string()), plan);
}

/// Runs the plan in the environment variable that a failure prints.
#[test]
fn plan_of_the_environment_passes() {
    let plan = std::env::var("COREBEAT_LPEL_PLAN").unwrap_or("1.00200301.05000304.0e000305".into());
    let plan = Plan::parse(&plan);
    for _ in 0..20 {
        check(&plan).unwrap_or_else(|why| panic!("{why}"));
    }
}

/// Returns the number of plans until a fault is detected.
fn plans_until_detected(fault: Fault, how: How) -> usize {
    let mut runner = TestRunner::deterministic();
    let observed = (1..100).find(|_| {
        let plan = plans().new_tree(&mut runner).unwrap().current();
        run(&Arc::new(compile(&plan)), how, fault, Duration::from_millis(300)).is_err()
    });
    observed.expect("no plan of a hundred detects the fault")
}

#[test]
fn planted_loss_of_items_is_detected() {
    assert!(plans_until_detected(Fault::LosesItems(5), How::Threads(2)) < 20);
    assert!(plans_until_detected(Fault::LosesItems(5), How::Seed(2, 1)) < 20);
}

#[test]
fn planted_loss_of_tasks_is_detected() {
    assert!(plans_until_detected(Fault::LosesTasks(7), How::Threads(2)) < 20);
    assert!(plans_until_detected(Fault::LosesTasks(7), How::Seed(2, 1)) < 20);
}

// ---- long runs

/// Resources of this process while no network runs.
#[derive(Debug, Default)]
struct Holdings {
    rss_pages: Vec<usize>,
    areas: Vec<usize>,
    stacks: Vec<usize>,
}

impl Holdings {
    /// Waits until only `threads` threads exist, because resources of others are freed when they
    /// end.
    fn note(&mut self, threads: usize, lasting: &Runtime) {
        let begin = Instant::now();
        while count_threads() > threads {
            assert!(
                begin.elapsed() < STUCK_AFTER,
                "{} threads, and not {threads}",
                count_threads()
            );
            thread::sleep(Duration::from_micros(100));
        }
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        self.rss_pages.push(pages.split(' ').nth(1).unwrap().parse().unwrap());
        self.areas.push(std::fs::read_to_string("/proc/self/maps").unwrap().lines().count());
        self.stacks.push(lasting.counters().stacks as usize);
    }
}

fn count_threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// Returns whether the values of the last third mostly do not exceed those of the first third by
/// more than `slack`. A leak grows.
fn is_flat(values: &[usize], slack: usize) -> bool {
    let third = values.len() / 3;
    let median = |part: &[usize]| {
        let mut part = part.to_vec();
        part.sort_unstable();
        part[part.len() / 2]
    };
    median(&values[values.len() - third..]) <= median(&values[..third]) * 5 / 4 + slack
}

/// Takes some minutes in `cargo xtask soak`, else a few rounds. Runs in a process of its own,
/// without other tests.
#[test]
fn networks_leave_nothing_behind() {
    const CHILD: &str = "COREBEAT_LPEL_CHILD";
    if std::env::var_os(CHILD).is_none() {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "networks_leave_nothing_behind", "--nocapture"]).env(CHILD, "1");
        assert!(command.status().unwrap().success());
        return;
    }
    let soak: Option<u64> =
        std::env::var("COREBEAT_SOAK").ok().map(|m| m.parse().expect("minutes"));
    let (plans_a_round, rounds, time) = match soak {
        Some(minutes) => (64, 9, Duration::from_secs(30 * minutes)),
        None => (2, 9, Duration::ZERO),
    };
    let lasting = Arc::new(Runtime::builder().workers(2).build().unwrap());
    let threads = count_threads();
    let mut runner = TestRunner::default();
    let mut round = || {
        for _ in 0..plans_a_round {
            let plan = plans().new_tree(&mut runner).unwrap().current();
            check(&plan).unwrap_or_else(|why| panic!("{why}"));
            run_on(&lasting, &Arc::new(compile(&plan)), None, STUCK_AFTER)
                .unwrap_or_else(|why| panic!("{plan} on a runtime that has run others: {why}"));
        }
    };
    // The first networks fill pools and caches.
    (0..rounds).for_each(|_| round());
    let mut holdings = Holdings::default();
    let begin = Instant::now();
    while holdings.stacks.len() < rounds || begin.elapsed() < time {
        round();
        holdings.note(threads, &lasting);
    }
    println!("{} rounds of {plans_a_round} networks", holdings.stacks.len());
    assert!(is_flat(&holdings.rss_pages, 2_000), "{holdings:?}");
    assert!(is_flat(&holdings.areas, 50), "{holdings:?}");
    assert!(is_flat(&holdings.stacks, 50), "{holdings:?}");
}

#[test]
fn leak_is_not_flat() {
    assert!(is_flat(&[7, 9, 8, 7, 9, 10, 8, 7, 9], 1));
    assert!(!is_flat(&[10, 11, 12, 13, 14, 15, 16, 17, 18], 1));
}
