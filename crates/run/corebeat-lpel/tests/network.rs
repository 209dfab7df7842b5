//! Whole networks, drawn at random, compared with an interpreter that runs one node after another.
//!
//! Process networks are determinate: what goes over each stream does not depend on who runs when. Where a set merges
//! streams the order is open, but not what is in it.
//!
//! A plan is a seed and a list of genes of four bytes. `compile` makes nodes of it, and what each is to deliver. A plan that
//! fails is shrunk and printed with the command that runs it again.

use corebeat_lpel::monitor::{Dispatch, End, Level, Listener, Monitor, Wait};
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
        let seed =
            u64::from_str_radix(parts.next().unwrap(), 16).expect("a plan begins with its seed, in hex");
        let gene = |g| u32::from_str_radix(g, 16).expect("a gene has eight hex digits").to_be_bytes();
        Plan { seed, genes: parts.map(gene).collect() }
    }

    /// Bits of the seed that nobody else uses for `what`.
    fn draw(&self, what: u64, bound: u64) -> u64 {
        let mut z = self.seed.wrapping_add(what.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (z ^ (z >> 27)) % bound
    }
}

fn plans() -> impl Strategy<Value = Plan> {
    (any::<u64>(), prop::collection::vec(any::<[u8; 4]>(), 1..24))
        .prop_map(|(seed, genes)| Plan { seed, genes })
}

