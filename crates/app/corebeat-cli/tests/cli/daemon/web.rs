//! The web page of the daemon, and the page of a run, also in a real browser.

use super::{FAST, Place};
use crate::{Running, assert_refused, command, until};
use corebeat_heartbeat::{Goal, Group};
use corebeat_host::Point;
use corebeat_machine::TimeShares;
use corebeat_test_group::TestGroup;
use corebeat_web::{Decision, Machine, Part, State, Update};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

/// Environment variable that turns the test below into a program with heartbeats.
const BEATS: &str = "COREBEAT_TEST_HOSTILE";

/// Name of the test below.
const PROGRAM: &str = "daemon::web::program_with_a_hostile_thread";

/// Name of a thread that is markup, as long as the kernel keeps.
const THREAD: &str = "<img onerror=x>";

pub(super) const TOKEN: &str = "0123456789abcdef";

/// Largest size of a page, in bytes.
const PAGE_BYTES_MAX: usize = 200_000;

/// Not a test: a program that emits heartbeats faster than its goal, until its input ends.
#[test]
fn program_with_a_hostile_thread() {
    let Ok(number) = std::env::var(BEATS) else { return };
    let beats = move || {
        let producer = Group::new(number.parse().unwrap()).produce().unwrap();
        let goal = Goal { rate_min: Some(1.0), rate_max: Some(2.0), ..Goal::default() };
        producer.set_goal(goal).unwrap();
        loop {
            producer.beat(1000);
            // CPU time, so that the daemon names this thread.
            (0..100_000).for_each(|n| {
                std::hint::black_box(n);
            });
            thread::sleep(Duration::from_millis(1));
        }
    };
    thread::Builder::new().name(THREAD.into()).spawn(beats).unwrap();
    let _ = std::io::stdin().read(&mut [0]);
    std::process::exit(0);
}

impl Place {
    fn hostile_program(&self, group: u32) -> Running {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", PROGRAM]).env(BEATS, group.to_string()).stdin(Stdio::piped());
        command.env("COREBEAT_SOCKET", self.path("socket")).stdout(Stdio::null());
        Running::start(&mut command)
    }

    /// A daemon with a web page on a free port, which requires the token, and with these options.
    /// If another process takes the port at the same time, another port is tried.
    pub(super) fn daemon_on_port(&self, options: &[&str]) -> (Running, SocketAddr) {
        fs::write(self.path("token"), TOKEN).unwrap();
        fs::set_permissions(self.path("token"), fs::Permissions::from_mode(0o600)).unwrap();
        for _ in 0..100 {
            let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let web = free.to_string();
            let page = ["--web", &web, "--web-token", "token"];
            let mut daemon = self.daemon_under(&[], &[&FAST[..], &page, options].concat());
            let mut has_ended = false;
            until(|| {
                has_ended = daemon.0.try_wait().unwrap().is_some();
                has_ended || self.metric_of_living("corebeat_programs").is_some()
            });
            if !has_ended {
                return (daemon, free);
            }
        }
        panic!("there is no free port");
    }
}

pub(super) fn get(stream: &mut (impl Read + Write), path: &str) -> String {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page
}

#[test]
fn page_shows_a_steered_pair_without_a_script() {
    let place = Place::new();
    let web = format!("unix:{}", place.path("web").display());
    let _daemon = place.daemon_with(&[&FAST[..], &["--web", &web]].concat());
    let _pair = [place.hostile_program(1), place.hostile_program(2)];
    let mut page = String::new();
    let section = |page: &str, id: &str| {
        let section = page.split(&format!("<section id=\"{id}\">")).nth(1).unwrap();
        section.split("</section>").next().unwrap().to_owned()
    };
    until(|| {
        page = get(&mut UnixStream::connect(place.path("web")).unwrap(), "/");
        let rows = |id| section(&page, id).matches("<tr").count() - 1;
        rows("programs") == 2 && rows("decisions") > 0 && rows("groups") == 2
    });
    assert!(page.len() <= PAGE_BYTES_MAX, "{}", page.len());
    assert!(!page.contains("<img"), "{page}");
    until(|| {
        page = get(&mut UnixStream::connect(place.path("web")).unwrap(), "/");
        page.contains("&lt;img onerror=x&gt;")
    });
    assert!(section(&page, "decisions").contains(">fair<"), "{page}");
    assert!(section(&page, "groups").contains("1 to 2"), "{page}");
}

