//! The thread that calls the function of [`Claim::on_change`](crate::Claim::on_change).

use crate::Error;
use crate::signal::{Signal, event, raise, reset};
use corebeat_sync::quiet;
use corebeat_wire::Search;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Shortest time between two searches for a daemon, and the pause after a failed poll.
const PERIOD: Duration = Duration::from_secs(1);

/// The side of the claim. The thread ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct Listener(Arc<Control>);

/// The part of a listener that both threads use.
#[derive(Debug)]
struct Control {
    state: Mutex<State>,
    /// Raised after each change by the claim: the thread reads the state again.
    wake: OwnedFd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    step: Step,
    /// Whether the claim has no daemon, so that the thread searches for one.
    is_local: bool,
}

/// The next step of the thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Waits for a change.
    Listen,
    /// Waits for a poll after its call.
    Called,
    /// Calls after a pause: the last poll has failed.
    Repeat,
    /// Ends.
    Stop,
}

impl Listener {
    /// Starts the thread.
    pub(crate) fn new(
        signal: Arc<Signal>,
        search: Arc<Search>,
        is_local: bool,
        call: impl FnMut() + Send + 'static,
    ) -> Result<Listener, Error> {
        const WHAT: &str = "cannot listen for changes of a claim";
        let wake = event().map_err(|e| Error::system(WHAT, e))?;
        let state = Mutex::new(State { step: Step::Listen, is_local });
        let control = Arc::new(Control { state, wake });
        let own = control.clone();
        let listen = move || own.listen(&signal, &search, call);
        quiet::spawn("corebeat-claim", listen).map_err(|e| Error::system(WHAT, e))?;
        Ok(Listener(control))
    }

    /// The claim was polled.
    pub(crate) fn polled(&self, has_failed: bool) {
        let step = if has_failed { Step::Repeat } else { Step::Listen };
        self.0.change(|state| state.step = step);
    }

    /// The claim has moved.
    pub(crate) fn moved(&self, is_local: bool) {
        self.0.change(|state| state.is_local = is_local);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // The thread is not joined, because the function may wait for a lock that the owner of the
        // claim holds.
        self.0.change(|state| state.step = Step::Stop);
    }
}

impl Control {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        let before = *state;
        change(&mut state);
        if *state != before {
            raise(&self.wake);
        }
    }

    fn listen(&self, signal: &Signal, search: &Search, mut call: impl FnMut()) {
        loop {
            let state = *self.state();
            let (awaits_change, pause) = match state.step {
                Step::Stop => return,
                // A search that has failed is postponed for longer than the period.
                Step::Listen => (true, state.is_local.then(|| search.left().max(PERIOD))),
                Step::Called => (false, None),
                Step::Repeat => (false, Some(PERIOD)),
            };
            let mut ready =
                [PollFd::new(&self.wake, PollFlags::IN), PollFd::new(signal, PollFlags::IN)];
            let awaited = &mut ready[..1 + usize::from(awaits_change)];
            let pause: Option<Timespec> = pause.and_then(|pause| pause.try_into().ok());
            let Ok(count) = rustix::io::retry_on_intr(|| poll(awaited, pause.as_ref())) else {
                // The kernel lacks memory, or the program has lowered its limit of descriptors.
                std::thread::sleep(PERIOD);
                continue;
            };
            if !ready[0].revents().is_empty() {
                // Before the state is read, so that no later change is missed.
                reset(&self.wake);
                continue;
            }
            if count == 0 && awaits_change && !search.detects_daemon() {
                continue;
            }
            if self.begin_call(state) {
                // The panic hook has reported a panic, and a later change is another call.
                let _ = catch_unwind(AssertUnwindSafe(&mut call));
            }
        }
    }

    /// Whether the function is to be called: the claim has not changed the state meanwhile.
    fn begin_call(&self, before: State) -> bool {
        let mut state = self.state();
        let is_unchanged = *state == before;
        if is_unchanged {
            state.step = Step::Called;
        }
        is_unchanged
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corebeat_test_group::in_child;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use std::sync::mpsc::{RecvTimeoutError, channel};

    #[test]
    fn failed_poll_does_not_end_the_thread() {
        let signal = Arc::new(Signal::new().unwrap());
        // The limit is one of the whole process.
        let continues = in_child(|| {
            let (calls, called) = channel();
            let call = move || calls.send(()).unwrap();
            let search = Arc::new(Search::new(PERIOD));
            let listener = Listener::new(signal.clone(), search, false, call).unwrap();
            let limit = getrlimit(Resource::Nofile);
            // With this limit, poll(2) fails with EINVAL.
            setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limit }).unwrap();
            listener.polled(true);
            // A thread that ends drops the function.
            let ended = called.recv_timeout(PERIOD / 10) == Err(RecvTimeoutError::Disconnected);
            setrlimit(Resource::Nofile, limit).unwrap();
            !ended && called.recv() == Ok(())
        });
        assert!(continues);
    }
}
