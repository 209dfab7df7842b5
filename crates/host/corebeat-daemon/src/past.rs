//! The pages about the past of the host. A thread of its own makes them, because reading a day may
//! take seconds.

use crate::http::Response;
use crate::limit::{PAST_KEPT_NS, PAST_PART, WEB_NICE};
use corebeat_host::now_ns;
use corebeat_sync::quiet;
use corebeat_web::{Past, Range};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel};

/// The last page of each range, and the thread that makes them.
#[derive(Debug)]
pub(crate) struct PastPages {
    requests: SyncSender<Range>,
    made: Receiver<Made>,
    kept: [Kept; Range::ALL.len()],
}

/// A page that the thread has made.
#[derive(Debug)]
struct Made {
    range: Range,
    page: Response,
    took_ns: u64,
}

#[derive(Debug, Default)]
struct Kept {
    page: Option<Response>,
    until_ns: u64,
    is_requested: bool,
}

impl PastPages {
    /// Starts the thread. It calls `wake` after each page.
    ///
    /// The thread ends when this value is dropped, and the page that it makes then has no reader:
    /// nothing waits for its end.
    pub(crate) fn start(
        past: Arc<dyn Past>,
        all: bool,
        wake: impl Fn() + Send + 'static,
    ) -> io::Result<PastPages> {
        let (requests, ranges) = sync_channel(Range::ALL.len());
        let (sender, made) = channel();
        quiet::spawn("past", move || make(&*past, all, &ranges, &sender, wake))?;
        Ok(PastPages { requests, made, kept: Default::default() })
    }

    /// Keeps the pages that the thread has made. If the thread has ended by a panic, each later
    /// page states so.
    pub(crate) fn take(&mut self, now_ns: u64) {
        loop {
            match self.made.try_recv() {
                Ok(Made { range, page, took_ns }) => {
                    let kept_ns = PAST_KEPT_NS.max(took_ns.saturating_mul(PAST_PART));
                    let until_ns = now_ns.saturating_add(kept_ns);
                    let page = Some(page);
                    self.kept[range as usize] = Kept { page, until_ns, is_requested: false };
                }
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.kept = std::array::from_fn(|_| Kept {
                        page: Some(unavailable("its thread has ended; restart the daemon")),
                        until_ns: u64::MAX,
                        is_requested: false,
                    });
                    return;
                }
            }
        }
    }

    /// The page of a range. `None` if it is being made.
    pub(crate) fn page(&mut self, range: Range, now_ns: u64) -> Option<Response> {
        let kept = &mut self.kept[range as usize];
        if let Some(page) = kept.page.as_ref().filter(|_| now_ns < kept.until_ns) {
            return Some(page.clone());
        }
        kept.page = None;
        if !kept.is_requested {
            // The queue has room for each range once. If the thread has ended, `take` answers.
            kept.is_requested = self.requests.try_send(range).is_ok();
        }
        None
    }
}

/// Makes the requested pages until the sender of requests is dropped.
fn make(
    past: &dyn Past,
    all: bool,
    ranges: &Receiver<Range>,
    made: &Sender<Made>,
    wake: impl Fn(),
) {
    // Without the value, a page costs the control loop more time; nothing else changes.
    let _ = rustix::process::nice(WEB_NICE);
    for range in ranges {
        let start_ns = now_ns();
        let page = match past.content(range, all) {
            Ok(content) => Response::page(content.range_page(range)),
            Err(why) => unavailable(&why),
        };
        let took_ns = now_ns().saturating_sub(start_ns);
        if made.send(Made { range, page, took_ns }).is_err() {
            return;
        }
        wake();
    }
}

fn unavailable(why: &str) -> Response {
    Response::text("503 Service Unavailable", format!("the history cannot be shown: {why}\n"))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use corebeat_web::State;
    use std::sync::Mutex;

    /// A history that is read when the test permits, or fails when the test sends a reason. Its
    /// notes have its arguments.
    #[derive(Debug)]
    struct Slow(Mutex<Receiver<Result<(), String>>>);

    impl Past for Slow {
        fn content(&self, range: Range, all: bool) -> Result<State, String> {
            self.0.lock().unwrap().recv().unwrap()?;
            let mut state = State::default();
            state.notes.push(format!("{range:?} of all groups: {all}"));
            Ok(state)
        }
    }

    /// A history that is read when the sender permits.
    pub(crate) fn slow() -> (Arc<dyn Past>, Sender<Result<(), String>>) {
        let (permits, receiver) = channel();
        (Arc::new(Slow(Mutex::new(receiver))), permits)
    }

    #[test]
    fn page_is_made_once_and_kept_for_a_while() {
        let (past, permits) = slow();
        let (wake, woken) = channel();
        let mut pages = PastPages::start(past, false, move || wake.send(()).unwrap()).unwrap();
        for _ in 0..10 {
            assert!(pages.page(Range::Hour, 0).is_none() && pages.page(Range::Day, 0).is_none());
        }
        permits.send(Ok(())).unwrap();
        permits.send(Err("no permission".into())).unwrap();
        (0..2).for_each(|_| woken.recv().unwrap());
        pages.take(7);
        let hour = pages.page(Range::Hour, 7).unwrap().body;
        assert!(hour.text().contains("Hour of all groups: false"));
        let day = pages.page(Range::Day, 7).unwrap().body;
        assert_eq!(day.text(), "the history cannot be shown: no permission\n");
        assert_eq!(pages.page(Range::Hour, PAST_KEPT_NS).unwrap().body, hour);
        let kept_ns = pages.kept[Range::Hour as usize].until_ns;
        assert!(kept_ns >= 7 + PAST_KEPT_NS && pages.page(Range::Hour, kept_ns).is_none());
    }

    #[test]
    fn requests_are_answered_after_a_panic_of_the_thread() {
        let (past, permits) = slow();
        let mut pages = PastPages::start(past, false, || {}).unwrap();
        assert!(pages.page(Range::Hour, 0).is_none());
        // The history panics without a sender.
        drop(permits);
        let page = loop {
            pages.take(0);
            match pages.page(Range::Hour, 0) {
                Some(page) => break page,
                None => std::thread::yield_now(),
            }
        };
        assert_eq!(page.status, "503 Service Unavailable");
        assert!(page.body.text().contains("its thread has ended"), "{}", page.body.text());
        assert_eq!(pages.page(Range::Day, u64::MAX - 1).unwrap().body, page.body);
    }

    #[test]
    fn page_that_took_long_is_kept_for_longer() {
        let (past, _permits) = slow();
        let mut pages = PastPages::start(past, true, || {}).unwrap();
        let (sender, made) = channel();
        pages.made = made;
        let page = Response::text("200 OK", "");
        sender.send(Made { range: Range::Day, page, took_ns: PAST_KEPT_NS }).unwrap();
        pages.take(1);
        assert_eq!(pages.kept[Range::Day as usize].until_ns, 1 + PAST_PART * PAST_KEPT_NS);
    }
}