#[test]
fn port_in_use_is_reported_in_one_line() {
    let place = Place::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let web = taken.local_addr().unwrap().to_string();
    let args = ["daemon", "--scope", "user", "--socket", "socket", "--web", &web];
    let refused = command(place.0.path(), &args).output().unwrap();
    assert_refused(&refused, 125, &format!("cannot serve the web page on {web}: "));
}

#[test]
fn page_without_a_safe_token_is_refused() {
    let place = Place::new();
    let file = place.path("token");
    let refused = |content: &str, mode: u32, status: i32, expected: &str| {
        fs::write(&file, content).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        let args =
            ["daemon", "--socket", "socket", "--web", "0.0.0.0:9478", "--web-token", "token"];
        assert_refused(&command(place.0.path(), &args).output().unwrap(), status, expected);
    };
    for mode in [0o604, 0o640] {
        let expected = "other users have access to token; run 'chmod go= ";
        refused("0123456789abcdef\n", mode, 2, expected);
    }
    refused("short\n", 0o600, 2, "the token has not 16 to 1024 characters");
    fs::remove_file(&file).unwrap();
    for (args, expected) in [
        (&["--web", "0.0.0.0:9478"][..], "needs a token"),
        (&["--web", "[::]:9478"], "needs a token"),
        (&["--scope", "host", "--web"], "all users of this host can connect to it"),
        (&["--web", "--web-token", "missing"], "cannot read missing"),
        (&["--web", "--web-token", "/dev/null"], "is no regular file"),
        (&["--web-token", "token"], "--web"),
        (&["--web", "9478x"], "--web"),
    ] {
        let args = [&["daemon", "--socket", "socket"], args].concat();
        assert_refused(&command(place.0.path(), &args).output().unwrap(), 2, expected);
    }
}

/// Prints a line that the test harness does not capture.
fn report(line: &str) {
    let mut error = std::io::stderr();
    writeln!(error, "{line}").unwrap();
}

/// A headless browser, controlled by the DevTools protocol over a pipe.
pub(super) struct Browser {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
    session: String,
    number: u64,
    _folder: tempfile::TempDir,
}

impl Browser {
    /// `None` if Chromium is not installed; a line on standard error reports this.
    pub(super) fn start(group: &TestGroup) -> Option<Browser> {
        let names = ["chromium", "chromium-browser", "google-chrome"];
        let found = |name: &&str| {
            let path = std::env::var_os("PATH")?;
            std::env::split_paths(&path).map(|folder| folder.join(name)).find(|p| p.exists())
        };
        let Some(program) = names.iter().find_map(found) else {
            report("tests in a browser are left out: install the Debian package chromium");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        // The protocol is on the descriptors 3 and 4.
        let script = "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1";
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script, "sh"]).arg(program);
        command.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"]);
        command.args(["--disable-dev-shm-usage", "--window-size=1600,1200"]);
        command.args(["--remote-debugging-pipe", "about:blank"]);
        command.arg(format!("--user-data-dir={}", folder.path().display()));
        command.env("HOME", folder.path()).env("TMPDIR", folder.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = group.add(&mut command).spawn().unwrap();
        let requests = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        let session = String::new();
        let mut browser = Browser { child, requests, answers, session, number: 0, _folder: folder };
        // Charts are drawn while they are visible. The first page is in front.
        let mut target = Value::Null;
        until(|| {
            let targets = browser.call("Target.getTargets", &json!({}));
            let mut infos = targets["targetInfos"].as_array().unwrap().iter();
            let page = infos.find(|info| info["type"] == "page");
            target = page.map_or(Value::Null, |info| info["targetId"].clone());
            !target.is_null()
        });
        let target = json!({ "targetId": target, "flatten": true });
        let attached = browser.call("Target.attachToTarget", &target);
        browser.session = attached["sessionId"].as_str().unwrap().to_owned();
        browser.call("Page.enable", &json!({}));
        // As if its window was in front: the key Tab moves the focus there only.
        browser.call("Emulation.setFocusEmulationEnabled", &json!({ "enabled": true }));
        let record = "window.violations = []; addEventListener('error', (e) => \
                      violations.push(e.message)); addEventListener('securitypolicyviolation', \
                      (e) => violations.push(e.violatedDirective + ' ' + e.blockedURI));";
        browser.call("Page.addScriptToEvaluateOnNewDocument", &json!({ "source": record }));
        Some(browser)
    }

