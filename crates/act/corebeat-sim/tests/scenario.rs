//! Scenarios as text: the shipped ones, and invalid ones.

use corebeat_machine::{Action, Clock, Machine, ProgramId};
use corebeat_sim::{Scenario, SimMachine};

const SHIPPED: [(&str, &str); 8] = [
    ("backstabbing", include_str!("../scenarios/backstabbing.toml")),
    ("barrier", include_str!("../scenarios/barrier.toml")),
    ("ferret", include_str!("../scenarios/ferret.toml")),
    ("goals", include_str!("../scenarios/goals.toml")),
    ("machines", include_str!("../scenarios/machines.toml")),
    ("shuffling", include_str!("../scenarios/shuffling.toml")),
    ("tranquil", include_str!("../scenarios/tranquil.toml")),
    ("two", include_str!("../scenarios/two.toml")),
];

#[test]
fn shipped_scenarios_run() {
    for (name, text) in SHIPPED {
        let scenario: Scenario = text.parse().unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut machine = SimMachine::new(&scenario, 1).unwrap_or_else(|e| panic!("{name}: {e}"));
        machine.record();
        machine.clock().wait_until(50_000_000);
        assert_eq!(machine.deadlock(), None, "{name}");
        let busy: u64 = machine.busy_ns().iter().sum();
        assert!(busy > 50_000_000, "{name}");
        assert!(!machine.observe().unwrap().programs.is_empty());
        assert!(machine.timeline().svg().ends_with("</svg>\n"));
    }
}

/// The error of a scenario with these keys of the machine and of the program.
fn error(machine: &str, program: &str) -> String {
    let text =
        format!("duration_s = 1.0\n[machine]\n{machine}\n[[programs]]\nname = \"p\"\n{program}\n");
    let made =
        text.parse::<Scenario>().and_then(|scenario| SimMachine::new(&scenario, 1).map(|_| ()));
    let line = made.expect_err(&text).to_string();
    assert_eq!(line.lines().count(), 1, "{line}");
    line
}

fn steps(steps: &str) -> String {
    format!("[[programs.teams]]\nsteps = [{steps}]")
}

fn valid_team() -> String {
    steps("{ compute = { us = 1 } }")
}

/// Checks that each error contains its part. Rows have the keys of the machine and of the program.
fn check(rows: &[(&str, String, &str)]) {
    for (machine, program, part) in rows {
        let error = error(machine, program);
        assert!(error.contains(part), "{error}\n{part}");
    }
}

#[test]
fn text_errors_name_line_and_column() {
    let fine = valid_team();
    check(&[
        ("cores = 0", fine.clone(), "machine: cores is 0; write 1 or more"),
        (
            "cores = -1",
            fine.clone(),
            "line 3, column 9: invalid value: integer `-1`, expected a whole number, 0 or above",
        ),
        (
            "cores = \"1\"",
            fine.clone(),
            "invalid type: string \"1\", expected a whole number, 0 or above",
        ),
        (
            "cores = 1\nfill_ns = 1e300",
            fine.clone(),
            "invalid type: floating point `1e300`, expected a whole number",
        ),
        (
            "cores = 1",
            format!("nice = 1.5\n{fine}"),
            "invalid type: floating point `1.5`, expected a whole number",
        ),
        (
            "cores = 1",
            format!("start_ms = true\n{fine}"),
            "invalid type: boolean `true`, expected a number",
        ),
        (
            "cores = 1",
            format!("{fine}\nthreads = 99999999999"),
            "99999999999 threads; write a number from 0 to 100000",
        ),
        ("cores = 1", "teams = 1".into(), "invalid type: integer `1`, expected a list in brackets"),
        (
            "cores = 1",
            steps("{ compute = 1 }"),
            "invalid type: integer `1`, expected a table, such as { key = value }",
        ),
        ("core = 1", fine.clone(), "line 3, column 1: unknown field `core`, expected one of"),
        (
            "cores = 1\nscheduler = \"cfs\"",
            fine.clone(),
            "line 4, column 13: unknown variant `cfs`",
        ),
        ("cores = 1\ntick_us = -4", fine.clone(), "machine: tick_us is -4"),
        ("cores = 1\nbalance_us = -4", fine.clone(), "machine: balance_us is -4"),
    ]);
}

