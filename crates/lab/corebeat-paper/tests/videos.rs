//! The patterns of Imre and Mezei on small models of videos.

use corebeat_paper::videos::{Choice, PATTERNS, Pattern, Videos};
use corebeat_rewrite::{Apply, Control, Mode, Options, Value, query, run};

/// The largest distance between two nodes, along edges of both directions.
fn diameter(pattern: &Pattern) -> usize {
    let nodes = pattern.nodes();
    let farthest = |from: &&str| {
        let (mut reached, mut steps) = (vec![*from], 0);
        while reached.len() < nodes.len() {
            let next = pattern.edges.iter().flat_map(|(a, b)| [(*a, *b), (*b, *a)]);
            let next = next.filter(|(a, b)| reached.contains(a) && !reached.contains(b));
            let next: Vec<&str> = next.map(|(_, b)| b).collect();
            reached.extend(next);
            reached.sort_unstable();
            reached.dedup();
            steps += 1;
        }
        steps
    };
    nodes.iter().map(farthest).max().unwrap()
}

#[test]
fn patterns_have_the_papers_sizes_and_diameters() {
    let sizes = PATTERNS.each_ref().map(|pattern| (pattern.nodes().len(), diameter(pattern)));
    assert_eq!(sizes, [(6, 3), (7, 5), (7, 5)]);
}

#[test]
fn counts_equal_those_of_loops_by_hand() {
    for (choice, related) in [(Choice::Even, 5), (Choice::Skewed, 4)] {
        let videos = Videos::new(120, related, choice, 1);
        for pattern in &PATTERNS {
            let expected = videos.count(pattern);
            assert!(expected > 100, "{expected} {pattern:?} {choice:?}");
            for threads in [1, 2] {
                let mut graph = videos.graph().unwrap();
                let rule = pattern.counting(&mut graph).unwrap();
                let options = Options { threads, ..Options::default() };
                let table = query(&mut graph, &rule, &options).unwrap();
                assert_eq!(table.rows, [[Value::Int(expected as i64)]], "{pattern:?} {choice:?}");
            }
        }
    }
}

#[test]
fn parallel_runs_equal_their_replay_and_leave_no_match() {
    let videos = Videos::new(100, 10, Choice::Skewed, 1);
    for pattern in &PATTERNS {
        for (threads, mode) in [(1, Mode::Immediate), (2, Mode::Cycle), (2, Mode::Immediate)] {
            let [mut graph, mut copy] = [(); 2].map(|()| videos.graph().unwrap());
            let rule = pattern.opening(&mut graph).unwrap();
            let options = Options { threads, mode, log: true, ..Options::default() };
            let control = Control::Rule(0, Apply::Exhaustively);
            let outcome = run(&mut graph, &[rule], &control, &options).unwrap();
            assert!(outcome.rewrites > 50, "{} {pattern:?}", outcome.rewrites);
            assert_eq!(graph.edge_count(), videos.edge_count() - outcome.rewrites);
            outcome.log.replay(&mut copy).unwrap().verify(&graph, &copy).unwrap();
            let rule = pattern.counting(&mut graph).unwrap();
            let table = query(&mut graph, &rule, &Options::default()).unwrap();
            assert_eq!(table.rows, [[Value::Int(0)]], "{pattern:?} {threads} {mode:?}");
        }
    }
}

/// A cycle is part of thousands of matches: once it is open, none of them is tried.
#[test]
fn a_refused_match_ends_its_search() {
    let videos = Videos::new(100, 10, Choice::Skewed, 1);
    let mut graph = videos.graph().unwrap();
    let rules = [PATTERNS[2].opening(&mut graph).unwrap()];
    for mode in [Mode::Immediate, Mode::Cycle] {
        let options = Options { threads: 3, mode, seed: Some(1), ..Options::default() };
        let control = Control::Rule(0, Apply::Exhaustively);
        let mut graph = videos.graph().unwrap();
        let outcome = run(&mut graph, &rules, &control, &options).unwrap();
        assert!(outcome.conflicts < 3 * outcome.rewrites, "{outcome:?}");
    }
}