/// What is known of a stream before it flows.
#[derive(Debug, Clone)]
struct Flow {
    items: Vec<u64>,
    /// Their order is open.
    is_bag: bool,
    /// Streams with the same number have a source in common.
    family: usize,
    capacity: usize,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Style {
    /// A task with a stack, which blocks.
    Stackful,
    Async,
    /// A task with a stack, which looks and yields.
    Polling,
    Wrapper,
}

#[derive(Debug, Clone, Copy)]
enum Pause {
    None,
    Yield,
    Sleep,
}

/// How a node does what it does.
#[derive(Debug, Clone, Copy)]
struct Manner {
    style: Style,
    /// After each so many items.
    every: u64,
    pause: Pause,
    worker: Option<usize>,
    priority: Option<Priority>,
}

/// Streams are named by their number.
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
    /// By value.
    Split {
        input: usize,
        outs: [usize; 2],
    },
    Copy {
        input: usize,
        outs: [usize; 2],
    },
    /// One of each in turn, and then the rest.
    Zip {
        inputs: [usize; 2],
        out: usize,
    },
    /// By a set; the last few come in when it is under way.
    Merge {
        inputs: Vec<usize>,
        out: usize,
        late: usize,
    },
    /// The first few; then it closes its input.
    Take {
        input: usize,
        out: usize,
        items: usize,
    },
    /// The first few, and nothing comes of it.
    Waste {
        input: usize,
        items: usize,
    },
    /// Sends each item around a loop as often as its value says, so many at a time.
    Loop {
        input: usize,
        out: usize,
        burst: usize,
    },
    /// A task of its own for each item, whose stream is sent on to one who reads them in order.
    Delegate {
        input: usize,
        out: usize,
        add: u64,
    },
    /// As `Map`, by tasks that hand their ends to the next after so many items.
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

/// A plan made concrete.
#[derive(Debug)]
struct Network {
    plan: Plan,
    flows: Vec<Flow>,
    /// All streams may grow; else there are no nodes that could stand still for want of room.
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
const WRAPPERS_MAX: usize = 3;

fn round(n: u64) -> u64 {
    n.wrapping_mul(3).wrapping_add(1)
}

fn laps(n: u64) -> u64 {
    1 + n % 3
}

fn compile(plan: &Plan) -> Network {
    let growing = plan.draw(1, 2) == 0;
    // Who looks and yields again and again holds up others for ever where the order is not fair, and hides from the search
    // for artificial deadlocks, which wants idle workers.
    let may_poll = order(plan) == Order::Fifo && !growing && plan.genes.iter().all(|g| g[0] % 16 != 8);
    let mut flows: Vec<Flow> = Vec::new();
    let mut open: Vec<usize> = Vec::new();
    let mut nodes = Vec::new();
    let mut wrappers = 0;
    for (n, &[kind, a, b, c]) in plan.genes.iter().enumerate() {
        let style = match c % 8 {
            0..3 => Style::Stackful,
            3..6 => Style::Async,
            6 if may_poll => Style::Polling,
            7 if wrappers < WRAPPERS_MAX => {
                wrappers += 1;
                Style::Wrapper
            }
            _ => Style::Stackful,
        };
        let manner = Manner {
            style,
            every: u64::from(c / 8 % 4 + 1),
            pause: [Pause::None, Pause::Yield, Pause::Sleep, Pause::None][usize::from(c / 32 % 4)],
            worker: (c >= 192).then_some(usize::from(c)),
            priority: (c < 32).then_some(Priority(c)),
        };
        // A stream that is open, or none.
        let pick = |open: &mut Vec<usize>, by: u8| {
            (!open.is_empty()).then(|| open.swap_remove(usize::from(by) % open.len()))
        };
        let mut flow = |items: Vec<u64>, is_bag, family| {
            flows.push(Flow { items, is_bag, family, capacity: usize::from(b % 5 + 1) });
            flows.len() - 1
        };
        let source = |flow: &mut dyn FnMut(Vec<u64>, bool, usize) -> usize, open: &mut Vec<usize>| {
            let items: Vec<_> = (0..u64::from(a % 64)).map(|i| i * u64::from(b) + n as u64).collect();
            let out = flow(items.clone(), false, n);
            open.push(out);
            Work::Source { items, out }
        };
        let input = if kind % 16 > 1 { pick(&mut open, a) } else { None };
        let Some(input) = input else {
            nodes.push(Node { work: source(&mut flow, &mut open), manner });
            continue;
        };
        let Flow { items, is_bag, family, .. } = flows[input].clone();
        let mut flow = |items: Vec<u64>, is_bag, family| {
            flows.push(Flow { items, is_bag, family, capacity: usize::from(b % 5 + 1) });
            open.push(flows.len() - 1);
            flows.len() - 1
        };
        let map = |items: &[u64]| items.iter().map(|n| n.wrapping_add(u64::from(b))).collect::<Vec<_>>();
        let work = match kind % 16 {
            3 => {
                let modulus = u64::from(b % 3 + 2);
                let items = items.into_iter().filter(|n| n % modulus != 0).collect();
                Work::Filter { input, out: flow(items, is_bag, family), modulus }
            }
            4 => {
                let (even, odd) = items.into_iter().partition::<Vec<_>, _>(|n| n % 2 == 0);
                Work::Split { input, outs: [flow(even, is_bag, family), flow(odd, is_bag, family)] }
            }
            5 if items.len() <= ITEMS_MAX => {
                Work::Copy { input, outs: [flow(items.clone(), is_bag, family), flow(items, is_bag, family)] }
            }
            6 if !is_bag => {
                let items_max = usize::from(b % 16);
                Work::Take {
                    input,
                    out: flow(items[..items.len().min(items_max)].into(), false, family),
                    items: items_max,
                }
            }
            7 => Work::Waste { input, items: usize::from(b % 16) },
            8 => {
                let results =
                    items.iter().map(|&n| (0..laps(n)).fold(n, |n, _| round(n))).collect::<Vec<_>>();
                // More at a time than there is room for: the loop must grow.
                Work::Loop { input, out: flow(results, is_bag, family), burst: usize::from(b % 8 + 1) }
            }
            9 => Work::Delegate { input, out: flow(map(&items), is_bag, family), add: u64::from(b) },
            10 => {
                let out = flow(map(&items), is_bag, family);
                Work::Relay { input, out, add: u64::from(b), items: usize::from(b % 8 + 1) }
            }
            11 => Work::Batch { input, out: flow(items, is_bag, family), items: usize::from(b % 8 + 1) },
            12 | 13 => {
                let mut inputs = vec![input];
                for by in 0..b % 4 {
                    inputs.extend(pick(&mut open, by));
                }
                let all: Vec<u64> = inputs.iter().flat_map(|&i| flows[i].items.clone()).collect();
                let families: Vec<usize> = inputs.iter().map(|&i| flows[i].family).collect();
                flows.iter_mut().filter(|f| families.contains(&f.family)).for_each(|f| f.family = family);
                flows.push(Flow { items: all, is_bag: true, family, capacity: usize::from(b % 5 + 1) });
                open.push(flows.len() - 1);
                Work::Merge { late: usize::from(a) % inputs.len(), inputs, out: flows.len() - 1 }
            }
            14 | 15 => {
                let fits = |&o: &usize| !flows[o].is_bag && (growing || flows[o].family != family);
                match open.iter().position(fits) {
                    Some(at) if !is_bag => {
                        let other = open.swap_remove(at);
                        let (mut x, mut y) = (items.into_iter(), flows[other].items.clone().into_iter());
                        let mut all = Vec::new();
                        loop {
                            let before = all.len();
                            all.extend(x.next());
                            all.extend(y.next());
                            if all.len() == before {
                                break;
                            }
                        }
                        let of_other = flows[other].family;
                        flows.iter_mut().filter(|f| f.family == of_other).for_each(|f| f.family = family);
                        flows.push(Flow {
                            items: all,
                            is_bag: false,
                            family,
                            capacity: usize::from(b % 5 + 1),
                        });
                        open.push(flows.len() - 1);
                        Work::Zip { inputs: [input, other], out: flows.len() - 1 }
                    }
                    _ => {
                        let items = map(&items);
                        flows.push(Flow { items, is_bag, family, capacity: usize::from(b % 5 + 1) });
                        open.push(flows.len() - 1);
                        Work::Map { input, out: flows.len() - 1, add: u64::from(b) }
                    }
                }
            }
            _ => Work::Map { input, out: flow(map(&items), is_bag, family), add: u64::from(b) },
        };
        nodes.push(Node { work, manner });
    }
    for (n, input) in open.into_iter().enumerate() {
        let style = if plan.draw(100 + n as u64, 2) == 0 { Style::Stackful } else { Style::Async };
        let manner = Manner { style, every: 1, pause: Pause::None, worker: None, priority: None };
        nodes.push(Node { work: Work::Sink { input }, manner });
    }
    Network { plan: plan.clone(), flows, growing, nodes }
}

// ---- nodes that run

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
            Style::Stackful | Style::Wrapper => self.reader.read(),
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
    /// A planted fault: each so-and-so-many-th item is lost.
    loses: Option<u64>,
    count: u64,
}

impl Out {
    /// False: nobody wants more.
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
        Style::Wrapper => task.wrapper().spawn(move || block_through(future)),
        Style::Stackful | Style::Polling => task.spawn(move || block_through(future)),
    }
    .unwrap()
}

