//! Networks on several ranks of MPI: each has the output that it has on one node, and a failure of
//! a rank ends the run with a line that names it.
//!
//! The networks follow the examples of Grelck, Julku, Penczek, *Distributed S-Net: Cluster and Grid
//! Computing without the Hassle*, 2012. Without `mpirun` or a C compiler, the tests pass with a
//! line that states what is missing.
#![cfg(feature = "mpi")]

use corebeat_test_group::{MPIRUN_LATE, MPIRUN_MAX_S, mpirun};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const COREBEAT: &str = env!("CARGO_BIN_EXE_corebeat");

/// A folder with the boxes as a library.
struct Place {
    folder: TempDir,
}

/// Prepares the tests, once. Returns what is missing otherwise.
fn place() -> Result<&'static Place, &'static str> {
    static PLACE: OnceLock<Result<Place, String>> = OnceLock::new();
    let place = PLACE.get_or_init(|| {
        mpirun(1)?;
        let folder = TempDir::new().map_err(|e| e.to_string())?;
        let at = |name| folder.path().join(name);
        let header = Command::new(COREBEAT).args(["net", "header"]).arg(folder.path()).status();
        assert!(header.unwrap().success());
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mpi/boxes.c");
        let cc = std::env::var("CC").unwrap_or("cc".into());
        let built = Command::new(&cc)
            .args(["-shared", "-fPIC", "-O1", "-I"])
            .arg(folder.path())
            .arg(source)
            .arg("-o")
            .arg(at("boxes.so"))
            .status()
            .map_err(|e| format!("{cc} does not start ({e}): install a C compiler"))?;
        assert!(built.success(), "the boxes compile");
        Ok(Place { folder })
    });
    place.as_ref().map_err(String::as_str)
}

/// Boxes of all programs.
const BOXES: &str = "
    box plus ((x) -> (x)); box twice ((x) -> (x)); box left ((a) -> (x)); box right ((b) -> (x));
    box down ((x, <n>) -> (x, <n>)); box fork2 ((x, <n>) -> (x, <n>)); box join ((a, b) -> (x));
    box grow ((x) -> (big)); box pass ((<i>) -> (<i>)); box sum ((big) -> (x));
    box crash ((x) -> (x)); box die ((x) -> (x)); box point ((x) -> (p)); box take ((p) -> (x));";

/// Counts down in stages, as a filter and a box.
const DOWN: &str = "down";

impl Place {
    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// Writes a program with only the boxes that it uses, and its input.
    fn files(&self, name: &str, net: &str, input: &[String]) -> (PathBuf, PathBuf) {
        let declared = BOXES.split_inclusive(';').filter(|declaration| {
            let name = declaration.trim().trim_start_matches("box ").split(' ').next();
            name.is_some_and(|name| words(net).any(|word| word == name))
        });
        let boxes: String = declared.collect();
        let program = format!("net {name} {{ {boxes} }} connect {net};");
        let program = self.write(&format!("{name}.snet"), &program);
        (program, self.write(&format!("{name}.json"), &(input.join("\n") + "\n")))
    }

    /// Arguments of `corebeat net run` for a program.
    fn run_of(&self, (program, input): &(PathBuf, PathBuf)) -> Vec<String> {
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let boxes = text(&self.folder.path().join("boxes.so"));
        let run = [COREBEAT, "net", "run"].map(str::to_owned);
        let files = [text(program), "-b".into(), boxes, "-i".into(), text(input)];
        [&run[..], &files, &["-w".into(), "2".into()]].concat()
    }

