//! Messages between ranks of MPI. Each test starts this program again on several ranks, each of
//! which runs the same test. Without `mpirun`, the tests pass with a line that states it.
#![cfg(feature = "mpi")]

use corebeat_mpi::{Bell, Error, Exchange, Inbound, Outbound, Ranks, expected};
use corebeat_test_group::{test_on_ranks, texts};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Starts this test on several ranks, unless this process is one of them. Returns whether it is.
fn on_ranks(test: &str, ranks: usize) -> bool {
    if expected() > 1 {
        return true;
    }
    if let Some(output) = test_on_ranks(test, ranks) {
        assert!(output.status.success(), "{}", texts(&output));
        let out = String::from_utf8_lossy(&output.stdout);
        assert_eq!(out.matches("1 passed").count(), ranks, "{}", texts(&output));
    }
    false
}

/// Starts this test on three ranks, unless this process is one of them. The run must fail with this
/// text. Returns whether this process is a rank.
fn fails_on_ranks(test: &str, with: &str) -> bool {
    if expected() > 1 {
        return true;
    }
    if let Some(output) = test_on_ranks(test, 3) {
        assert_eq!(output.status.code(), Some(1), "{}", texts(&output));
        assert!(texts(&output).contains(with), "{}", texts(&output));
    }
    false
}

/// Sends numbered messages to each other rank, and counts those that it receives.
struct Numbered {
    size: usize,
    /// By rank.
    outgoing: Vec<Mutex<VecDeque<Vec<u8>>>>,
    received: Vec<AtomicUsize>,
    count: usize,
}

/// The message with this number: its length and bytes depend on the number.
fn message(number: usize) -> Vec<u8> {
    let len = if number % 50 == 49 { 3_000_000 } else { 1 + number * 7 % 5000 };
    let mut bytes = vec![number as u8; len];
    bytes[len / 2] = !(number as u8);
    bytes
}

impl Numbered {
    fn new(rank: usize, size: usize, count: usize) -> Arc<Numbered> {
        let messages = |to| if to == rank { 0 } else { count };
        Arc::new(Numbered {
            size,
            outgoing: (0..size)
                .map(|to| (0..messages(to)).map(message).collect())
                .map(Mutex::new)
                .collect(),
            received: (0..size).map(|_| AtomicUsize::new(0)).collect(),
            count,
        })
    }
}

impl Exchange for Numbered {
    fn take(&self, to: u32) -> Option<Outbound> {
        let next = self.outgoing[to as usize].lock().unwrap().pop_front();
        next.map(|bytes| Box::new(bytes) as Outbound)
    }

    fn receive(self: Arc<Self>, from: u32, bytes: &mut Inbound) -> Result<(), String> {
        let number = self.received[from as usize].fetch_add(1, Ordering::SeqCst);
        let is_same = bytes[..] == message(number);
        // The endpoint may take the memory.
        if number.is_multiple_of(3) {
            let (words, len) = bytes.words();
            assert_eq!(std::mem::take(words).len(), len.div_ceil(16));
        }
        match is_same {
            true => Ok(()),
            false => Err(format!("message {number} from rank {from} is another one")),
        }
    }

    fn has_ended(&self) -> bool {
        let received = self.received.iter().map(|count| count.load(Ordering::SeqCst));
        received.sum::<usize>() == self.count * (self.size - 1)
    }
}