#[test]
fn program_errors_name_the_program() {
    let fine = valid_team();
    check(&[
        (
            "cores = 1",
            format!("start_ms = -1\n{fine}"),
            "program 'p': start_ms is -1: write a time from 0, up to 1000000 s",
        ),
        (
            "cores = 1",
            format!("start_ms = 1e300\n{fine}"),
            "program 'p': start_ms is 1e300: write a time from 0, up to",
        ),
        (
            "cores = 1",
            format!("spin_us = nan\n{fine}"),
            "program 'p': spin_us is nan: write a time from 0, or inf",
        ),
        (
            "cores = 1",
            format!("goal = {{ min = 110, max = 90 }}\n{fine}"),
            "program 'p': goal is from 110 to 90",
        ),
        ("cores = 1", format!("goal = {{ min = -1 }}\n{fine}"), "program 'p': goal is from -1"),
        (
            "cores = 1",
            format!("goal = {{ max = inf }}\n{fine}"),
            "program 'p': goal is from 0 to inf",
        ),
        (
            "cores = 1",
            format!("{fine}\n[[programs]]\nname = \"a\\nb\"\n{fine}"),
            "name has a control character",
        ),
        (
            "cores = 1",
            format!("cpus = \"4-7\"\n{fine}"),
            "program 'p': cpus has none of the machine's CPUs",
        ),
    ]);
}

#[test]
fn step_errors_name_the_step() {
    let fine = valid_team();
    check(&[
        (
            "cores = 1",
            steps("{ compute = { us = -1 } }"),
            "program 'p', team 1, step 1: us is -1: write a time above 0, up to",
        ),
        (
            "cores = 1",
            steps("{ compute = { us = inf } }"),
            "program 'p', team 1, step 1: us is inf: write a time above 0, up to",
        ),
        (
            "cores = 1",
            steps("{ compute = { us = 1, shared = 1e300 } }"),
            "shared is 1e300: write a share from 0 to 1",
        ),
        ("cores = 1", steps("{ compute = { ms = 1 } }"), "line 7, column 24: unknown field `ms`"),
        (
            "cores = 1",
            steps("{ dance = 1 }"),
            "line 7, column 12: unknown variant `dance`, expected one of",
        ),
        ("cores = 1", steps("{ compute = "), "line 7, column"),
        (
            "cores = 1",
            steps(&format!("{}{}", "{ repeat = { steps = [".repeat(99), "] } }".repeat(99))),
            "steps are nested too deeply; write fewer levels",
        ),
        ("cores = 1", "teams = []".into(), "program 'p': no team"),
        (
            "cores = 1",
            format!("cpus = \"0\"\nset = \"s\"\n{fine}\n[[sets]]\nname = \"s\"\ncpus = 1"),
            "program 'p': has cpus and a set",
        ),
        (
            "cores = 1",
            format!("{fine}\n[[sets]]\nname = \"a\\nb\"\ncpus = 1"),
            "name has a control character",
        ),
        ("cores = 1", "cpus = \"x\"".into(), "'x' is not a list of CPUs"),
        (
            "cores = 1",
            steps(
                "{ lock = { name = \"a\", steps = [{ lock = { name = \"b\", steps = [] } }] } }, \
                 { lock = { name = \"b\", steps = [{ lock = { name = \"a\", steps = [] } }] } }",
            ),
            "program 'p': cyclic locks: 'a' before 'b' before 'a'",
        ),
    ]);
}

#[test]
fn invalid_text_never_panics() {
    for text in [
        "",
        "x",
        "[machine]",
        "duration_s = nan",
        "[[programs]]\n",
        "\u{feff}é = \"",
        "[machine]\ncores = 99999999999",
    ] {
        let made =
            text.parse::<Scenario>().and_then(|scenario| SimMachine::new(&scenario, 1).map(|_| ()));
        let line = made.unwrap_err().to_string();
        assert_eq!(line.lines().count(), 1, "{text}: {line}");
    }
}

