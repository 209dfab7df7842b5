//! The model and the patterns of Imre, Mezei, *Parallel Graph Transformations on Multicore
//! Systems*, 2012, section 2.2.
//!
//! The paper's model has videos of YouTube, each with up to 20 related videos. These ones are
//! generated from a seed. The paper states the numbers of nodes and the diameters of its patterns,
//! and not their edges: these patterns have the same numbers and diameters.

use corebeat_rewrite::{Error, Graph, Matching, Rule, RuleBuilder};

/// Largest number of related videos of a video.
pub const RELATED_MAX: u32 = 20;

/// Lists of videos, one for each video.
struct Lists {
    begins: Vec<u32>,
    videos: Vec<u32>,
}

impl Lists {
    fn new<'a>(lists: impl Iterator<Item = &'a Vec<u32>>) -> Lists {
        let (mut begins, mut videos) = (vec![0], Vec::new());
        for list in lists {
            videos.extend(list);
            begins.push(videos.len() as u32);
        }
        Lists { begins, videos }
    }

    fn of(&self, video: u32) -> &[u32] {
        let video = video as usize;
        &self.videos[self.begins[video] as usize..self.begins[video + 1] as usize]
    }
}

/// Videos by number, as a programmer would store them for a given pattern.
pub struct Videos {
    /// The related videos of each video.
    related: Lists,
    /// The videos to which each video is related.
    referring: Lists,
}

/// How videos choose their related videos.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// Each video with the same probability.
    Even,
    /// A few videos are related to many.
    Skewed,
}

impl Videos {
    /// Generates `count` videos with up to `related` related videos each from a seed. No video is
    /// related to itself, or twice to another.
    pub fn new(count: u32, related: u32, choice: Choice, seed: u64) -> Videos {
        let random = &mut fastrand::Rng::with_seed(seed);
        let mut all: Vec<Vec<u32>> = Vec::new();
        let mut referring = vec![Vec::new(); count as usize];
        for video in 0..count {
            let mut list: Vec<u32> = Vec::new();
            for _ in 0..related {
                let share =
                    random.f64() * if choice == Choice::Skewed { random.f64() } else { 1.0 };
                let other = (share * f64::from(count)) as u32;
                if other != video && !list.contains(&other) {
                    list.push(other);
                    referring[other as usize].push(video);
                }
            }
            all.push(list);
        }
        Videos { related: Lists::new(all.iter()), referring: Lists::new(referring.iter()) }
    }

    fn numbers(&self) -> std::ops::Range<u32> {
        0..self.related.begins.len() as u32 - 1
    }

    /// Number of related videos of all videos.
    pub fn edge_count(&self) -> u64 {
        self.related.videos.len() as u64
    }

    /// The pairs of a video and a related one, by the number of the first.
    pub fn edges(&self) -> impl Iterator<Item = (u32, u32)> {
        self.numbers().flat_map(|from| self.related.of(from).iter().map(move |to| (from, *to)))
    }

    /// The videos as a graph.
    ///
    /// # Errors
    /// [`Error::Full`] if a graph cannot have so many videos.
    pub fn graph(&self) -> Result<Graph, Error> {
        let mut graph = Graph::new();
        let video = graph.schema_mut().node_type("Video", &[])?;
        let related = graph.schema_mut().edge_type("RELATED", &[])?;
        let nodes = self.numbers().map(|_| graph.add_node(video)).collect::<Result<Vec<_>, _>>()?;
        for (from, to) in self.edges() {
            graph.add_edge(related, nodes[from as usize], nodes[to as usize])?;
        }
        graph.compact();
        Ok(graph)
    }

    /// Counts the matches of a pattern by loops that are written for the pattern.
    pub fn count(&self, pattern: &Pattern) -> u64 {
        let mut matches = 0;
        for a in self.numbers() {
            for b in others(self.related.of(a), &[a]) {
                for c in others(self.related.of(b), &[a, b]) {
                    if self.related.of(c).contains(&a) {
                        matches += match pattern.shape {
                            Shape::TwoCycles => self.second_cycle([a, b, c]),
                            Shape::CycleAtEnd => self.path_from([a, b, c]),
                            Shape::CycleInside => self.paths_around([a, b, c]),
                        };
                    }
                }
            }
        }
        matches
    }

    fn second_cycle(&self, [a, b, c]: [u32; 3]) -> u64 {
        let mut matches = 0;
        for d in others(self.related.of(a), &[a, b, c]) {
            for e in others(self.related.of(d), &[a, b, c, d]) {
                for f in others(self.related.of(e), &[a, b, c, d, e]) {
                    matches += u64::from(self.related.of(f).contains(&d));
                }
            }
        }
        matches
    }

