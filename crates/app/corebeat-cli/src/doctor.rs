//! `corebeat doctor`: the features of this machine, the cost of each missing one, and how to get
//! it.

use corebeat_command::{Done, Failure, print, printable};
use corebeat_linux::{Fact, LinuxMachine, Offer, facts, system_name};
use corebeat_machine::{Cpu, Machine, Topology};
use serde::Serialize;
use std::fmt::{self, Write as _};
use std::process::ExitCode;

/// Width of a line in characters; longer lines are broken between cores and between words.
const WIDTH: usize = 100;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Write one JSON object
    #[arg(long)]
    json: bool,
}

/// The findings. The page `doctor.md` of the book explains every field.
#[derive(Debug, Serialize)]
struct Findings {
    /// Kernel and processor.
    system: String,
    topology: Topology,
    facts: Vec<Fact>,
}

pub(crate) fn main(options: Options) -> Done {
    let machine = LinuxMachine::new(corebeat_linux::Options::default());
    let findings = Findings {
        system: system_name(),
        // Without /proc there is no machine. The facts report this.
        topology: machine.map_or_else(|_| flat(), |m| m.topology().clone()),
        facts: facts().into_iter().chain([scheduler(), table()]).collect(),
    };
    let text = match options.json {
        true => serde_json::to_string(&findings).map_err(Failure::internal)? + "\n",
        false => findings.to_string(),
    };
    print(text)?;
    Ok(ExitCode::SUCCESS)
}

/// Whether `--kernel` works.
fn scheduler() -> Fact {
    let (offer, detail) = match corebeat_kernel::check() {
        Ok(()) => (Offer::Yes, "can be loaded (--kernel, --all)".to_owned()),
        Err(why) => (Offer::No, why.to_string()),
    };
    Fact {
        name: "scheduler of Corebeat",
        offer,
        detail,
        cost: "programs take turns by freezing, and weights are nice values or those of groups",
        how: "see the page 'The scheduler in the kernel' of the book",
    }
}

/// Whether `--tables` works.
fn table() -> Fact {
    let (offer, detail) = match corebeat_kernel::KernelTable::check_load() {
        Ok(()) => (Offer::Yes, "can be loaded (--tables)".to_owned()),
        Err(why) => (Offer::No, why.to_string()),
    };
    Fact {
        name: "counts of threads in the kernel",
        offer,
        detail,
        cost: "threads are read from /proc, which takes more CPU time, and waits are sampled",
        how: "see the page 'The scheduler in the kernel' of the book",
    }
}

fn flat() -> Topology {
    Topology::flat(std::thread::available_parallelism().map_or(1, |n| n.get() as u32))
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n\n{}", self.system, picture(&self.topology))?;
        let width = self.facts.iter().map(|fact| fact.name.len()).max().unwrap_or(0);
        for fact in &self.facts {
            let offer = match fact.offer {
                Offer::Yes => "yes",
                Offer::Limited => "limited",
                Offer::No => "no",
            };
            writeln!(f, "{offer:<8} {:<width$}  {}", fact.name, printable(&fact.detail))?;
            if fact.offer != Offer::Yes {
                write!(f, "{}{}", lines("cost", fact.cost), lines("get it", fact.how))?;
            }
        }
        let missing = self.facts.iter().filter(|fact| fact.offer != Offer::Yes).count();
        match missing {
            0 => writeln!(f, "\nNothing is missing."),
            n => writeln!(
                f,
                "\n{} of {} features are available; Corebeat works without the others.",
                self.facts.len() - n,
                self.facts.len()
            ),
        }
    }
}

/// A text after a title, below a fact.
fn lines(title: &str, text: &str) -> String {
    let words = text.split_whitespace().map(str::to_owned);
    wrapped(&format!("{:9}{title:<8}", ""), words)
}

/// The words after the head, broken into lines. A word that is longer than a line has its own line.
fn wrapped(head: &str, words: impl Iterator<Item = String>) -> String {
    let indent = head.chars().count();
    let (mut text, mut at) = (head.to_owned(), indent);
    for word in words {
        let length = word.chars().count();
        if at > indent && at + 1 + length > WIDTH {
            let _ = write!(text, "\n{:indent$}", "");
            at = indent;
        }
        if at > indent {
            text.push(' ');
            at += 1;
        }
        text += &word;
        at += length;
    }
    text + "\n"
}

/// The machine as a tree: packages, nodes, last-level caches, and in each the cores with their CPUs
/// in brackets.
fn picture(topology: &Topology) -> String {
    let mut cpus: Vec<&Cpu> = topology.cpus().iter().collect();
    cpus.sort_by_key(|c| (c.package, c.node, c.cache, c.core, c.id));
    let mut text = String::new();
    for package in cpus.chunk_by(|a, b| a.package == b.package) {
        let _ = writeln!(text, "package {}", package[0].package);
        let nodes: Vec<&[&Cpu]> = package.chunk_by(|a, b| a.node == b.node).collect();
        for (n, node) in nodes.iter().enumerate() {
            let (branch, trunk) = branches(n, nodes.len());
            let _ = writeln!(text, "{branch}node {}", node[0].node.0);
            let caches: Vec<&[&Cpu]> = node.chunk_by(|a, b| a.cache == b.cache).collect();
            for (c, cache) in caches.iter().enumerate() {
                let (branch, below) = branches(c, caches.len());
                let cores = cache.chunk_by(|a, b| a.core == b.core).map(core);
                let head = format!("{trunk}{branch}cache {}: ", cache[0].cache);
                let indent = format!(
                    "\n{trunk}{below}{:1$}",
                    "",
                    head.chars().count() - trunk.chars().count() - 3
                );
                let blank = format!("\n{:1$}", "", head.chars().count());
                text += &wrapped(&head, cores).replace(&blank, &indent);
            }
        }
    }
    text + &distances(topology)
}

