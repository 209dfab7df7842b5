//! Counts unreachable actors that still exist. Each actor has a payload whose destructor decrements
//! the count.

use super::Options;
use super::plan::Work;
use super::subject::Subject;
use corebeat_scoop::{Link, Plain, Separate, System, Trace};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Actors in a row or circle.
const ROW: usize = 10;
/// Number of yields before the count. The release of an actor needs several runs of other tasks.
const YIELDS: usize = 10_000;

/// Counts the living payloads.
struct Alive(Arc<AtomicUsize>);

impl Alive {
    fn new(count: &Arc<AtomicUsize>) -> Alive {
        count.fetch_add(1, Ordering::SeqCst);
        Alive(count.clone())
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Makes `objects` actors, each of which refers to the next of its row, drops them, and counts the
/// actors that still exist while their system exists.
pub(super) fn measure(options: &Options) -> Result<(f64, u64), String> {
    let alive = Arc::new(AtomicUsize::new(0));
    let (rows, is_cycle) = (options.objects / ROW, options.work == Work::Cycle);
    let left = match options.subject {
        Subject::Corebeat => own(rows, is_cycle, &alive)?,
        Subject::Actix => actix_actors(rows, is_cycle, &alive)?,
        Subject::Ractor => ractor_actors(rows, is_cycle, &alive)?,
        _ => return Err("this subject has no actors".into()),
    };
    Ok((left as f64, (rows * ROW) as u64))
}

/// Checks that all actors were made.
fn check(rows: usize, alive: &AtomicUsize) -> Result<(), String> {
    let made = alive.load(Ordering::SeqCst);
    if made == rows * ROW {
        Ok(())
    } else {
        Err(format!("the subject made {made} actors instead of {}", rows * ROW))
    }
}

/// The references of a row: pairs of indices.
fn pairs(is_cycle: bool) -> impl Iterator<Item = (usize, usize)> {
    (0..if is_cycle { ROW } else { ROW - 1 }).map(|n| (n, (n + 1) % ROW))
}

#[derive(Trace)]
struct Own {
    _alive: Plain<Alive>,
    next: Option<Link<Own>>,
}

fn own(rows: usize, is_cycle: bool, alive: &Arc<AtomicUsize>) -> Result<usize, String> {
    let system = System::new(
        corebeat_lpel::Runtime::builder().workers(1).build().map_err(|e| e.to_string())?,
    );
    let client = system.client();
    let mut all = Vec::new();
    for _ in 0..rows {
        let actor = |_| {
            let alive = alive.clone();
            client.create(move |_| Own { _alive: Plain(Alive::new(&alive)), next: None })
        };
        let row: Vec<Separate<Own>> = (0..ROW).map(actor).collect();
        for (from, to) in pairs(is_cycle) {
            let to = row[to].clone();
            row[from].command(&client, move |here, own| here[own].next = Some(here.link(&to)));
        }
        for actor in &row {
            actor.query(&client, |_, _| ()).map_err(|e| e.to_string())?;
        }
        all.extend(row);
    }
    check(rows, alive)?;
    drop(all);
    system.collect();
    Ok(alive.load(Ordering::SeqCst))
}

async fn let_run(alive: &AtomicUsize) {
    for _ in 0..YIELDS {
        if alive.load(Ordering::SeqCst) == 0 {
            return;
        }
        tokio::task::yield_now().await;
    }
}

struct ActixActor {
    _alive: Alive,
    next: Option<actix::Addr<ActixActor>>,
}

impl actix::Actor for ActixActor {
    type Context = actix::Context<Self>;
}

/// The next actor.
struct Next(actix::Addr<ActixActor>);

impl actix::Message for Next {
    type Result = bool;
}

impl actix::Handler<Next> for ActixActor {
    type Result = bool;

    fn handle(&mut self, Next(next): Next, _: &mut Self::Context) -> bool {
        self.next.replace(next).is_none()
    }
}

fn actix_actors(rows: usize, is_cycle: bool, alive: &Arc<AtomicUsize>) -> Result<usize, String> {
    use actix::Actor;
    actix::System::new().block_on(async {
        let mut all = Vec::new();
        for _ in 0..rows {
            let actor = |_| ActixActor { _alive: Alive::new(alive), next: None }.start();
            let row: Vec<_> = (0..ROW).map(actor).collect();
            for (from, to) in pairs(is_cycle) {
                row[from].send(Next(row[to].clone())).await.map_err(|e| e.to_string())?;
            }
            all.extend(row);
        }
        check(rows, alive)?;
        drop(all);
        let_run(alive).await;
        Ok(alive.load(Ordering::SeqCst))
    })
}

struct RactorActor;

struct RactorState {
    _alive: Alive,
    next: Option<ractor::ActorRef<RactorMessage>>,
}

enum RactorMessage {
    Next(ractor::ActorRef<RactorMessage>, ractor::RpcReplyPort<bool>),
}

impl ractor::Actor for RactorActor {
    type Msg = RactorMessage;
    type State = RactorState;
    type Arguments = Alive;

    async fn pre_start(
        &self,
        _: ractor::ActorRef<RactorMessage>,
        alive: Alive,
    ) -> Result<RactorState, ractor::ActorProcessingErr> {
        Ok(RactorState { _alive: alive, next: None })
    }

    async fn handle(
        &self,
        _: ractor::ActorRef<RactorMessage>,
        RactorMessage::Next(next, reply): RactorMessage,
        state: &mut RactorState,
    ) -> Result<(), ractor::ActorProcessingErr> {
        reply.send(state.next.replace(next).is_none())?;
        Ok(())
    }
}

fn ractor_actors(rows: usize, is_cycle: bool, alive: &Arc<AtomicUsize>) -> Result<usize, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|e| e.to_string())?.block_on(async {
        let mut all = Vec::new();
        for _ in 0..rows {
            let mut row = Vec::new();
            for _ in 0..ROW {
                let spawned = ractor::Actor::spawn(None, RactorActor, Alive::new(alive)).await;
                row.push(spawned.map_err(|e| e.to_string())?.0);
            }
            for (from, to) in pairs(is_cycle) {
                let next = row[to].clone();
                let reply = ractor::call!(row[from], RactorMessage::Next, next);
                reply.map_err(|e| e.to_string())?;
            }
            all.extend(row);
        }
        check(rows, alive)?;
        drop(all);
        let_run(alive).await;
        Ok(alive.load(Ordering::SeqCst))
    })
}
