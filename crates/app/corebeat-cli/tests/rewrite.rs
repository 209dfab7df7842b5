//! `corebeat rewrite`, as a user runs it.

use corebeat_test_group::reset_signals;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

fn command(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_corebeat"));
    reset_signals(command.current_dir(folder).arg("rewrite").args(args));
    command
}

fn corebeat(folder: &TempDir, args: &[&str]) -> Output {
    command(folder.path(), args).output().unwrap()
}

fn printed(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn error(output: &Output, status: i32) -> String {
    assert_eq!(output.status.code(), Some(status), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The blocks of a page with this language, without their fences.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    let ends = page.split(fence.as_str()).skip(1);
    ends.map(|rest| rest.split("```").next().unwrap()).collect()
}

/// Replaces times and rates, which differ between runs.
fn without_times(text: &str) -> String {
    let line = |line: &str| match line.split_once(" rewrites in ") {
        Some((count, rest)) => {
            format!("{count} rewrites in {}", rest.split_once(')').map_or(rest, |(_, rest)| rest))
        }
        None => line.trim_end().to_owned(),
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn examples_of_the_book_print_what_the_book_shows() {
    let page = include_str!("../../../../docs/rewrite.md");
    let people = blocks(page, "csv")[0];
    let folder = folder(&[("people.csv", people), ("introduce.cypher", blocks(page, "cypher")[0])]);
    let mut examples = 0;
    for session in blocks(page, "console") {
        for example in session.split("$ corebeat rewrite ").skip(1) {
            let (line, expected) = example.split_once('\n').unwrap();
            let args: Vec<&str> = line.split(' ').collect();
            let found = printed(&corebeat(&folder, &args));
            assert_eq!(without_times(&found), without_times(expected), "{line}");
            examples += 1;
        }
    }
    assert_eq!(examples, 3);
}

/// A limit on the size of files simulates a full disk.
#[test]
fn full_disk_leaves_the_previous_graph() {
    let folder = folder(&[("rules", "CREATE (:Node)"), ("old.graphml", "the previous graph")]);
    let run = |limit: &str, to: &str, out: &str| {
        let script = format!(
            "ulimit -f {limit}; exec \"$0\" rewrite run rules --output {to} > {out} 2> /dev/null"
        );
        let own = env!("CARGO_BIN_EXE_corebeat");
        let mut command = Command::new("sh");
        command.args(["-c", &script, own]).current_dir(folder.path()).status().unwrap().code()
    };
    let text = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    for to in ["old.graphml", "new.graphml"] {
        assert_eq!(run("0", to, "/dev/null"), Some(125));
        assert_eq!(text("old.graphml"), "the previous graph");
        assert_eq!(folder.path().read_dir().unwrap().count(), 2);
    }
    assert_eq!(run("unlimited", "old.graphml", "/dev/null"), Some(0));
    assert!(text("old.graphml").contains("Node"));
    // Standard output that is a file gets the graph and what is printed.
    std::os::unix::fs::symlink("/dev/stdout", folder.path().join("link.graphml")).unwrap();
    assert_eq!(run("unlimited", "link.graphml", "out"), Some(0));
    assert!(text("out").contains(" rewrites in "), "{}", text("out"));
    assert!(folder.path().join("link.graphml").is_symlink());
}

#[test]
fn results_are_printed_as_json() {
    let folder = folder(&[("rules", "RETURN 1 AS one, 'a' AS text, [1.5, null] AS list")]);
    let found = printed(&corebeat(&folder, &["query", "rules", "--json"]));
    assert_eq!(found, "{\"list\":[1.5,null],\"one\":1,\"text\":\"a\"}\n");
    fs::write(folder.path().join("rules"), "CREATE (:A {x: $x})-[:R]->(:B)").unwrap();
    let found = printed(&corebeat(&folder, &["run", "rules", "--param", "x=7", "--json"]));
    assert!(found.contains("\"rewrites\":1") && found.contains("\"nodes\":2"), "{found}");
}

#[test]
fn mistakes_are_one_line_with_their_place() {
    let folder = folder(&[
        ("bad", "MATCH (a:A\nRETURN a"),
        ("g.csv", "a,b\nc\n"),
        ("m.xmi", ""),
        ("make", "CREATE (:A)"),
        ("ask", "RETURN 1"),
    ]);
    for (args, status, expected) in [
        (&["query", "bad"][..], 1, "corebeat: bad, line 2, column 1: expected ')'"),
        (&["stats", "--graph", "g.csv"], 1, "corebeat: g.csv, line 2: expected two names"),
        (&["stats", "--graph", "none.csv"], 2, "cannot read none.csv"),
        (&["stats", "--graph", "m.xmi"], 2, "add --metamodel FILE.ecore"),
        (&["run", "make", "--output", "x.xmi"], 2, "x.xmi needs a metamodel; add --metamodel"),
        (
            &["run", "bad", "--output", "x.png"],
            2,
            "x.png must end in .graphml, .gxl, .xmi, .csv or",
        ),
        (&["run", "bad", "--threads", "0"], 2, "write a number from 1 to 256"),
        (&["run", "bad", "--output", "bad"], 2, "bad is named twice"),
        (&["draw", "--graph", "g.csv", "--output", "g.csv"], 2, "g.csv is named twice"),
        (&["query", "make", "--changes", "make"], 1, "make:1 has no RETURN; move changes to the"),
        (&["query", "ask", "--changes", "ask"], 1, "ask:1 changes nothing; move queries out of"),
    ] {
        let found = error(&corebeat(&folder, args), status);
        assert!(found.contains(expected) && found.lines().count() == 1, "{args:?}: {found}");
    }
}

#[test]
fn graphs_are_drawn_and_converted() {
    let folder =
        folder(&[("g.csv", "a,b\nb,c\n"), ("rules", "MATCH (a) WHERE a.id = 'x' SET a.x = 1")]);
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    printed(&corebeat(&folder, &["draw", "--graph", "g.csv", "--output", "g.svg"]));
    assert!(read("g.svg").starts_with("<svg ") && read("g.svg").contains(">Node b</text>"));
    printed(&corebeat(&folder, &["draw", "--graph", "g.csv", "--output", "g.dot"]));
    assert!(read("g.dot").starts_with("digraph {"));
    printed(&corebeat(&folder, &["run", "rules", "--graph", "g.csv", "--output", "g.gxl"]));
    printed(&corebeat(&folder, &["explain", "rules", "--graph", "g.csv", "--output", "plan.svg"]));
    for label in ["rule rules:1", "1 scan (a:Node)", "expected 3, actual 3", "matches 0"] {
        assert!(read("plan.svg").contains(&format!(">{label}</text>")), "{}", read("plan.svg"));
    }
    let stats =
        ["g.csv", "g.gxl"].map(|name| printed(&corebeat(&folder, &["stats", "--graph", name])));
    assert_eq!(stats[0], stats[1]);
}

#[test]
fn models_are_changed_and_written() {
    let ecore = r##"<ecore:EPackage name="p" xmlns:xsi="x" xmlns:ecore="e">
        <eClassifiers xsi:type="ecore:EClass" name="Team">
          <eStructuralFeatures xsi:type="ecore:EReference" name="people" upperBound="-1"
              eType="#//Person" containment="true"/>
        </eClassifiers>
        <eClassifiers xsi:type="ecore:EClass" name="Person">
          <eStructuralFeatures xsi:type="ecore:EReference" name="friend" eType="#//Person"/>
          <eStructuralFeatures xsi:type="ecore:EAttribute" name="name" eType="e#//EString"/>
        </eClassifiers>
      </ecore:EPackage>"##;
    let folder = folder(&[
        ("m.ecore", ecore),
        ("make", "CREATE (t:Team)-[:people]->(a:Person {name: 'A'}), (t)-[:people]->(:Person)"),
        ("name", "MATCH (p:Person) WHERE p.name IS NULL SET p.name = 'B'"),
        ("link", "MATCH (:Team)-[:people]->(p), (q:Person) CREATE (p)-[:friend]->(q)"),
    ]);
    let run =
        |args: &[&str]| corebeat(&folder, &[&["run"], args, &["--metamodel", "m.ecore"]].concat());
    printed(&run(&["make", "--output", "a.xmi"]));
    printed(&run(&["name", "--graph", "a.xmi", "--output", "b.xmi"]));
    let expected = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
        <p:Team xmi:version=\"2.0\" xmlns:xmi=\"http://www.omg.org/XMI\" \
        xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" xmlns:p=\"p\">\n\
        \x20 <people name=\"A\"/>\n  <people name=\"B\"/>\n</p:Team>\n";
    assert_eq!(fs::read_to_string(folder.path().join("b.xmi")).unwrap(), expected);
    // Each person is a friend of two: the metamodel has one.
    let args =
        ["link", "--graph", "b.xmi", "--apply", "one", "--repeat", "2", "--output", "b2.xmi"];
    let found = error(&run(&args), 1);
    let expected = "corebeat: XMI cannot express several friend of node 1 (Person): the reference \
        has one target; write GraphML instead\n";
    assert_eq!(found, expected);
    assert!(!folder.path().join("b2.xmi").exists());
}

#[test]
fn what_a_file_of_pairs_leaves_out_is_reported() {
    let rules = "CREATE (:A {x: 1})-[:R {y: 2}]->(:B); CREATE (:C)";
    let folder = folder(&[("rules", rules), ("pairs", "CREATE (:Node {id: 'a'})-[:R]->(:Node)")]);
    let run = |args: &[&str]| {
        let done = corebeat(&folder, &[&["run"], args].concat());
        printed(&done);
        String::from_utf8(done.stderr).unwrap()
    };
    assert_eq!(
        run(&["rules", "--output", "x.csv"]),
        "corebeat: x.csv leaves out 1 node without edges, 2 types of nodes, 2 attributes; \
         .graphml and .gxl keep them\n"
    );
    assert_eq!(run(&["rules", "--output", "x.graphml"]), "");
    assert_eq!(run(&["pairs", "--output", "x.csv"]), "");
}

#[test]
fn symmetric_matches_are_counted_once_with_the_threads_of_a_claim() {
    let folder = folder(&[("g.csv", "a,b\nb,c\nc,a"), ("q", "MATCH (a)--(b)--(c)--(a) RETURN a")]);
    for (options, expected) in [(&["--claim", "2"][..], 6), (&["--symmetric-once"], 1)] {
        let args = [&["query", "q", "--graph", "g.csv", "--json"], options].concat();
        assert_eq!(printed(&corebeat(&folder, &args)).lines().count(), expected, "{options:?}");
    }
}

/// A rule that matches for ever, and a signal: the graph is written and consistent.
#[test]
fn interrupted_run_writes_a_consistent_graph() {
    // Each application adds a node and an edge.
    let rules = "CREATE (:Start)-[:NEXT]->(:End);
        RETURN 'ready' AS ready;
        MATCH (s:Start)-[n:NEXT]->(e) DELETE n CREATE (s)-[:NEXT]->(x:End)-[:NEXT]->(e)";
    for (threads, signal) in [("1", Signal::INT), ("2", Signal::TERM)] {
        let folder = folder(&[("rules", rules)]);
        let args = ["run", "rules", "--threads", threads, "--output", "out.graphml"];
        let mut child = command(folder.path(), &args).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // The query prints its table when the signal handlers are installed.
        assert_eq!([(); 2].map(|()| lines.next().unwrap().unwrap()), ["ready"; 2]);
        kill_process(Pid::from_child(&child), signal).unwrap();
        let rest: Vec<String> = lines.map(Result::unwrap).collect();
        assert_eq!(child.wait().unwrap().signal(), Some(signal.as_raw()));
        assert!(rest[0].ends_with("; stopped"), "{rest:?}");
        let found = printed(&corebeat(&folder, &["stats", "--graph", "out.graphml", "--json"]));
        let number = |key: &str| -> u64 {
            let rest = found.split(&format!("\"{key}\":")).nth(1).unwrap();
            rest.split([',', '}']).next().unwrap().parse().unwrap()
        };
        assert_eq!(number("End"), number("NEXT"), "{found}");
    }
}

/// The text of openCypher for a line of the contest's changes.
fn change(line: &str) -> String {
    let text = |text: &str| format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"));
    let time = |time: &str| text(&time.replace(' ', "T"));
    let fields: Vec<&str> = line.split('|').collect();
    match fields[..] {
        ["Users", id, name] => format!("CREATE (:User {{id: {}, name: {}}})", text(id), text(name)),
        ["Friends", from, to] => format!(
            "MATCH (a:User {{id: {}}}), (b:User {{id: {}}}) CREATE (a)-[:friends]->(b)",
            text(from),
            text(to)
        ),
        ["Likes", user, comment] => format!(
            "MATCH (u:User {{id: {}}}), (c:Comment {{id: {}}}) CREATE (u)-[:likes]->(c)",
            text(user),
            text(comment)
        ),
        ["Posts", id, at, content, user] => format!(
            "MATCH (u:User {{id: {}}}) CREATE (:Post {{id: {}, timestamp: {}, content: {}}})\
             -[:submitter]->(u)",
            text(user),
            text(id),
            time(at),
            text(content)
        ),
        ["Comments", id, at, ref content @ .., user, parent] => format!(
            "MATCH (u:User {{id: {}}}), (p:Post|Comment {{id: {}}}) CREATE (p)-[:comments]->\
             (:Comment {{id: {}, timestamp: {}, content: {}}})-[:submitter]->(u)",
            text(user),
            text(parent),
            text(id),
            time(at),
            text(&content.join("|"))
        ),
        _ => panic!("unknown change {line}"),
    }
}

/// The first query of the Transformation Tool Contest 2018, with the contest's changes: the rows
/// that are printed lead from each expected result to the next one.
#[test]
fn changes_print_the_rows_that_appear_and_disappear() {
    let changes = ["1", "2"].map(follow_changes);
    assert!(changes.iter().all(|changes| *changes >= 4), "{changes:?}");
}

/// Checks a model of the contest. Returns the number of rows that changes print.
fn follow_changes(size: &str) -> usize {
    let data =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../parallel/corebeat-rewrite/tests/data/ttc2018");
    let read = |path: &str| fs::read_to_string(format!("{data}/{path}")).unwrap();
    let steps: Vec<Vec<String>> = (1..=20)
        .map(|step| format!("{size}/change{step:02}.csv"))
        .map(|name| read(&name).lines().map(change).collect())
        .collect();
    let query = "MATCH (p:Post) OPTIONAL MATCH (p)-[:comments*]->(c:Comment)
        OPTIONAL MATCH (c)-[:likedBy]->(u:User)
        RETURN p.id AS id, 10 * count(DISTINCT c) + count(u) AS score, p.timestamp AS at
        ORDER BY score DESC, at DESC LIMIT 3";
    // A change in each line.
    let folder = folder(&[("q1", query), ("changes", &steps.concat().join(";\n"))]);
    let graph = format!("{data}/{size}/initial.xmi");
    let metamodel = format!("{data}/social_network.ecore");
    let graph = ["--graph", &graph, "--metamodel", &metamodel];
    let args = [&["query", "q1", "--changes", "changes", "--json"], &graph[..]].concat();
    let printed = printed(&corebeat(&folder, &args));
    let lines: Vec<Value> =
        printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (expected, mut rows, mut last) = (read("expected-results.csv"), Vec::new(), 0);
    // The first results, and then the changes of each step.
    for (step, count) in (0..).zip(std::iter::once(0).chain(steps.iter().map(Vec::len))) {
        let own: Vec<String> =
            (last + 1..=last + count).map(|line| format!("changes:{line}")).collect();
        last += count;
        for line in &lines {
            let is_own = match line["change"].as_str() {
                Some(change) => own.iter().any(|own| own == change),
                None => step == 0,
            };
            match line["appears"].as_bool().unwrap() {
                _ if !is_own => {}
                true => rows.push(line["row"].clone()),
                false => {
                    let place = rows.iter().position(|row| *row == line["row"]).unwrap();
                    rows.remove(place);
                }
            }
        }
        let key = |row: &Value| (row["score"].as_i64(), row["at"].as_str().map(str::to_owned));
        rows.sort_by_key(|row| std::cmp::Reverse(key(row)));
        let ids: Vec<&str> = rows.iter().map(|row| row["id"].as_str().unwrap()).collect();
        let phase = if step == 0 { "Initial" } else { "Update" };
        let line = format!("\"Q1\";{size};{step};\"{phase}\";\"{}\"", ids.join("|"));
        assert!(expected.lines().any(|expected| expected.trim_end() == line), "{line}");
    }
    lines.len() - 3
}