    /// Calls a method, and returns its result; null if the page was left meanwhile, as by a click
    /// on a link.
    fn call(&mut self, method: &str, params: &Value) -> Value {
        self.number += 1;
        let mut call = json!({ "id": self.number, "method": method, "params": params });
        if !self.session.is_empty() {
            call["sessionId"] = json!(self.session);
        }
        self.requests.write_all(format!("{call}\0").as_bytes()).unwrap();
        loop {
            let mut text = vec![];
            assert!(self.answers.read_until(0, &mut text).unwrap() > 0, "the browser has ended");
            let message: Value = serde_json::from_slice(&text[..text.len() - 1]).unwrap();
            if message["id"] == self.number {
                let error = &message["error"];
                let is_left = error["message"] == "Inspected target navigated or closed";
                assert!(error.is_null() || is_left, "{method}: {message}");
                return message["result"].clone();
            }
        }
    }

    pub(super) fn open(&mut self, url: &str) {
        let opened = self.call("Page.navigate", &json!({ "url": url }));
        assert!(opened["errorText"].is_null(), "{opened}");
    }

    /// Value of an expression in the page.
    pub(super) fn value(&mut self, expression: &str) -> Value {
        let asked = json!({
            "expression": expression, "returnByValue": true, "awaitPromise": true,
        });
        let found = self.call("Runtime.evaluate", &asked);
        assert!(found["exceptionDetails"].is_null(), "{expression}: {found}");
        found["result"]["value"].clone()
    }

    /// Waits until an expression in the page is true. An element may not exist yet.
    pub(super) fn until(&mut self, expression: &str) {
        let safe = format!(
            "(() => {{ try {{ return Boolean({expression}); }} catch {{ return false; }} }})()"
        );
        until(|| self.value(&safe) == true);
    }

    /// Requires that neither the script nor the policy of the page has failed, that the page works
    /// with the keyboard, and that an accessibility checker has no serious finding with light and
    /// dark colours.
    pub(super) fn assert_clean(&mut self) {
        self.assert_keys_reach_everything();
        assert_eq!(self.value("violations"), json!([]));
        assert_eq!(self.value("document.querySelectorAll('img, iframe, object').length"), 0);
        let Some(axe) = std::env::var_os("COREBEAT_AXE") else {
            report(
                "accessibility is not checked: set COREBEAT_AXE to axe.min.js of the npm package \
                 axe-core",
            );
            return;
        };
        let source = fs::read_to_string(axe).unwrap();
        self.value(&format!("{source}; true"));
        let serious = "axe.run().then((found) => found.violations.filter((v) => \
                       ['serious', 'critical'].includes(v.impact)).map((v) => v.id + ': ' + \
                       v.nodes.map((n) => n.html).join(' ')))";
        let mut colours = vec![];
        for scheme in ["light", "dark"] {
            let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
            self.call("Emulation.setEmulatedMedia", &json!({ "features": features }));
            assert_eq!(self.value(serious), json!([]), "{scheme}");
            colours.push(self.value("getComputedStyle(document.body).backgroundColor"));
        }
        assert_ne!(colours[0], colours[1], "the page follows the browser");
    }