    fn mpirun(&self, ranks: usize, run: &[String]) -> Output {
        let mut command = mpirun(ranks).unwrap();
        command.args(run).stdin(Stdio::null()).env("TMPDIR", self.folder.path());
        command.output().unwrap()
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
}

fn lines(output: &Output) -> Vec<String> {
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Processes of this user that have the folder in their command line.
fn remaining(folder: &Path) -> Vec<String> {
    let folder = folder.to_str().unwrap();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains(folder)).collect()
}

/// Runs a program alone and on 2 and 4 ranks, and compares the outputs.
fn compare(name: &str, net: &str, input: &[String], is_ordered: bool, more: &[&str]) {
    compare_on(&[2, 4], name, net, input, is_ordered, more);
}

/// Runs a program alone and on these numbers of ranks, and compares the outputs.
fn compare_on(
    ranks: &[usize],
    name: &str,
    net: &str,
    input: &[String],
    is_ordered: bool,
    more: &[&str],
) {
    let place = match place() {
        Ok(place) => place,
        Err(missing) => return println!("skipped: {missing}"),
    };
    let files = place.files(name, net, input);
    compare_files(place, ranks, name, &files, is_ordered, more);
}

/// Runs a program in a file alone and on these numbers of ranks, and compares the outputs.
fn compare_files(
    place: &Place,
    ranks: &[usize],
    name: &str,
    files: &(PathBuf, PathBuf),
    is_ordered: bool,
    more: &[&str],
) {
    let mut run = place.run_of(files);
    let mut alone = Command::new("timeout");
    alone.arg(MPIRUN_MAX_S.to_string()).args(&run).stdin(Stdio::null());
    let alone = alone.output().unwrap();
    assert!(alone.status.success(), "{}", errors(&alone));
    run.extend(more.iter().map(|option| (*option).to_owned()));
    let expected = lines(&alone);
    assert!(!expected.is_empty());
    for &ranks in ranks {
        let output = place.mpirun(ranks, &run);
        assert!(output.status.success(), "{name} on {ranks} ranks: {}", errors(&output));
        let (mut are, mut should) = (lines(&output), expected.clone());
        if !is_ordered {
            are.sort();
            should.sort();
        }
        assert_eq!(are, should, "{name} on {ranks} ranks");
    }
}

fn x(count: usize) -> Vec<String> {
    (0..count).map(|i| format!(r#"{{"x":{{"int":{i}}}}}"#)).collect()
}

fn x_and_n(count: usize) -> Vec<String> {
    let line = |i| format!(r#"{{"x":{{"int":{i}}},"n":{}}}"#, 1 + i % 5);
    (0..count).map(line).collect()
}

fn x_and_node(count: usize) -> Vec<String> {
    (0..count).map(|i| format!(r#"{{"x":{{"int":{i}}},"node":{}}}"#, i % 6)).collect()
}

fn a_or_b(count: usize) -> Vec<String> {
    let line = |i| format!(r#"{{"{}":{{"int":{i}}}}}"#, if i % 3 == 0 { "a" } else { "b" });
    (0..count).map(line).collect()
}

#[test]
fn parallel_parts_on_ranks() {
    compare("parallel", "left @ 1 | right @ 2", &a_or_b(300), false, &[]);
    compare("ordered_parallel", "left @ 1 || right @ 2", &a_or_b(300), true, &[]);
}

#[test]
fn serial_parts_on_ranks() {
    // The last number wraps around. Parts in series pass records on from rank to rank.
    let net = "plus @ 1 .. twice @ 2 .. plus @ 3 .. twice .. plus @ 1002";
    compare("serial", net, &x(1000), true, &[]);
    compare("small", net, &x(200), true, &["--capacity", "1"]);
}

#[test]
fn splits_by_the_number_of_the_rank() {
    compare("split", "(plus .. twice) !@ <node>", &x_and_node(600), false, &[]);
    compare("ordered_split", "(plus .. twice) !!@ <node>", &x_and_node(300), true, &[]);
}

#[test]
fn stars_whose_stages_are_on_ranks() {
    let exit = "{<n>} if <n <= 0>";
    compare("star", &format!("({DOWN} @ 1) * {exit}"), &x_and_n(200), false, &[]);
    compare("whole_star", &format!("({DOWN} * {exit}) @ 1"), &x_and_n(200), false, &[]);
    compare("ordered_star", &format!("(fork2 @ 1) ** {exit}"), &x_and_n(40), true, &[]);
    // Each stage is on the rank of the countdown, so that a record alternates between ranks.
    let blink = format!("({DOWN} !@ <n>) * {exit}");
    compare("blinkstar", &blink, &x_and_n(200), false, &[]);
}

#[test]
fn nested_parts_on_ranks() {
    let net = "((plus @ 1 .. twice) @ 2 .. ((plus .. plus @ 3) !!@ <node>) @ 1) @ 3";
    compare("nested", net, &x_and_node(200), true, &[]);
}

#[test]
fn whole_network_on_eight_ranks() {
    let exit = "{<n>} if <n <= 0>";
    // Each rank has parts: a chain, a split over all ranks, and a star that alternates between
    // them.
    let net = format!(
        "plus @ 1 .. twice @ 2 .. (plus .. twice @ 7) !@ <node> .. (({DOWN} !@ <n>) * {exit}) @ 5 \
         .. ((plus @ 3 .. twice @ 6) !@ <node>) @ 4"
    );
    let line = |i| format!(r#"{{"x":{{"int":{i}}},"n":{},"node":{}}}"#, 1 + i % 8, i % 11);
    let input: Vec<String> = (0..300).map(line).collect();
    compare_on(&[8], "eight", &net, &input, false, &[]);
    compare_on(&[8], "eight_small", &net, &input, false, &["--capacity", "1", "--eager", "0"]);
}

/// Boxes in three languages, each on its own rank. The text has another length for each record.
const LANGUAGES: &str = r#"
net languages {
    box plus ((x) -> (x));
    box twice ((x) -> (x, <n>)) {<<< C++ |
        extern "C" void *twice(void *hnd, c4snet_data_t *x) {
            int n = *static_cast<int *>(C4SNetGetData(x));
            void *data;
            c4snet_data_t *y = C4SNetAlloc(CTYPE_int, 1, &data);
            *static_cast<int *>(data) = 2 * n;
            C4SNetFree(x);
            C4SNetOut(hnd, 1, y, n % 3);
            return hnd;
        }
    >>>};
    box lines ((x, <n>) -> (line)) {<<< Python |
def lines(x, n):
    for i in range(n + 1):
        snetout(1, "%d of %d: " % (i, n) + "x" * x)
    >>>};
} connect plus @ 1 .. twice @ 2 .. lines @ 3;"#;

#[test]
fn boxes_in_c_cpp_and_python_on_ranks() {
    let place = match place() {
        Ok(place) => place,
        Err(missing) => return println!("skipped: {missing}"),
    };
    let program = place.write("languages.snet", LANGUAGES);
    let files = (program, place.write("languages.json", &(x(40).join("\n") + "\n")));
    compare_files(place, &[2, 4], "languages", &files, true, &["--eager", "0"]);
}

#[test]
fn feedback_over_ranks() {
    let net = r"(fork2 @ 1 .. [{x, <n>} -> {x, <n>}]) \ {<n>} if <n > 0>";
    compare("feedback", net, &x_and_n(60), false, &["--capacity", "1"]);
}

#[test]
fn synchrocells_over_ranks() {
    let net = "(([| {a}, {b} |] .. (join @ 1 | [])) * {x}) .. plus @ 2";
    let input = (0..40).map(|i| format!(r#"{{"{}":{{"int":1}}}}"#, ["a", "b"][i % 2]));
    compare("cells", net, &input.collect::<Vec<_>>(), false, &[]);
}

#[test]
fn fields_move_on_demand_and_at_once() {
    let net = "grow @ 1 .. [{} -> {<i = 0>}] .. pass @ 2 .. (sum @ 3)";
    for (name, eager) in [("lazy", "1000"), ("eager", "10000000")] {
        compare(name, net, &x(60), true, &["--eager", eager]);
    }
    // The data of a field is needed only at the output.
    compare("output", "grow @ 1", &x(5), true, &[]);
}

#[test]
fn profile_has_the_tasks_and_the_traffic_of_all_ranks() {
    let place = match place() {
        Ok(place) => place,
        Err(missing) => return println!("skipped: {missing}"),
    };
    let run = place.run_of(&place.files("profiled", "plus @ 1 .. twice @ 2 .. plus", &x(300)));
    let costs = place.folder.path().join("costs");
    let profile = |ranks: usize, more: &[&str]| {
        let mut run = run.clone();
        run[2] = "profile".into();
        run.extend(more.iter().map(|argument| (*argument).to_owned()));
        let output = place.mpirun(ranks, &run);
        assert!(output.status.success(), "{}", errors(&output));
        output
    };
    let output = profile(3, &["--json", "--save", costs.to_str().unwrap()]);
    let printed = String::from_utf8_lossy(&output.stdout);
    let json: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert_eq!((json["records_in"].as_u64(), json["records_out"].as_u64()), (Some(300), Some(300)));
    let rows = |list: &str| json[list].as_array().unwrap().clone();
    // The box on rank 0 has the name of another one on rank 1.
    for (rank, name) in [(0, "plus"), (1, "plus"), (2, "twice")] {
        let is_wanted = |row: &&serde_json::Value| row["rank"] == rank && row["name"] == name;
        let found = rows("entities").iter().find(is_wanted).map(|row| row["tasks"].as_u64());
        assert_eq!(found, Some(Some(1)), "{name} on rank {rank}: {printed}");
    }
    let of_rank = |list: &str| rows(list).iter().map(|row| row["rank"].clone()).collect::<Vec<_>>();
    assert_eq!(of_rank("workers"), [0, 0, 1, 1, 2, 2]);
    assert_eq!(of_rank("placement"), [0, 0, 1, 1, 2, 2]);
    assert!(rows("workers").iter().all(|row| row["waiting_ns"].as_u64() > Some(0)), "{printed}");
    for row in rows("traffic") {
        let (from, to) = (row["from"].as_u64().unwrap(), row["to"].as_u64().unwrap());
        let records = if (from + 1) % 3 == to { 300 } else { 0 };
        assert_eq!(row["records"], records, "{row}");
        // A record has at least its number and its field.
        assert!(row["bytes"].as_u64() >= Some(records * 16), "{row}");
        assert!(row["messages"].as_u64() >= Some(1), "{row}");
    }
    assert_eq!(rows("traffic").len(), 6);
    assert!(fs::read_to_string(&costs).unwrap().contains("\"twice\""));
    let text = lines(&profile(3, &[]));
    let has = |begin: &str| text.iter().any(|line| line.starts_with(begin));
    assert!(has("rank  entity") && has("   2  twice") && has("from    to"), "{text:?}");

    let mut live = run.clone();
    live.splice(2..3, ["draw".into(), "--live".into()]);
    let output = place.mpirun(2, &live);
    assert_eq!(output.status.code(), Some(2), "{}", errors(&output));
    assert!(errors(&output).contains("does not run on several ranks"), "{}", errors(&output));
}

/// Runs a program that fails. Returns its messages.
fn failing(name: &str, net: &str, ranks: usize) -> Option<(Output, String)> {
    let place = match place() {
        Ok(place) => place,
        Err(missing) => {
            println!("skipped: {missing}");
            return None;
        }
    };
    let files = place.files(name, net, &x(50));
    let output = place.mpirun(ranks, &place.run_of(&files));
    assert!(!output.status.success());
    assert_ne!(output.status.code(), Some(MPIRUN_LATE), "{name} hangs: {}", errors(&output));
    let program = files.0.to_str().unwrap();
    // Processes that were killed end after the end of `mpirun`.
    let until = Instant::now() + Duration::from_secs(60);
    while !remaining(Path::new(program)).is_empty() && Instant::now() < until {
        std::thread::yield_now();
    }
    assert_eq!(remaining(Path::new(program)), Vec::<String>::new(), "processes remain");
    let messages = errors(&output);
    Some((output, messages))
}

#[test]
fn crash_of_a_box_names_its_rank_and_ends_all_ranks() {
    let Some((_, messages)) = failing("crashing", "plus @ 1 .. crash @ 3 .. plus @ 2", 4) else {
        return;
    };
    let line = messages.lines().find(|line| line.contains("crashed"));
    let line = line.unwrap_or_else(|| panic!("{messages}"));
    assert!(line.contains("rank 3") && line.contains("crash"), "{line}");
}

#[test]
fn death_of_a_rank_ends_all_ranks() {
    let dying = failing("dying", "plus @ 1 .. die @ 2 .. plus", 3);
    let Some((output, messages)) = dying else { return };
    // Open MPI names the rank. MPICH reports the process, on standard output.
    let is_of_mpich = String::from_utf8_lossy(&output.stdout).contains("BAD TERMINATION");
    assert!(is_of_mpich || messages.contains("rank 2"), "{messages}");
}

#[test]
fn record_that_cannot_move_is_reported_with_its_rank() {
    let net = "plus @ 1 .. point @ 1 .. take @ 2";
    let Some((output, messages)) = failing("pointing", net, 3) else { return };
    assert_eq!(output.status.code(), Some(1));
    let line = messages.lines().find(|line| line.contains("is a pointer"));
    let line = line.unwrap_or_else(|| panic!("{messages}"));
    assert!(line.starts_with("corebeat: rank 1: the way to rank 2: p is a pointer"), "{line}");
}

#[test]
fn ranks_with_different_programs_do_not_run() {
    let place = match place() {
        Ok(place) => place,
        Err(missing) => return println!("skipped: {missing}"),
    };
    let [one, other] = ["plus @ 1", "twice @ 1"]
        .map(|net| place.run_of(&place.files(&format!("different_{}", &net[..4]), net, &x(3))));
    let both = [&one[..], &[":".into(), "-n".into(), "1".into()], &other[..]].concat();
    let output = place.mpirun(1, &both);
    assert_eq!(output.status.code(), Some(1), "{}", errors(&output));
    let line = "corebeat: rank 1: has another program";
    assert!(errors(&output).lines().any(|l| l.starts_with(line)), "{}", errors(&output));
    assert_eq!(lines(&output), Vec::<String>::new());
}

#[test]
fn ranks_with_different_options_do_not_run() {
    let place = match place() {
        Ok(place) => place,
        Err(missing) => return println!("skipped: {missing}"),
    };
    let run = place.run_of(&place.files("options", "plus @ 1", &x(3)));
    let other = ["--capacity", "1"].map(str::to_owned);
    let both = [&run[..], &[":".into(), "-n".into(), "1".into()], &run[..], &other].concat();
    let output = place.mpirun(1, &both);
    assert_eq!(output.status.code(), Some(1), "{}", errors(&output));
    let line = "corebeat: rank 1: has another value of --capacity than rank 0";
    assert!(errors(&output).lines().any(|l| l.starts_with(line)), "{}", errors(&output));
}

#[test]
fn program_from_standard_input_is_refused() {
    let place = match place() {
        Ok(place) => place,
        Err(missing) => return println!("skipped: {missing}"),
    };
    let mut run = place.run_of(&place.files("piped", "plus @ 1", &x(3)));
    let program = run.iter_mut().find(|argument| argument.ends_with(".snet"));
    *program.unwrap() = "-".into();
    let output = place.mpirun(2, &run);
    assert_eq!(output.status.code(), Some(2), "{}", errors(&output));
    let lines = errors(&output);
    assert_eq!(lines.lines().filter(|line| line.contains("name a file")).count(), 1, "{lines}");
}

#[test]
fn mistake_in_a_program_is_reported_once() {
    let place = match place() {
        Ok(place) => place,
        Err(missing) => return println!("skipped: {missing}"),
    };
    let output = place.mpirun(3, &place.run_of(&place.files("wrong", "plus .. unknown", &x(1))));
    assert_eq!(output.status.code(), Some(1), "{}", errors(&output));
    let lines = errors(&output);
    assert_eq!(lines.lines().filter(|line| line.contains("1 error")).count(), 1, "{lines}");
}
