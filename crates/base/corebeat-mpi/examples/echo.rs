//! Round trips of messages between two ranks after different pauses, and the CPU time of a rank
//! without messages: `mpirun -n 2 --bind-to none echo`.

use corebeat_mpi::{Bell, Error, Exchange, Inbound, Outbound, Ranks};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Pauses before a message in microseconds, each with the number of messages.
const PAUSES_US: [(u64, usize); 5] =
    [(0, 5000), (30, 3000), (300, 1000), (3000, 200), (30_000, 30)];
/// Time without messages.
const IDLE: Duration = Duration::from_secs(2);

/// Endpoint of a rank. Rank 1 returns each message. An empty one is the last.
struct Echo {
    rank: u32,
    outgoing: Mutex<VecDeque<Vec<u8>>>,
    answers: Sender<()>,
    has_ended: AtomicBool,
}

impl Echo {
    fn outgoing(&self) -> MutexGuard<'_, VecDeque<Vec<u8>>> {
        self.outgoing.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Exchange for Echo {
    fn take(&self, to: u32) -> Option<Outbound> {
        let next = if to == 1 - self.rank { self.outgoing().pop_front() } else { None };
        next.map(|bytes| Box::new(bytes) as Outbound)
    }

    fn receive(self: Arc<Self>, _: u32, message: &mut Inbound) -> Result<(), String> {
        if message.is_empty() {
            self.has_ended.store(true, Ordering::SeqCst);
        }
        if self.rank == 1 {
            self.outgoing().push_back(message.to_vec());
            return Ok(());
        }
        self.answers.send(()).map_err(|why| why.to_string())
    }

    fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst)
    }
}

fn main() -> Result<(), Error> {
    let ranks = Ranks::start()?;
    ranks.agree(if ranks.size() == 2 { Ok(Vec::new()) } else { Err("needs 2 ranks".into()) })?;
    let (answers, answered) = channel();
    let node = Arc::new(Echo {
        rank: ranks.rank(),
        outgoing: Mutex::default(),
        answers,
        has_ended: AtomicBool::new(false),
    });
    ranks.exchange(node.clone(), |why| eprintln!("{why}"))?;
    if ranks.rank() == 0 {
        measure(&node, &ranks.bell(), &answered);
    }
    ranks.finish()
}

/// Prints the measurements of rank 0.
fn measure(node: &Echo, bell: &Bell, answered: &Receiver<()>) {
    let trip = |message: &[u8]| {
        let begin = Instant::now();
        node.outgoing().push_back(message.to_vec());
        bell();
        answered.recv().expect("rank 1 answers");
        begin.elapsed()
    };
    for (pause_us, count) in PAUSES_US {
        let pause = Duration::from_micros(pause_us);
        let timed = |_| {
            if !pause.is_zero() {
                sleep(pause);
            }
            trip(&[1; 8])
        };
        let mut times: Vec<Duration> = (0..count).map(timed).collect();
        times.sort();
        let at = |part: usize| times[(times.len() - 1) * part / 10];
        println!("pause {pause:?}: round trip {:?}, 90% below {:?}", at(5), at(9));
    }
    let before = cpu_time();
    sleep(IDLE);
    let ms_per_s = (cpu_time() - before).as_secs_f64() * 1e3 / IDLE.as_secs_f64();
    println!("without messages: {ms_per_s:.2} ms of CPU time in a second");
    trip(&[]);
}

/// CPU time of this process.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