    /// Requires that the key Tab moves the focus to each control and each table once, that the
    /// focus has an outline there, and that Enter follows the first link, to the programs.
    fn assert_keys_reach_everything(&mut self) {
        let count = self.value(
            "window.reached = []; addEventListener('focusin', (e) => reached.push(\
             [e.target.outerHTML.slice(0, 99), getComputedStyle(e.target).outlineStyle])); \
             document.activeElement.blur(); \
             [...document.querySelectorAll('a[href], button, input, select, [tabindex]')]\
             .filter((e) => e.checkVisibility()).length",
        );
        let count = count.as_u64().unwrap();
        (0..count).for_each(|_| self.press("Tab", 9, ""));
        let reached = self.value("reached");
        let reached: Vec<&Value> = reached.as_array().unwrap().iter().collect();
        let distinct: BTreeSet<String> = reached.iter().map(|r| r[0].to_string()).collect();
        assert_eq!((reached.len() as u64, distinct.len() as u64), (count, count), "{reached:?}");
        assert!(reached.iter().all(|r| r[1] != "none"), "{reached:?}");
        self.value("document.querySelector('.skip').focus()");
        self.press("Enter", 13, "\r");
        assert_eq!(self.value("location.hash"), "#programs");
    }

    fn press(&mut self, key: &str, code: u32, text: &str) {
        for kind in ["keyDown", "keyUp"] {
            let mut event = json!({ "type": kind, "key": key, "windowsVirtualKeyCode": code });
            if kind == "keyDown" && !text.is_empty() {
                event["text"] = json!(text);
            }
            self.call("Input.dispatchKeyEvent", &event);
        }
    }
}