#[test]
fn messages_of_all_sizes_arrive_in_order() {
    if !on_ranks("messages_of_all_sizes_arrive_in_order", 4) {
        return;
    }
    let ranks = Ranks::start().unwrap();
    ranks.agree(Ok(vec![("test".into(), 1)])).unwrap();
    let node = Numbered::new(ranks.rank() as usize, ranks.size() as usize, 150);
    ranks.exchange(node.clone(), |why| panic!("{why}")).unwrap();
    let bell: Bell = ranks.bell();
    bell();
    // The orders may arrive during the exchange, and the figures are made after it.
    let rank = ranks.rank();
    let gather = || {
        let of_rank = node.clone();
        let figures = move || {
            let count = of_rank.has_ended().then(|| 100_000 * rank as usize);
            vec![rank as u8; count.expect("the exchange has ended")]
        };
        ranks.gather(figures).unwrap()
    };
    let gathered = std::thread::scope(|scope| {
        let other = scope.spawn(gather);
        [gather(), other.join().unwrap()]
    });
    let expected = |rank: usize| vec![rank as u8; 100_000 * rank];
    let all: Vec<_> = (0..4).map(expected).collect();
    for gathered in gathered {
        assert!(if rank == 0 { gathered == all } else { gathered.is_empty() });
    }
    ranks.finish().unwrap();
    assert!(node.has_ended());
}

#[test]
fn ranks_with_different_programs_disagree() {
    if !on_ranks("ranks_with_different_programs_disagree", 3) {
        return;
    }
    let ranks = Ranks::start().unwrap();
    let rank = ranks.rank();
    let parts = |digest| Ok(vec![("binary".to_owned(), 7), ("program".to_owned(), digest)]);
    ranks.agree(parts(1)).unwrap();
    let refused = |mine, rank_and_why: Option<(u32, &str)>| match (ranks.agree(mine), rank_and_why)
    {
        (Err(Error::Rank { rank, why }), Some((of, what))) => {
            assert_eq!((rank, why.as_str()), (of, what));
        }
        (Err(Error::Refused), None) => {}
        (other, _) => panic!("{other:?}"),
    };
    let of_first = |of, what| (rank == 0).then_some((of, what));
    let digest = if rank == 2 { 5 } else { 1 };
    refused(parts(digest), of_first(2, "has another program than rank 0"));
    let mine = if rank == 1 { Err("no boxes".into()) } else { parts(1) };
    refused(mine, of_first(1, "no boxes"));
    let more = if rank == 1 { Ok(Vec::new()) } else { parts(1) };
    refused(more, of_first(1, "has another number of files than rank 0"));
    ranks.agree(parts(3)).unwrap();
    ranks.finish().unwrap();
}

/// Panics at the first message.
struct Panics(Arc<Numbered>);

impl Exchange for Panics {
    fn take(&self, to: u32) -> Option<Outbound> {
        self.0.take(to)
    }

    fn receive(self: Arc<Self>, from: u32, _: &mut Inbound) -> Result<(), String> {
        panic!("a planted panic at a message from rank {from}")
    }

    fn has_ended(&self) -> bool {
        false
    }
}

#[test]
fn panic_of_a_receiver_ends_the_run() {
    if !fails_on_ranks("panic_of_a_receiver_ends_the_run", "a planted panic at a message") {
        return;
    }
    let ranks = Ranks::start().unwrap();
    let node = Numbered::new(ranks.rank() as usize, ranks.size() as usize, 150);
    let node: Arc<dyn Exchange> = if ranks.rank() == 1 { Arc::new(Panics(node)) } else { node };
    ranks.exchange(node, |why| panic!("{why}")).unwrap();
    ranks.finish().unwrap();
}

/// Has no messages, and makes no progress on rank 0.
struct Stalled(u32);

impl Exchange for Stalled {
    fn take(&self, _: u32) -> Option<Outbound> {
        None
    }

    fn receive(self: Arc<Self>, _: u32, _: &mut Inbound) -> Result<(), String> {
        Ok(())
    }

    fn look(&self) -> Result<(), String> {
        if self.0 == 0 { Err("a planted wait of all tasks".into()) } else { Ok(()) }
    }

    fn has_ended(&self) -> bool {
        false
    }
}

#[test]
fn run_without_progress_ends() {
    let line = "a planted wait of all tasks; the run is aborted";
    if !fails_on_ranks("run_without_progress_ends", line) {
        return;
    }
    let ranks = Ranks::start().unwrap();
    let node = Arc::new(Stalled(ranks.rank()));
    ranks.exchange(node, |why| eprintln!("{why}")).unwrap();
    ranks.finish().unwrap();
}
