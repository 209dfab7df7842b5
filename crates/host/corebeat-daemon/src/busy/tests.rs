use super::*;
use crate::selection::Pattern;
use std::cell::RefCell;

const SECOND: u64 = 1_000_000_000;
const OWN: i32 = 50;

/// Facts by process; a missing fact is that of an ordinary program of user 7.
#[derive(Debug, Default)]
struct Fake {
    users: HashMap<i32, u32>,
    groups: HashMap<i32, &'static str>,
    arguments: RefCell<HashMap<i32, Vec<&'static str>>>,
}

impl Facts for Fake {
    fn user(&self, process: &Listed) -> Option<u32> {
        Some(self.users.get(&process.id.tid).copied().unwrap_or(7))
    }

    fn is_named(&self, process: &Listed, name: &str) -> bool {
        process.name == name
    }

    fn control_groups(&self, process: &Listed) -> Vec<String> {
        self.groups.get(&process.id.tid).iter().map(|&&group| group.to_owned()).collect()
    }

    fn arguments(&self, process: &Listed) -> Vec<String> {
        let arguments = self.arguments.borrow();
        let words = arguments.get(&process.id.tid).into_iter().flatten();
        words.map(|&word| word.to_owned()).collect()
    }

    fn may_change(&self, process: &Listed) -> bool {
        self.user(process) != Some(8)
    }
}

fn id(pid: i32) -> ThreadId {
    ThreadId { tid: pid, start_ticks: 1 }
}

/// A process with a number of seconds of CPU time.
fn process(pid: i32, parent: i32, cpu_s: f64) -> Listed {
    Listed {
        id: id(pid),
        parent,
        name: format!("p{pid}"),
        is_kernel: false,
        cpu_ns: (cpu_s * SECOND as f64) as u64,
        nice: 0,
        is_normal: true,
    }
}

/// A search with its simulated processes: the daemon is a child of a shell.
struct Bench {
    search: Search<Fake>,
    all: Vec<Listed>,
    at_s: u64,
}

impl Bench {
    fn new(selection: Selection, facts: Fake, all: Vec<Listed>) -> Bench {
        let mut all = all;
        all.extend([process(1, 0, 0.0), process(40, 1, 0.0), process(OWN, 40, 0.0)]);
        Bench { search: Search::new(selection, Some(7), OWN, facts), all, at_s: 0 }
    }

    /// Lets one second pass in which these processes use CPU time, and searches.
    fn second(&mut self, used: &[(i32, f64)]) -> Found {
        self.second_beside(used, &[])
    }

    fn second_beside(&mut self, used: &[(i32, f64)], apart: &[i32]) -> Found {
        for &(pid, cpus) in used {
            let found = self.all.iter_mut().find(|p| p.id.tid == pid).unwrap();
            found.cpu_ns += (cpus * SECOND as f64) as u64;
        }
        self.at_s += 1;
        let apart = apart.iter().copied().collect();
        self.search.search(&self.all, &apart, self.at_s * SECOND)
    }
}

fn begins(pids: &[i32]) -> Found {
    Found { begin: pids.iter().map(|&pid| id(pid)).collect(), end: vec![] }
}

/// The programs that begin if these processes exist and each uses the same CPU time.
fn chosen(selection: Selection, facts: Fake, all: Vec<Listed>) -> Vec<i32> {
    let pids: Vec<(i32, f64)> = all.iter().map(|p| (p.id.tid, 1.0)).collect();
    let mut bench = Bench::new(selection, facts, all);
    bench.second(&[]);
    let mut begin: Vec<i32> = bench.second(&pids).begin.iter().map(|id| id.tid).collect();
    begin.sort_unstable();
    begin
}