impl Drop for Browser {
    /// Ends the browser with its processes, so that none of them writes to the folder any more.
    fn drop(&mut self) {
        let close = json!({ "id": 0, "method": "Browser.close" });
        let _ = self.requests.write_all(format!("{close}\0").as_bytes());
        for _ in 0..2000 {
            if self.child.try_wait().is_ok_and(|ended| ended.is_some()) {
                return;
            }
            thread::sleep(Duration::from_millis(3));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn page_is_live_in_a_browser() {
    let group = TestGroup::new();
    let Some(mut browser) = Browser::start(&group) else { return };
    let place = Place::new();
    let (daemon, address) = place.daemon_on_port(&[]);
    let mut pair = vec![place.hostile_program(1), place.hostile_program(2)];
    browser.open(&format!("http://{address}/?token={TOKEN}"));
    browser.until("document.querySelectorAll('#programs tbody tr').length === 2");
    browser.until("document.querySelectorAll('#groups tbody tr').length === 2");
    browser.until("document.querySelectorAll('#decisions tbody tr').length > 0");
    browser.until("document.querySelector('#programs path.user').getAttribute('d').length > 30");
    browser.until("document.querySelector('#groups path.rate').getAttribute('d').includes('L')");
    browser.until(&format!("document.querySelector('.thread bdi').textContent === '{THREAD}'"));
    browser.until("document.querySelector('#map .users').textContent.length > 0");
    let status = browser.value("document.getElementById('status').textContent");
    assert_eq!(status, "Live. The daemon acts.");
    browser.assert_clean();
    let size = browser.value("fetch('/').then((r) => r.text()).then((t) => t.length)");
    assert!(size.as_u64().unwrap() <= PAGE_BYTES_MAX as u64, "{size}");
    // Filters.
    let filter = |text: &str| {
        format!(
            "(() => {{ const f = document.getElementById('filter'); f.value = '{text}'; \
             f.dispatchEvent(new Event('input')); return [...document.querySelectorAll(\
             '#decisions tbody tr')].filter((row) => !row.hidden).length; }})()"
        )
    };
    assert_eq!(browser.value(&filter("no such decision")), 0);
    assert!(browser.value(&filter("fair")).as_u64().unwrap() > 0);
    // A paused page stays as it is.
    let press = "document.getElementById('pause').click()";
    let status = "document.getElementById('status').textContent";
    browser.value(press);
    assert_eq!(browser.value(status), "Paused.");
    browser.value(press);
    browser.until(&format!("{status}.startsWith('Live.')"));
    // A program that has ended is marked, and the end of the daemon is shown.
    drop(pair.pop());
    browser.until("document.querySelectorAll('#programs tbody tr.gone').length === 1");
    drop(daemon);
    browser.until("document.getElementById('status').className === 'lost'");
}

/// A host with as many programs as the daemon observes, after some minutes.
fn busy_host() -> State {
    let mut state = State::of_host("host".into(), Machine::of_host());
    for second in 1..=300u64 {
        let at_ns = second * 1_000_000_000;
        let program = |id: u32| {
            let user = f64::from((id * 37 + second as u32 * 101) % 1000) / 1000.0;
            let shares =
                TimeShares { user: Some(user), sleep: Some(1.0 - user), ..TimeShares::ZERO };
            let (span_ns, thread_ns, threads) = (1_000_000_000, 8_000_000_000, 8);
            let thread = |tid| {
                let (name, running, cpu) = (format!("worker {tid}"), user, None);
                corebeat_web::Thread { tid: 100_000 + tid, name, running, cpu }
            };
            corebeat_web::Program {
                id,
                pid: Some(100_000 + id.cast_signed()),
                name: format!("program {id}"),
                policy: "auto".into(),
                changes: vec!["class batch".into(), "slice 100 ms".into()],
                points: [Point { at_ns, span_ns, thread_ns, shares, threads }].into(),
                threads: (0..4).map(thread).collect(),
                ..corebeat_web::Program::default()
            }
        };
        let programs = (0..256).map(program).collect();
        let decision = Decision { what: "slice 100 ms".into(), ..Decision::default() };
        let decisions = vec![Decision { unix_s: Some(second as f64), ..decision }];
        state.update(Update { at_ns, programs, decisions, ..Update::default() });
    }
    state
}

/// Prints the time, and asserts nothing about it. The tests of corebeat-daemon assert the bytes.
#[test]
fn load_time_of_many_programs_is_printed() {
    let group = TestGroup::new();
    let Some(mut browser) = Browser::start(&group) else { return };
    let state = busy_host();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let page = state.live_page().unwrap().html;
    let event = format!("data: {}\n\n", state.json(Part::Whole));
    // Ends with the process of the test.
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let mut request = String::new();
            let _ = stream.read_line(&mut request);
            let (kind, body) = match request.starts_with("GET / ") {
                true => ("text/html; charset=utf-8", &page),
                false => ("text/event-stream", &event),
            };
            let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: ";
            let _ = write!(stream.get_mut(), "{head}{kind}\r\n\r\n{body}");
        }
    });
    let watch = "(() => { const look = () => { \
                 const path = document.querySelector('#programs path.user'); \
                 if (path && path.getAttribute('d')) window.drawn = performance.now(); \
                 else requestAnimationFrame(look); }; look(); })()";
    browser.call("Page.addScriptToEvaluateOnNewDocument", &json!({ "source": watch }));
    browser.call("Performance.enable", &json!({}));
    let mut times_ms: Vec<f64> = vec![];
    for _ in 0..5 {
        browser.open(&format!("http://{address}/"));
        browser.until("window.drawn > 0 && document.readyState === 'complete'");
        times_ms.push(browser.value("drawn").as_f64().unwrap());
    }
    // Of the last load.
    let metrics = browser.call("Performance.getMetrics", &json!({}));
    let metric_ms = |name: &str| {
        let metrics = metrics["metrics"].as_array().unwrap();
        let metric = metrics.iter().find(|metric| metric["name"] == name).unwrap();
        1000.0 * metric["value"].as_f64().unwrap()
    };
    let [script, style, layout] =
        ["ScriptDuration", "RecalcStyleDuration", "LayoutDuration"].map(metric_ms);
    times_ms.sort_by(f64::total_cmp);
    let [min, median, max] = [times_ms[0], times_ms[2], times_ms[4]];
    report(&format!(
        "page of 256 programs: the charts are drawn after {median:.0} ms (of 5 loads, {min:.0} to \
         {max:.0} ms); the last load took {script:.0} ms for its scripts, {style:.0} ms for styles \
         and {layout:.0} ms for the layout"
    ));
}