/// The ends of streams that no node has yet.
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

    fn input(&mut self, n: usize, manner: Manner) -> In {
        In { reader: self.readers.remove(&n).unwrap(), manner, count: 0 }
    }

    fn out(&mut self, n: usize, manner: Manner) -> Out {
        Out { writer: self.writers.remove(&n), style: manner.style, loses: self.loses, count: 0 }
    }

    /// Starts a node. Only sinks have a result.
    fn start(&mut self, node: &Node) -> JoinHandle<Vec<u64>> {
        let manner = node.manner;
        let workers = self.workers;
        match node.work.clone() {
            Work::Source { items, out } => {
                let mut out = self.out(out, manner);
                start(manner, workers, async move {
                    items.into_iter().take_while(|&n| out.put(n)).count();
                    Vec::new()
                })
            }
            Work::Map { input, out, add } => {
                let (mut input, mut out) = (self.input(input, manner), self.out(out, manner));
                start(manner, workers, async move {
                    while let Some(n) = input.get().await {
                        if !out.put(n.wrapping_add(add)) {
                            break;
                        }
                    }
                    Vec::new()
                })
            }
            Work::Filter { input, out, modulus } => {
                let (mut input, mut out) = (self.input(input, manner), self.out(out, manner));
                start(manner, workers, async move {
                    while let Some(n) = input.get().await {
                        if n % modulus != 0 && !out.put(n) {
                            break;
                        }
                    }
                    Vec::new()
                })
            }
            Work::Split { input, outs } => {
                let mut input = self.input(input, manner);
                let mut outs = outs.map(|o| self.out(o, manner));
                start(manner, workers, async move {
                    while let Some(n) = input.get().await {
                        outs[(n % 2) as usize].put(n);
                        if outs.iter().all(|o| o.writer.is_none()) {
                            break;
                        }
                    }
                    Vec::new()
                })
            }
            Work::Copy { input, outs } => {
                let mut input = self.input(input, manner);
                let mut outs = outs.map(|o| self.out(o, manner));
                start(manner, workers, async move {
                    while let Some(n) = input.get().await {
                        let wanted = outs.iter_mut().map(|o| o.put(n)).fold(false, |any, one| any | one);
                        if !wanted {
                            break;
                        }
                    }
                    Vec::new()
                })
            }
            Work::Zip { inputs, out } => {
                let mut inputs = inputs.map(|i| Some(self.input(i, manner)));
                let mut out = self.out(out, manner);
                start(manner, workers, async move {
                    while inputs.iter().any(|i| i.is_some()) {
                        for slot in &mut inputs {
                            let Some(input) = slot else { continue };
                            match input.get().await {
                                Some(n) if !out.put(n) => return Vec::new(),
                                Some(_) => {}
                                None => *slot = None,
                            }
                        }
                    }
                    Vec::new()
                })
            }
            Work::Merge { inputs, out, late } => {
                let mut inputs: Vec<_> = inputs.into_iter().map(|i| self.input(i, manner).reader).collect();
                let mut out = self.out(out, manner);
                let lates = inputs.split_off(inputs.len() - late);
                // Those that come late come over a stream.
                let (mut bring, mut come) = stream(1);
                start(Manner { style: Style::Stackful, ..manner }, workers, async move {
                    for reader in lates {
                        yield_now();
                        if bring.write(reader).is_err() {
                            break;
                        }
                    }
                });
                start(manner, workers, async move {
                    let mut set = StreamSet::new();
                    inputs.into_iter().for_each(|reader| {
                        set.add(reader);
                    });
                    // The first are armed, perhaps, when the others come.
                    if let Some((_, Event::Item(n))) = set.try_read() {
                        out.put(n);
                    }
                    while let Some(reader) = come.read() {
                        set.add(reader);
                    }
                    loop {
                        let event = match manner.style {
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
                    Vec::new()
                })
            }
            Work::Take { input, out, items } => {
                let (mut input, mut out) = (self.input(input, manner), self.out(out, manner));
                start(manner, workers, async move {
                    for _ in 0..items {
                        match input.get().await {
                            Some(n) if out.put(n) => {}
                            _ => break,
                        }
                    }
                    Vec::new()
                })
            }
            Work::Waste { input, items } => {
                let mut input = self.input(input, manner);
                start(manner, workers, async move {
                    for _ in 0..items {
                        input.get().await;
                    }
                    Vec::new()
                })
            }
            Work::Loop { input, out, burst } => self.start_loop(manner, input, out, burst),
            Work::Delegate { input, out, add } => {
                let (mut input, mut out) = (self.input(input, manner), self.out(out, manner));
                let (mut send, mut receive) = stream::<Reader<u64>>(2);
                start(Manner { style: Style::Stackful, ..manner }, workers, async move {
                    while let Some(mut reader) = receive.read() {
                        while let Some(n) = reader.read() {
                            if !out.put(n) {
                                return;
                            }
                        }
                    }
                });
                start(manner, workers, async move {
                    while let Some(n) = input.get().await {
                        let (mut writer, reader) = stream(1);
                        start(Manner { style: Style::Async, ..manner }, workers, async move {
                            writer.write(n.wrapping_add(add)).is_ok()
                        });
                        if send.write(reader).is_err() {
                            break;
                        }
                    }
                    Vec::new()
                })
            }
            Work::Relay { input, out, add, items } => {
                relay(workers, self.input(input, manner), self.out(out, manner), add, items)
            }
            Work::Batch { input, out, items } => {
                let (mut input, mut out) = (self.input(input, manner).reader, self.out(out, manner));
                start(Manner { style: Style::Stackful, ..manner }, workers, async move {
                    let mut batch = Vec::new();
                    while input.read_batch(&mut batch, items) > 0 {
                        let Some(writer) = &mut out.writer else { break };
                        if writer.write_batch(&mut batch).is_err() {
                            break;
                        }
                        assert!(batch.is_empty());
                    }
                    Vec::new()
                })
            }
            Work::Sink { input } => {
                let mut input = self.input(input, manner);
                start(manner, workers, async move {
                    let mut items = Vec::new();
                    while let Some(n) = input.get().await {
                        items.push(n);
                    }
                    items
                })
            }
        }
    }

    fn start_loop(&mut self, manner: Manner, input: usize, out: usize, burst: usize) -> JoinHandle<Vec<u64>> {
        let (mut input, mut out) = (self.input(input, manner), self.out(out, manner));
        let workers = self.workers;
        // Two numbers an item: its place in the burst, and its value.
        let (mut forth, to_body) = growing_stream::<(usize, u64)>(1);
        let (mut back, mut from_body) = growing_stream::<(usize, u64)>(2);
        start(Manner { style: Style::Stackful, ..manner }, workers, async move {
            for (at, n) in to_body {
                if back.write((at, round(n))).is_err() {
                    break;
                }
            }
        });
        start(manner, workers, async move {
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
                    let came = match manner.style {
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
                        return Vec::new();
                    }
                }
            }
            Vec::new()
        })
    }
}

