//! The history of the daemon, and `corebeat report`.

use super::web::{Browser, TOKEN, get};
use super::{FAST, Place};
use crate::{Running, assert_refused, command, json, listens, signal, stderr, stdout, until};
use corebeat_test_group::TestGroup;
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Output, Stdio};

impl Place {
    fn daemon_with_history(&self) -> Running {
        self.daemon_with(&[&FAST[..], &["--history", "history"]].concat())
    }

    fn report(&self, options: &[&str]) -> Output {
        let args = [&["report", "--history", "history"], options].concat();
        command(self.0.path(), &args).output().unwrap()
    }

    /// Starts a program that a daemon with a history steers, until the daemon has ended. Returns
    /// the program.
    fn steered_and_recorded(&self) -> Running {
        let daemon = self.daemon_with_history();
        let program = self.program(1);
        until(|| self.metric("corebeat_actions_done_total") > 0.0);
        end(daemon);
        program
    }
}

/// Ends a daemon in order.
fn end(mut daemon: Running) {
    signal(&daemon.0, Signal::TERM);
    assert!(daemon.0.wait().unwrap().success());
}

#[test]
fn report_has_programs_heartbeats_and_decisions_of_ended_daemons() {
    let place = Place::new();
    let first = place.steered_and_recorded();
    drop(first);
    let report = json(&place.report(&["--json"]));
    let [program] = &report["programs"].as_array().unwrap()[..] else { panic!("{report}") };
    assert!(program["cpu_s"].as_f64().unwrap() >= 0.0 && program["policy"] == "fair", "{report}");
    assert_eq!(program["heart_rate"]["rate_max"], 1.0, "{report}");
    assert_eq!(report["groups"][0]["group"], 1, "{report}");
    let decisions = report["decisions"].as_array().unwrap();
    let done = decisions.iter().find(|decision| decision["outcome"]["kind"] == "done");
    let done = done.unwrap_or_else(|| panic!("{report}"));
    assert_eq!(done["program"], program["name"], "{report}");
    assert!(!done["why"].as_str().unwrap().is_empty(), "{report}");
    assert_eq!(report["missing"][0]["daemon_started"], true, "{report}");
    let mode = fs::metadata(place.path("history/history.redb")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "others must not read command names and rates");

    // A killed daemon leaves a history that the next one continues.
    let mut daemon = place.daemon_with_history();
    daemon.0.kill().unwrap();
    daemon.0.wait().unwrap();
    end(place.daemon_with_history());
    let text = stdout(&place.report(&["--since", "1d"]));
    let name = program["name"].as_str().unwrap();
    assert!(text.contains(name) && text.contains("at most 1"), "{text}");
    assert!(text.contains("the daemon did not run, or recorded no history, from "), "{text}");
    let of_other = stdout(&place.report(&["--program", "another"]));
    assert!(!of_other.contains(name) && of_other.contains("Programs: none"), "{of_other}");
    let early = stdout(&place.report(&["--since", "1970-01-01T00:00Z", "--until", "1d"]));
    assert!(
        early.contains("Programs: none") && early.contains("the daemon did not run"),
        "{early}"
    );

    let page = place.path("page.html");
    let done = place.report(&["--html", page.to_str().unwrap()]);
    assert!(done.status.success() && done.stdout.is_empty(), "{}", stderr(&done));
    let page = fs::read_to_string(page).unwrap();
    for part in ["</html>", "<section id=\"groups\">", "id=\"state\"", "id=\"report\"", name] {
        assert!(page.contains(part), "{part}: {page}");
    }
}

#[test]
fn report_does_not_replace_the_history_that_it_reads() {
    let place = Place::new();
    fs::create_dir(place.path("history")).unwrap();
    let history = place.path("history/history.redb");
    fs::write(&history, "a history").unwrap();
    fs::hard_link(&history, place.path("link")).unwrap();
    let refused = [
        (place.report(&["--html", "history/history.redb"]), "history/history.redb is named twice"),
        (place.report(&["--html", "link"]), "history/history.redb and link are one file"),
    ];
    for (done, expected) in refused {
        assert_refused(&done, 2, expected);
    }
    let mut of_state = command(place.0.path(), &["report", "--html", "link"]);
    let of_state = of_state.env("COREBEAT_STATE_DIR", place.path("history")).output().unwrap();
    assert_refused(&of_state, 2, "history.redb and link are one file");
    assert_eq!(fs::read_to_string(history).unwrap(), "a history");
}