#[test]
fn program_begins_above_the_threshold_and_is_released_after_quiet_seconds() {
    let all = vec![process(100, 1, 90.0), process(101, 100, 0.0), process(200, 1, 0.0)];
    let mut bench = Bench::new(Selection::default(), Fake::default(), all);
    assert_eq!(bench.second(&[(100, 1.0)]), Found::default(), "the first listing has no span");
    assert_eq!(bench.second(&[(100, 0.6), (200, 0.4)]), begins(&[100]));
    // The CPU time of a descendant counts.
    for _ in 0..30 {
        assert_eq!(bench.second(&[(101, 0.6)]), Found::default());
    }
    for _ in 1..QUIET_NS / SECOND {
        assert_eq!(bench.second(&[(100, 0.4)]), Found::default());
    }
    let end = vec![(id(100), "it uses little CPU time")];
    assert_eq!(bench.second(&[(100, 0.4)]), Found { begin: vec![], end });
    assert_eq!(bench.second(&[(100, 0.6)]), begins(&[100]), "it begins again");
}

#[test]
fn new_process_counts_from_its_start_and_an_ended_one_is_released() {
    let mut bench = Bench::new(Selection::default(), Fake::default(), vec![]);
    bench.second(&[]);
    bench.all.push(process(100, 1, 0.7));
    assert_eq!(bench.second(&[]), begins(&[100]));
    // Another process with the same number.
    bench.all.last_mut().unwrap().id.start_ticks = 2;
    let found = bench.second(&[]);
    assert_eq!(found.end, [(id(100), "it has ended")]);
    assert_eq!(found.begin, [ThreadId { tid: 100, start_ticks: 2 }]);
}

#[test]
fn ancestor_and_descendant_are_one_program_and_the_busiest_programs_come_first() {
    let all = || {
        vec![
            process(100, 1, 0.0),
            process(101, 100, 0.0),
            process(200, 1, 0.0),
            process(300, 1, 0.0),
        ]
    };
    let mut bench = Bench::new(Selection::default(), Fake::default(), all());
    bench.second(&[]);
    let used = [(100, 0.6), (101, 2.0), (200, 0.7), (300, 0.9)];
    assert_eq!(bench.second(&used), begins(&[300, 200, 100]));
    let two = Selection { programs_max: 2, ..Selection::default() };
    let mut bench = Bench::new(two, Fake::default(), all());
    bench.second(&[]);
    assert_eq!(bench.second(&used), begins(&[300, 200]));
    bench.search.refuse(id(300));
    assert_eq!(bench.second(&used), begins(&[100]), "a refused program does not begin again");
}

#[test]
fn untouchable_processes_never_begin() {
    let mut kernel = process(2, 0, 0.0);
    kernel.is_kernel = true;
    let (mut niced, mut batch) = (process(300, 1, 0.0), process(301, 1, 0.0));
    niced.nice = 5;
    batch.is_normal = false;
    let facts = Fake {
        users: [(302, 0), (303, 8)].into(),
        groups: [(304, "/user.slice/session.slice/x.service"), (305, "/init.scope")].into(),
        ..Fake::default()
    };
    let others = (302..=306).map(|pid| process(pid, 1, 0.0));
    let all: Vec<Listed> = [kernel, niced, batch].into_iter().chain(others).collect();
    assert_eq!(chosen(Selection::default(), facts, all), [306]);
    // The daemon and its ancestors.
    let mut bench = Bench::new(Selection::default(), Fake::default(), vec![]);
    bench.second(&[]);
    assert_eq!(bench.second(&[(1, 1.0), (40, 1.0), (OWN, 1.0)]), Found::default());
    // In the scope of all users, those that cannot be changed.
    let facts = Fake { users: [(100, 8), (200, 9)].into(), ..Fake::default() };
    let mut bench =
        Bench::new(Selection::default(), facts, vec![process(100, 1, 0.0), process(200, 1, 0.0)]);
    bench.search.user = None;
    bench.second(&[]);
    assert_eq!(bench.second(&[(100, 1.0), (200, 1.0)]), begins(&[200]));
}