/// As a map, by tasks of which each hands its ends to the next.
fn relay(workers: usize, mut input: In, mut out: Out, add: u64, items: usize) -> JoinHandle<Vec<u64>> {
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

/// Listens to everything, and checks that it fits together.
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
    }

    fn waited(&mut self, wait: &Wait) {
        assert!(wait.wait_ns <= wait.end_ns);
    }

    fn ended(&mut self, _: &End) {}
}

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// Nodes lose each so-and-so-many-th item.
    LosesItems(u64),
    /// The worker's order loses each so-and-so-many-th task.
    LosesTasks(u64),
}

/// An order that loses tasks.
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

/// How it is run: on threads, or by a seed.
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

/// A run that takes longer than this is taken for stuck: in debug builds, on a loaded machine, one takes milliseconds.
const STUCK_AFTER: Duration = Duration::from_secs(5);

/// Runs the network, and says what went wrong.
fn run(network: &Arc<Network>, how: How, fault: Fault, stuck_after: Duration) -> Result<(), String> {
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
        // Without an order of its own, a run by a seed draws that as well.
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
        let heard = (auditor.dispatches.load(Ordering::Relaxed), auditor.ended.load(Ordering::Relaxed));
        // The last records of other workers may still be on their way.
        if heard.0 > counters.dispatches || heard.1 > counters.ended {
            return Err(format!("the monitor heard of {heard:?}: {counters:?}"));
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
                // Half of the nodes are started by a task of its own, the last first.
                let half = network.nodes.len() / 2;
                let started: Vec<_> = network.nodes[..half].iter().map(|n| ends.start(n)).collect();
                let rest = spawn({
                    let network = network.clone();
                    move || network.nodes[half..].iter().rev().map(|n| ends.start(n)).collect::<Vec<_>>()
                });
                let rest = rest.join().expect("it starts nodes").into_iter().rev();
                started.into_iter().chain(rest).map(JoinHandle::join).collect::<Vec<_>>()
            })
        }
    });
    let begin = Instant::now();
    while !ran.is_finished() {
        if begin.elapsed() > stuck_after {
            // Its thread, and those of the workers, are left as they are.
            return Err(format!("stuck: {}{:?}", rt.dump(), rt.counters()));
        }
        thread::sleep(Duration::from_micros(100));
    }
    let results = ran.join().map_err(|_| "run panicked".to_owned())?.map_err(|why| why.to_string())?;
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
                return Err(format!("stream {input} brought {got:?}, not {expected:?}"));
            }
        }
    }
    let counters = rt.counters();
    if counters.spawned != counters.ended {
        return Err(format!("{counters:?}"));
    }
    Ok(())
}