#[test]
fn extreme_numbers_never_panic() {
    let machine = [
        "slice_us",
        "tick_us",
        "balance_us",
        "switch_ns",
        "wake_ns",
        "migrate_ns",
        "line_ns",
        "core_cache_kib",
        "cache_kib",
        "core_fill_ns",
        "fill_ns",
        "controller_threads",
    ];
    let program = ["start_ms", "nice", "memory_mib", "spin_us", "queue_items"];
    let team = ["threads", "footprint_kib"];
    let steps = |us: &str, times: &str| {
        format!(
            "steps = [{{ repeat = {{ times = {times}, steps = [\
             {{ compute = {{ us = {us}, memory = 0.5 }} }}, {{ io = {{ us = {us} }} }}, \
             {{ barrier = \"b\" }}] }} }}]"
        )
    };
    let run = |machine: String, program: String, team: String, steps: String| {
        let text = format!(
            "[machine]\npackages = 2\n{machine}\n[[programs]]\nname = \"p\"\n{program}\n\
             [[programs.teams]]\n{team}\n{steps}"
        );
        let made = text.parse::<Scenario>().and_then(|scenario| SimMachine::new(&scenario, 1));
        if let Ok(mut machine) = made {
            let mut clock = machine.clock();
            for ms in 1..5 {
                clock.wait_until(ms * 1_000_000);
                machine.observe().unwrap();
            }
        }
    };
    let none = String::new;
    for value in
        ["0", "1", "-1", "1e-9", "1e300", "inf", "nan", "4294967295", "9223372036854775807"]
    {
        for key in machine {
            run(format!("{key} = {value}"), none(), none(), steps("10", "100"));
        }
        for key in program {
            run(none(), format!("{key} = {value}"), none(), steps("10", "100"));
        }
        for key in team {
            run(none(), none(), format!("{key} = {value}"), steps("10", "100"));
        }
        run(none(), none(), none(), steps(value, "100"));
        run(none(), none(), none(), steps("10", value));
    }
}

#[test]
fn huge_and_slow_caches_never_panic() {
    let most = "4294967296";
    let text = format!(
        "duration_s = 0.5\n[machine]\npackages = 2\ncache_kib = {most}\ncore_cache_kib = {most}\n\
         fill_ns = 1000000000\ncore_fill_ns = 1000000000\n[[programs]]\nname = \"p\"\n\
         [[programs.teams]]\nthreads = 5\nfootprint_kib = {most}\n\
         steps = [{{ repeat = {{ times = 100000, steps = [\
         {{ compute = {{ us = 100 }} }}, {{ io = {{ us = 10 }} }}] }} }}]"
    );
    let mut machine = SimMachine::new(&text.parse().unwrap(), 1).unwrap();
    machine.run();
    assert!(machine.is_over());
}

#[test]
fn deadlock_is_detected_during_a_page_migration() {
    let text = "[machine]\npackages = 2\n[[programs]]\nname = \"p\"\nmemory_mib = 4000000000\n\
                [[programs.teams]]\nsteps = [{ compute = { us = 1000 } }, { barrier = \"b\" }]\n\
                [[programs.teams]]\nsteps = [{ barrier = \"b\" }, { barrier = \"b\" }]";
    let mut machine = SimMachine::new(&text.parse().unwrap(), 1).unwrap();
    machine.clock().wait_until(500_000);
    machine.act(&Action::SpreadPages { program: ProgramId(0), spread: true }).unwrap();
    machine.clock().wait_until(10_000_000);
    assert!(
        machine.deadlock().is_some_and(|report| report.contains("barrier 'b'")),
        "{:?}",
        machine.deadlock()
    );
}

#[test]
fn endless_simulation_ends_at_the_time_limit() {
    let text = "[machine]\nbalance_us = 1e9\n[[programs]]\nname = \"p\"\n[[programs.teams]]\n\
                steps = [{ repeat = { times = 9223372036854775807, \
                steps = [{ io = { us = 1e12 } }] } }]";
    let mut machine = SimMachine::new(&text.parse().unwrap(), 1).unwrap();
    machine.run();
    assert!(machine.is_over() && machine.outcomes()[0].end_ns.is_none());
}