/// Prefix of a child's line, and of the lines below it.
fn branches(at: usize, of: usize) -> (&'static str, &'static str) {
    if at + 1 == of { ("└─ ", "   ") } else { ("├─ ", "│  ") }
}

/// A core: its CPUs.
fn core(cpus: &[&Cpu]) -> String {
    let ids: Vec<String> = cpus.iter().map(|c| c.id.0.to_string()).collect();
    format!("[{}]", ids.join(" "))
}

/// Distances of the nodes; empty for one node.
fn distances(topology: &Topology) -> String {
    let nodes = topology.nodes();
    let mut text = String::new();
    if nodes.len() > 1 {
        let cell = |text: String| format!("{text:>5}");
        let head: String = nodes.iter().map(|n| cell(n.id.0.to_string())).collect();
        let _ = writeln!(text, "distances{head}");
        for node in nodes {
            let row: String = node.distances.iter().map(|d| cell(d.to_string())).collect();
            let _ = writeln!(text, "  node {:<2}{row}", node.id.0);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use corebeat_machine::{CpuId, Node, NodeId};

    /// Packages, nodes in each, caches in each node, cores in each cache, CPUs in each core. The
    /// first CPUs of all cores come first, as Linux numbers them.
    fn machine(packages: u32, nodes: u32, caches: u32, cores: u32, smt: u32) -> Topology {
        let all_cores = packages * nodes * caches * cores;
        let cpu = |id: u32| {
            let core = id % all_cores;
            let cache = core / cores;
            let node = cache / caches;
            Cpu { id: CpuId(id), package: node / nodes, core, node: NodeId(node), cache }
        };
        let cpus: Vec<Cpu> = (0..all_cores * smt).map(cpu).collect();
        let count = packages * nodes;
        let node = |n: u32| Node {
            id: NodeId(n),
            cpus: cpus.iter().filter(|c| c.node.0 == n).map(|c| c.id).collect(),
            distances: (0..count).map(|m| if m == n { 10 } else { 21 }).collect(),
        };
        let nodes = (0..count).map(node).collect();
        Topology::new(cpus, nodes).unwrap()
    }

    #[test]
    fn picture_of_two_cpus_has_one_cache() {
        assert_eq!(picture(&Topology::flat(2)), "package 0\n└─ node 0\n   └─ cache 0: [0] [1]\n");
    }

    #[test]
    fn picture_of_two_packages_shows_nodes_caches_cores_and_distances() {
        let expected = "\
package 0
├─ node 0
│  ├─ cache 0: [0 8]
│  └─ cache 1: [1 9]
└─ node 1
   ├─ cache 2: [2 10]
   └─ cache 3: [3 11]
package 1
├─ node 2
│  ├─ cache 4: [4 12]
│  └─ cache 5: [5 13]
└─ node 3
   ├─ cache 6: [6 14]
   └─ cache 7: [7 15]
distances    0    1    2    3
  node 0    10   21   21   21
  node 1    21   10   21   21
  node 2    21   21   10   21
  node 3    21   21   21   10
";
        assert_eq!(picture(&machine(2, 2, 2, 1, 2)), expected);
    }

    #[test]
    fn picture_of_many_cores_is_broken_into_lines() {
        let text = picture(&machine(1, 1, 2, 64, 2));
        assert!(text.lines().all(|l| l.chars().count() <= WIDTH), "{text}");
        let below = text.lines().nth(3).unwrap();
        assert!(below.starts_with("   │           ["), "{text}");
        assert!(text.lines().last().unwrap().starts_with("               ["), "{text}");
        for id in 0..256 {
            let inside = [format!("[{id} "), format!(" {id}]")];
            assert!(inside.iter().any(|i| text.contains(i)), "{id}");
        }
    }

    #[test]
    fn findings_contain_cost_and_remedy_of_missing_features() {
        let fact = |name, offer| Fact {
            name,
            offer,
            detail: "d\u{1b}".into(),
            cost: "much",
            how: "buy one",
        };
        let findings = Findings {
            system: "Linux".into(),
            topology: Topology::flat(1),
            facts: vec![fact("a", Offer::Yes), fact("bb", Offer::No), fact("c", Offer::Limited)],
        };
        let text = findings.to_string();
        assert!(
            text.contains(
                "yes      a   d\\u{1b}\nno       bb  d\\u{1b}\n         cost    much\n         get it  buy one\nlimited"
            ),
            "{text}"
        );
        assert!(
            text.ends_with("1 of 3 features are available; Corebeat works without the others.\n")
        );
        let json = serde_json::to_value(&findings).unwrap();
        assert_eq!(json["facts"][2]["offer"], "limited");
        assert_eq!(json["topology"]["cpus"][0]["id"], 0);
    }
}