/// Says what a plan is and how it is run again, if it fails.
fn explained(network: &Network, how: How, result: Result<(), String>) -> Result<(), String> {
    result.map_err(|why| {
        let nodes: String = network.nodes.iter().map(|n| format!("  {n:?}\n")).collect();
        let flows = if network.growing { "streams that grow" } else { "streams that do not grow" };
        format!(
            "{how:?}: {why}\n{nodes}  {flows}\nagain: COREBEAT_LPEL_PLAN={} cargo test -p corebeat-lpel --test network plan",
            network.plan
        )
    })
}

/// On one to four threads each, and by seeds.
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
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 4, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn network_delivers_what_its_interpreter_does(plan in plans()) {
        check(&plan).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn same_seed_gives_same_run(plan in plans()) {
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
fn plan_is_the_text_of_itself() {
    let plan = Plan { seed: 77, genes: vec![[0, 1, 2, 3], [255, 0, 9, 16]] };
    assert_eq!(plan.to_string(), "4d.00010203.ff000910");
    assert_eq!(Plan::parse(&plan.to_string()), plan);
}

/// Runs the plan that the environment names: what a failure prints.
#[test]
fn plan_of_the_environment_passes() {
    let plan = std::env::var("COREBEAT_LPEL_PLAN").unwrap_or("1.00200301.05000304.0e000305".into());
    let plan = Plan::parse(&plan);
    for _ in 0..20 {
        check(&plan).unwrap_or_else(|why| panic!("{why}"));
    }
}

/// How many of the first plans it takes until a fault is seen.
fn plans_until_seen(fault: Fault, how: How) -> usize {
    let mut runner = TestRunner::deterministic();
    let seen = (1..100).find(|_| {
        let plan = plans().new_tree(&mut runner).unwrap().current();
        run(&Arc::new(compile(&plan)), how, fault, Duration::from_millis(300)).is_err()
    });
    seen.expect("a hundred plans do not show the fault")
}

#[test]
fn planted_loss_of_items_is_seen() {
    assert!(plans_until_seen(Fault::LosesItems(5), How::Threads(2)) < 20);
    assert!(plans_until_seen(Fault::LosesItems(5), How::Seed(2, 1)) < 20);
}

#[test]
fn planted_loss_of_tasks_is_seen() {
    assert!(plans_until_seen(Fault::LosesTasks(7), How::Threads(2)) < 20);
    assert!(plans_until_seen(Fault::LosesTasks(7), How::Seed(2, 1)) < 20);
}

// ---- for long

/// What this process has, when no network runs.
#[derive(Debug, Default)]
struct Holdings {
    rss_pages: Vec<usize>,
    areas: Vec<usize>,
    stacks: Vec<usize>,
}

impl Holdings {
    /// Waits until there are only so many threads: what ran on the others has ended, and so they do.
    fn note(&mut self, threads: usize, lasting: &Runtime) {
        let begin = Instant::now();
        while count_threads() > threads {
            assert!(begin.elapsed() < STUCK_AFTER, "{} threads, and not {threads}", count_threads());
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

/// Whether the last third is mostly no more than the first was, give or take so much. What leaks grows.
fn is_flat(values: &[usize], slack: usize) -> bool {
    let third = values.len() / 3;
    let median = |part: &[usize]| {
        let mut part = part.to_vec();
        part.sort_unstable();
        part[part.len() / 2]
    };
    median(&values[values.len() - third..]) <= median(&values[..third]) * 5 / 4 + slack
}

/// Some minutes in `cargo xtask soak`, else a few rounds. In a process of its own, where no other test runs.
#[test]
fn networks_leave_nothing_behind() {
    const CHILD: &str = "COREBEAT_LPEL_CHILD";
    if std::env::var_os(CHILD).is_none() {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "networks_leave_nothing_behind", "--nocapture"]).env(CHILD, "1");
        assert!(command.status().unwrap().success());
        return;
    }
    let soak: Option<u64> = std::env::var("COREBEAT_SOAK").ok().map(|m| m.parse().expect("minutes"));
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
    // The first of all fill pools and caches.
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