#[test]
fn patterns_select_by_name_group_and_unit() {
    let pattern = |text: &str| text.parse::<Pattern>().unwrap();
    let selection = |include: &[&str], exclude: &[&str]| Selection {
        include: include.iter().map(|text| pattern(text)).collect(),
        exclude: exclude.iter().map(|text| pattern(text)).collect(),
        ..Selection::default()
    };
    let chosen = |include: &[&str], exclude: &[&str]| {
        let groups = [
            (100, "/system.slice/a.service"),
            (200, "/system.slice-b/c.scope"),
            (300, "/user.slice/session.slice/d.service"),
        ];
        let facts = Fake { groups: groups.into(), ..Fake::default() };
        let all = [(100, 1), (200, 1), (300, 1), (301, 300)];
        let all = all.map(|(pid, parent)| process(pid, parent, 0.0)).to_vec();
        super::tests::chosen(selection(include, exclude), facts, all)
    };
    // 301 is the descendant of a process of the session, and its own program.
    assert_eq!(chosen(&[], &[]), [100, 200, 301]);
    assert_eq!(chosen(&["p100"], &[]), [100]);
    assert_eq!(chosen(&["/system.slice/"], &[]), [100]);
    assert_eq!(chosen(&["/"], &[]), [100, 200, 300]);
    assert_eq!(chosen(&["c.scope", "a.service"], &["p100"]), [200]);
    assert_eq!(chosen(&["d.service"], &[]), [300], "the user names the process of the session");
    assert_eq!(chosen(&[], &["system.slice", "c.scope"]), [301]);
    assert!(chosen(&["d.service"], &["p301"]).is_empty(), "a process of the program is excluded");
}

#[test]
fn program_is_released_when_an_excluded_process_starts_in_it() {
    let exclude = vec![Pattern::Name("p101".into())];
    let selection = Selection { exclude, ..Selection::default() };
    let mut bench = Bench::new(selection, Fake::default(), vec![process(100, 1, 0.0)]);
    bench.second(&[]);
    assert_eq!(bench.second(&[(100, 1.0)]), begins(&[100]));
    bench.all.push(process(101, 100, 0.0));
    let end = vec![(id(100), "one of its processes is excluded")];
    assert_eq!(bench.second(&[(100, 1.0)]), Found { begin: vec![], end });
    assert_eq!(bench.second(&[(100, 1.0)]), Found::default());
}

#[test]
fn programs_of_other_corebeats_and_of_clients_are_left_alone() {
    let mut corebeat = process(500, 1, 0.0);
    corebeat.name = COREBEAT.into();
    let all = vec![
        corebeat,
        process(501, 500, 0.0),
        process(100, 1, 0.0),
        process(101, 100, 0.0),
        process(200, 1, 0.0),
    ];
    let used = [(501, 1.0), (101, 1.0), (200, 1.0)];
    let bench = |arguments: &[&'static str], user| {
        let facts = Fake { users: [(500, user)].into(), ..Fake::default() };
        facts.arguments.borrow_mut().insert(500, arguments.to_vec());
        let mut bench = Bench::new(Selection::default(), facts, all.clone());
        bench.second(&[]);
        bench
    };
    let begin = |arguments: &[&'static str], user| {
        let begin = bench(arguments, user).second(&used).begin;
        begin.iter().map(|id| id.tid).collect::<BTreeSet<i32>>()
    };
    assert_eq!(begin(&["corebeat", "workload", "lu"], 7), [501, 101, 200].into());
    assert_eq!(begin(&["corebeat", "run", "--", "x", "-p", "200"], 7), [101, 200].into());
    for attach in [["-p", "p100"], ["--pid", "100"]] {
        let arguments = ["corebeat", "run", "--policy", "none", attach[0], attach[1]];
        assert_eq!(begin(&arguments, 7), [200].into(), "with its descendants");
    }
    assert_eq!(begin(&["corebeat", "run", "-p200", "--pid=100"], 0), [].into());
    assert_eq!(begin(&["corebeat", "run", "-p", "200"], 9), [101, 200].into(), "another user");

    let mut bench = bench(&["corebeat", "top"], 7);
    assert_eq!(bench.second_beside(&used, &[200]), begins(&[501, 101]));
    bench.search.facts.arguments.borrow_mut().insert(500, vec!["corebeat", "run", "-p", "101"]);
    let end = |pid| (id(pid), "it is served in another way");
    assert_eq!(bench.second_beside(&[], &[200]).end, [end(101), end(501)]);
    assert_eq!(bench.second_beside(&[(200, 1.0)], &[]), begins(&[200]));
    assert_eq!(bench.second_beside(&[], &[200]).end, [end(200)]);
}