    fn path_from(&self, [a, b, c]: [u32; 3]) -> u64 {
        let mut matches = 0;
        for d in others(self.related.of(a), &[a, b, c]) {
            for e in others(self.related.of(d), &[a, b, c, d]) {
                for f in others(self.related.of(e), &[a, b, c, d, e]) {
                    matches += others(self.related.of(f), &[a, b, c, d, e, f]).count() as u64;
                }
            }
        }
        matches
    }

    fn paths_around(&self, [a, b, c]: [u32; 3]) -> u64 {
        let mut matches = 0;
        for e in others(self.referring.of(a), &[a, b, c]) {
            for d in others(self.referring.of(e), &[a, b, c, e]) {
                for f in others(self.related.of(b), &[a, b, c, d, e]) {
                    matches += others(self.related.of(f), &[a, b, c, d, e, f]).count() as u64;
                }
            }
        }
        matches
    }
}

/// The videos of a list that are none of these.
fn others<'a>(list: &'a [u32], these: &'a [u32]) -> impl Iterator<Item = u32> + 'a {
    list.iter().copied().filter(|video| !these.contains(video))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    TwoCycles,
    CycleAtEnd,
    CycleInside,
}

/// A pattern of videos, all different. Its first edge is part of a cycle of three.
#[derive(Debug)]
pub struct Pattern {
    /// Description.
    pub name: &'static str,
    /// Names of the ends of each edge, from a video to a related one.
    pub edges: &'static [(&'static str, &'static str)],
    shape: Shape,
}

/// The patterns of the paper's Table 1.
pub const PATTERNS: [Pattern; 3] = [
    Pattern {
        name: "6 nodes, two cycles",
        edges: &[
            ("a", "b"),
            ("b", "c"),
            ("c", "a"),
            ("a", "d"),
            ("d", "e"),
            ("e", "f"),
            ("f", "d"),
        ],
        shape: Shape::TwoCycles,
    },
    Pattern {
        name: "7 nodes, cycle at the end",
        edges: &[
            ("a", "b"),
            ("b", "c"),
            ("c", "a"),
            ("a", "d"),
            ("d", "e"),
            ("e", "f"),
            ("f", "g"),
        ],
        shape: Shape::CycleAtEnd,
    },
    Pattern {
        name: "7 nodes, cycle inside",
        edges: &[
            ("a", "b"),
            ("b", "c"),
            ("c", "a"),
            ("d", "e"),
            ("e", "a"),
            ("b", "f"),
            ("f", "g"),
        ],
        shape: Shape::CycleInside,
    },
];

impl Pattern {
    /// The names of the nodes.
    pub fn nodes(&self) -> Vec<&'static str> {
        let mut names: Vec<&str> = self.edges.iter().flat_map(|(a, b)| [*a, *b]).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    fn rule(&self) -> RuleBuilder {
        let rule = RuleBuilder::new(self.name).matching(Matching::Injective);
        let rule = self.nodes().iter().fold(rule, |rule, name| rule.node(name, "Video"));
        let edges = (0..).zip(self.edges);
        edges.fold(rule, |rule, (index, (from, to))| {
            rule.edge(&format!("e{index}"), "RELATED", from, to)
        })
    }

    /// A query that counts the matches.
    ///
    /// # Errors
    /// [`Error::Rule`] if the graph has no videos.
    pub fn counting(&self, graph: &mut Graph) -> Result<Rule, Error> {
        self.rule().returns("count(*)").build(graph)
    }

    /// A query that counts the matches whose videos have no further edges.
    ///
    /// # Errors
    /// [`Error::Rule`] if the graph has no videos.
    pub fn counting_induced(&self, graph: &mut Graph) -> Result<Rule, Error> {
        let nodes = self.nodes();
        let pairs = nodes.iter().flat_map(|from| nodes.iter().map(move |to| (*from, *to)));
        let further = pairs.filter(|pair| pair.0 != pair.1 && !self.edges.contains(pair));
        let rule = further.fold(self.rule(), |rule, (from, to)| {
            rule.unless(&format!("({from})-[:RELATED]->({to})"))
        });
        rule.returns("count(*)").build(graph)
    }

    /// A rule that opens the cycle of a match: it deletes the first edge.
    ///
    /// # Errors
    /// [`Error::Rule`] if the graph has no videos.
    pub fn opening(&self, graph: &mut Graph) -> Result<Rule, Error> {
        self.rule().delete("e0").build(graph)
    }
}