#[test]
fn daemon_serves_without_a_history_that_cannot_be_written() {
    let place = Place::new();
    let args = ["daemon", "--socket", "socket", "--log", "warning", "--history", "/proc/history"];
    let mut daemon = Running::start(command(place.0.path(), &args).stderr(Stdio::piped()));
    until(|| listens(&place.path("socket")));
    signal(&daemon.0, Signal::TERM);
    assert!(daemon.0.wait().unwrap().success());
    let text = std::io::read_to_string(daemon.0.stderr.take().unwrap()).unwrap();
    let expected = "corebeat: the history is not written: cannot use /proc/history: ";
    assert!(text.starts_with(expected) && text.lines().count() == 1, "{text}");
}

#[test]
fn report_without_a_history_or_a_period_is_refused() {
    let place = Place::new();
    assert_refused(&place.report(&[]), 2, "there is no history in history; start 'corebeat daemon");
    let never = place.report(&["--since", "5m", "--until", "1h"]);
    assert_refused(&never, 2, "is empty; write an earlier time with --since");
    for wrong in [["--since", "yesterday"], ["--since", "-1s"], ["--until", "-1s"]] {
        assert_refused(&place.report(&wrong), 2, "write a time ago such as 90s");
    }
    fs::create_dir(place.path("history")).unwrap();
    fs::write(place.path("history/history.redb"), "another file").unwrap();
    assert_refused(&place.report(&[]), 1, "is damaged or no history");
    assert!(!place.path("page").exists());
    assert_refused(&place.report(&["--html", "page"]), 1, "is damaged or no history");
    assert!(!place.path("page").exists(), "a failed report leaves no new file");
}

#[test]
fn page_of_a_period_is_drawn_in_a_browser() {
    let group = TestGroup::new();
    let Some(mut browser) = Browser::start(&group) else { return };
    let place = Place::new();
    let _program = place.steered_and_recorded();
    let page = place.path("page.html");
    let done = place.report(&["--since", "1m", "--html", page.to_str().unwrap()]);
    assert!(done.status.success(), "{}", stderr(&done));
    browser.open(&format!("file://{}", page.display()));
    browser.until(
        "[...document.querySelectorAll('#programs path')].some((path) => \
         path.getAttribute('d').length > 20)",
    );
    browser.until("document.querySelector('#groups path.rate').getAttribute('d').length > 5");
    browser.until("document.querySelector('#groups path.band').getAttribute('d').length > 5");
    assert_eq!(browser.value("document.querySelectorAll('#groups tbody tr').length"), 1);
    browser.assert_clean();
}

#[test]
fn page_of_the_host_shows_the_recorded_hour_without_a_script() {
    let place = Place::new();
    let program = place.steered_and_recorded();
    drop(program);
    // The program has ended before this daemon starts.
    let web = format!("unix:{}", place.path("web").display());
    let history = ["--web", &web, "--history", "history"];
    let _daemon = place.daemon_with(&[&FAST[..], &history].concat());
    let page = |path| get(&mut UnixStream::connect(place.path("web")).unwrap(), path);
    assert!(page("/").contains("<a href=\"./?range=1d\">1 day</a>"));
    for range in ["/?range=1h", "/?range=1d"] {
        let page = page(range);
        for part in ["From 20", ">fair<", "at most 1<", "done: ", "<a href=\"./\">Live</a>"] {
            assert!(page.contains(part), "{part}: {page}");
        }
    }
    assert!(page("/?range=2h").starts_with("HTTP/1.1 404 "));
}

#[test]
fn range_is_chosen_in_a_browser() {
    let group = TestGroup::new();
    let Some(mut browser) = Browser::start(&group) else { return };
    let place = Place::new();
    let _program = place.steered_and_recorded();
    let (_daemon, address) = place.daemon_on_port(&["--history", "history"]);
    browser.open(&format!("http://{address}/?token={TOKEN}"));
    let follow = |title: &str| {
        format!(
            "[...document.querySelectorAll('nav a')].find((a) => a.textContent === '{title}')\
             .click()"
        )
    };
    browser.until("document.getElementById('status').textContent.startsWith('Live.')");
    browser.value(&follow("1 hour"));
    browser.until("document.getElementById('status').textContent.startsWith('From ')");
    browser.until(
        "[...document.querySelectorAll('#programs path')].some((path) => \
         path.getAttribute('d').length > 20)",
    );
    browser.until("document.querySelector('#groups path.rate').getAttribute('d').length > 5");
    assert_eq!(browser.value("document.querySelector('[aria-current]').textContent"), "1 hour");
    browser.assert_clean();
    browser.value(&follow("Live"));
    browser.until("document.getElementById('status').textContent.startsWith('Live.')");
    browser.assert_clean();
}