#[test]
fn page_of_a_run_is_drawn_in_a_browser() {
    let group = TestGroup::new();
    let Some(mut browser) = Browser::start(&group) else { return };
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    run_with_page(folder.path());
    browser.open(&format!("file://{}", page.display()));
    browser.until("document.querySelector('#programs path.user').getAttribute('d').length > 30");
    browser.assert_clean();
}

/// Runs a program with a hostile name, with the page `page.html` in this folder.
fn run_with_page(folder: &Path) -> String {
    let program = folder.join("<img src=x>");
    // By another process: a child of another test may inherit a descriptor that is open for
    // writing, and the copy could not be executed.
    assert!(Command::new("cp").arg("/bin/sh").arg(&program).status().unwrap().success());
    let args = ["run", "--html", "page.html", "--period", "20", "--report-file", "report.json"];
    let mut command = command(folder, &args);
    command.args(["--report", "json", "--"]).arg(&program);
    command.args(["-c", "n=0; while [ $n -lt 300000 ]; do n=$((n+1)); done; exit 3"]);
    assert_eq!(command.status().unwrap().code(), Some(3));
    fs::read_to_string(folder.join("page.html")).unwrap()
}

#[test]
fn page_of_a_run_contains_its_report() {
    let folder = tempfile::tempdir().unwrap();
    let page = run_with_page(folder.path());
    assert!(page.len() <= PAGE_BYTES_MAX, "{}", page.len());
    assert!(!page.contains("<img") && page.contains("&lt;img src=x&gt;"), "{page}");
    let elsewhere = ["src=\"", "href=\"http", "url(", "@import"];
    assert!(!elsewhere.iter().any(|part| page.contains(part)), "{page}");
    let part = |id: &str| -> Value {
        let begin = format!("<script type=\"application/json\" id=\"{id}\">");
        let text = page.split(&begin).nth(1).unwrap().split("</script>").next().unwrap();
        serde_json::from_str(text).unwrap()
    };
    let report = fs::read_to_string(folder.path().join("report.json")).unwrap();
    assert_eq!(part("report"), serde_json::from_str::<Value>(&report).unwrap());
    let state = part("state");
    let points = state["programs"][0]["points"].as_array().unwrap();
    assert!(!points.is_empty() && points[0][2][0].is_number(), "{state}");
    assert!(page.contains("exit 3"), "{page}");
}

#[test]
fn page_of_a_search_has_its_short_runs() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["tune", "--html", "page.html", "--max", "2", "--window", "20", "--json", "--"];
    let loops = "n=0; while [ $n -lt 300000 ]; do n=$((n+1)); done # {threads}";
    let done = command(folder.path(), &[&args[..], &["sh", "-c", loops]].concat()).output();
    assert!(done.as_ref().unwrap().status.success(), "{done:?}");
    let page = fs::read_to_string(folder.path().join("page.html")).unwrap();
    assert!(page.contains("Short runs of the search") && page.contains("Summary"), "{page}");
    assert!(page.len() <= PAGE_BYTES_MAX, "{}", page.len());
}

#[test]
fn page_that_cannot_be_created_is_reported_before_the_program_runs() {
    let folder = tempfile::tempdir().unwrap();
    for args in [
        &["run", "--html", "/no/such/folder/page", "--", "touch", "ran"][..],
        &["run", "--html", "page", "--report-file", "page", "--", "touch", "ran"],
        &["tune", "--html", "/no/such/folder/page", "--", "touch", "ran", "{threads}"],
    ] {
        assert_refused(&command(folder.path(), args).output().unwrap(), 2, "page");
    }
    assert!(!folder.path().join("ran").exists());
}
