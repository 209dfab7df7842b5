//! The Train Benchmark: Szárnyas, Izsó, Ráth, Varró, *The Train Benchmark: cross-technology
//! performance evaluation of continuous model queries*, 2017. Six queries find faults in the model
//! of a railway, and rules repair them. The faults are injected, and counted by hand.

use corebeat_rewrite::{
    Apply, Control, Graph, Mode, Node, Options, Rule, Value, parse_rules, query, run,
};
use std::collections::{HashMap, HashSet};

/// Number of segments that a sensor monitors.
const SEGMENTS: usize = 5;
/// Number of routes.
const ROUTES: usize = 12;
/// Number of faults of each kind.
const FAULTS: usize = 3;

/// A query: its pattern, the results of which the first one is the faulty element, and its repair.
struct Query {
    pattern: &'static str,
    results: &'static str,
    repair: &'static str,
}

/// The queries, in the order in which repairs are applied: a switch that is given a sensor must
/// then be required by its route.
const QUERIES: [Query; 6] = [
    // PosLength: a segment has a positive length.
    Query {
        pattern: "MATCH (segment:Segment) WHERE segment.length <= 0",
        results: "segment",
        repair: "SET segment.length = 1 - segment.length",
    },
    // SwitchMonitored: a switch has a sensor.
    Query {
        pattern: "MATCH (sw:Switch) WHERE NOT (sw)-[:monitoredBy]->(:Sensor)",
        results: "sw",
        repair: "CREATE (sw)-[:monitoredBy]->(:Sensor)",
    },
    // RouteSensor: a route requires the sensors of the switches along it.
    Query {
        pattern: "MATCH (route:Route)-[:follows]->(position:SwitchPosition)-[:target]->(sw:Switch),
            (sw)-[:monitoredBy]->(sensor:Sensor) WHERE NOT (route)-[:requires]->(sensor)",
        results: "sensor, route, position, sw",
        repair: "CREATE (route)-[:requires]->(sensor)",
    },
    // SwitchSet: the switches along an active route that a train may enter have the right position.
    Query {
        pattern: "MATCH (semaphore:Semaphore)<-[:entry]-(route:Route)-[:follows]->
            (position:SwitchPosition)-[:target]->(sw:Switch)
            WHERE semaphore.signal = 'GO' AND route.active
            AND sw.currentPosition <> position.position",
        results: "sw, semaphore, route, position",
        repair: "SET sw.currentPosition = position.position",
    },
    // ConnectedSegments: a sensor monitors at most five segments in a row.
    Query {
        pattern: "MATCH (sensor:Sensor)<-[:monitoredBy]-(a:Segment)-[:connectsTo]->(b:Segment)
            -[:connectsTo]->(c:Segment)-[:connectsTo]->(d:Segment)-[:connectsTo]->(e:Segment)
            -[:connectsTo]->(f:Segment), (b)-[:monitoredBy]->(sensor),
            (c)-[:monitoredBy]->(sensor), (d)-[:monitoredBy]->(sensor),
            (e)-[:monitoredBy]->(sensor), (f)-[:monitoredBy]->(sensor)",
        results: "sensor, a, b, c, d, e, f",
        repair: "DETACH DELETE b CREATE (a)-[:connectsTo]->(c)",
    },
    // SemaphoreNeighbor: the semaphore at the exit of a route is at the entry of the next one.
    Query {
        pattern: "MATCH (semaphore:Semaphore)<-[:exit]-(route:Route)-[:requires]->(sensor:Sensor),
            (sensor)<-[:monitoredBy]-(last)-[:connectsTo]->(first)-[:monitoredBy]->(other:Sensor),
            (other)<-[:requires]-(next:Route)
            WHERE NOT (next)-[:entry]->(semaphore) AND route <> next",
        results: "next, semaphore, route, sensor, other, last, first",
        repair: "CREATE (next)-[:entry]->(semaphore)",
    },
];

/// A railway whose routes form a ring, without faults. A route begins and ends at a semaphore. A
/// track has switches, and after each switch, for each of its sensors, [`SEGMENTS`] segments that
/// this sensor monitors, too.
struct Railway {
    graph: Graph,
    /// The routes in their order, with their switches.
    routes: Vec<(Node, Vec<Node>)>,
}

impl Railway {
    fn new(random: &mut fastrand::Rng) -> Railway {
        let mut graph = Graph::new();
        let schema = graph.schema_mut();
        let track = schema.node_type("TrackElement", &[]).unwrap();
        for of in ["Segment", "Switch"] {
            schema.node_type(of, &[track]).unwrap();
        }
        for of in ["Route", "Semaphore", "SwitchPosition", "Region", "Sensor"] {
            schema.node_type(of, &[]).unwrap();
        }
        let mut railway = Railway { graph, routes: Vec::new() };
        let semaphores: Vec<Node> = (0..ROUTES)
            .map(|_| railway.add("Semaphore", "signal", random.choice(["GO", "GO", "STOP"])))
            .collect();
        let mut tracks = Vec::new();
        for index in 0..ROUTES {
            let route = railway.add("Route", "active", Some(random.u8(..4) > 0));
            railway.link("entry", route, semaphores[index]);
            railway.link("exit", route, semaphores[(index + 1) % ROUTES]);
            let track = railway.add_track(random, route, semaphores[index]);
            tracks.extend(track);
        }
        for (from, to) in tracks.iter().zip(tracks.iter().cycle().skip(1)) {
            railway.link("connectsTo", *from, *to);
        }
        railway
    }

    /// Adds the elements along a route. Returns those of the track in their order.
    fn add_track(&mut self, random: &mut fastrand::Rng, route: Node, semaphore: Node) -> Vec<Node> {
        let region = self.add("Region", "active", None::<bool>);
        let (mut track, mut switches) = (Vec::new(), Vec::new());
        for _ in 0..random.usize(2..6) {
            let position = random.choice(["STRAIGHT", "DIVERGING"]);
            let switch = self.add("Switch", "currentPosition", position);
            let required = self.add("SwitchPosition", "position", position);
            self.link("follows", route, required);
            self.link("target", required, switch);
            self.link("elements", region, switch);
            switches.push(switch);
            track.push(switch);
            for _ in 0..random.usize(1..4) {
                let sensor = self.add("Sensor", "active", None::<bool>);
                self.link("sensors", region, sensor);
                self.link("monitoredBy", switch, sensor);
                self.link("requires", route, sensor);
                for _ in 0..SEGMENTS {
                    let segment = self.add("Segment", "length", Some(random.i64(1..1000)));
                    self.link("elements", region, segment);
                    self.link("monitoredBy", segment, sensor);
                    track.push(segment);
                }
            }
        }
        self.link("semaphores", track[1], semaphore);
        self.routes.push((route, switches));
        track
    }

    fn add<V: Into<Value>>(&mut self, of: &str, key: &str, value: Option<V>) -> Node {
        let of = self.graph.schema().find_node_type(of).unwrap();
        let node = self.graph.add_node(of).unwrap();
        if let Some(value) = value {
            self.set(node, key, value);
        }
        node
    }

    fn set(&mut self, node: Node, key: &str, value: impl Into<Value>) {
        let key = self.graph.schema_mut().key(key).unwrap();
        self.graph.set(node, key, value).unwrap();
    }

    fn get(&self, node: Node, key: &str) -> Value {
        self.graph.get(node, self.graph.schema().find_key(key).unwrap())
    }

    fn link(&mut self, of: &str, from: Node, to: Node) {
        let of = self.graph.schema_mut().edge_type(of, &[]).unwrap();
        self.graph.add_edge(of, from, to).unwrap();
    }

    fn unlink(&mut self, of: &str, from: Node, to: Option<Node>) {
        let of = self.graph.schema().find_edge_type(of).unwrap().0;
        let edges = self.graph.out_edges(from, of);
        let edges: Vec<_> = edges.filter(|(_, end)| to.is_none_or(|to| to == *end)).collect();
        for (edge, _) in edges {
            self.graph.delete_edge(edge).unwrap();
        }
    }

    fn nodes(&self, of: &str) -> Vec<Node> {
        self.graph.nodes_of(self.graph.schema().find_node_type(of).unwrap()).collect()
    }

    /// The targets of the edges of a type.
    fn to(&self, of: &str, from: Node) -> Vec<Node> {
        let of = self.graph.schema().find_edge_type(of).unwrap().0;
        self.graph.out_edges(from, of).map(|(_, to)| to).collect()
    }

    /// The sources of the edges of a type.
    fn from(&self, of: &str, to: Node) -> Vec<Node> {
        let of = self.graph.schema().find_edge_type(of).unwrap().0;
        self.graph.in_edges(to, of).map(|(_, from)| from).collect()
    }

    fn is(&self, of: &str, node: Node) -> bool {
        self.graph.node_type(node) == self.graph.schema().find_node_type(of)
    }

    /// Injects [`FAULTS`] faults of each kind. Routes of the first half lose their entry. The other
    /// faults are at different switches of the second half.
    fn inject(&mut self, random: &mut fastrand::Rng) {
        let (first, second) = self.routes.split_at(ROUTES / 2);
        let mut routes: Vec<Node> = first[1..].iter().map(|(route, _)| *route).collect();
        random.shuffle(&mut routes);
        let mut switches: Vec<(Node, Node)> = second[1..]
            .iter()
            .flat_map(|(route, switches)| switches.iter().map(|switch| (*route, *switch)))
            .collect();
        random.shuffle(&mut switches);
        for route in &routes[..FAULTS] {
            self.unlink("entry", *route, None);
        }
        let mut segments = self.nodes("Segment");
        random.shuffle(&mut segments);
        for segment in &segments[..FAULTS] {
            self.set(*segment, "length", -random.i64(0..100));
        }
        for (_, switch) in switches.drain(..FAULTS).collect::<Vec<_>>() {
            self.unlink("monitoredBy", switch, None);
        }
        for (route, switch) in switches.drain(..FAULTS).collect::<Vec<_>>() {
            let sensor = self.to("monitoredBy", switch)[0];
            self.unlink("requires", route, Some(sensor));
        }
        for (_, switch) in switches.drain(..FAULTS).collect::<Vec<_>>() {
            let sensor = self.to("monitoredBy", switch)[0];
            let inner = |segment: &Node| {
                self.is("Segment", *segment)
                    && self
                        .from("monitoredBy", sensor)
                        .contains(&self.to("connectsTo", *segment)[0])
            };
            let before = self.from("monitoredBy", sensor).into_iter().find(inner).unwrap();
            let after = self.to("connectsTo", before)[0];
            self.unlink("connectsTo", before, None);
            let extra = self.add("Segment", "length", Some(1));
            self.link("monitoredBy", extra, sensor);
            self.link("connectsTo", before, extra);
            self.link("connectsTo", extra, after);
        }
        for (route, switch) in switches.drain(..FAULTS).collect::<Vec<_>>() {
            self.set(route, "active", true);
            self.set(self.to("entry", route)[0], "signal", "GO");
            self.set(switch, "currentPosition", "FAILURE");
        }
    }

    /// Counts the matches of [`QUERIES`] by loops.
    fn by_hand(&self) -> [usize; 6] {
        let mut counts = [0; 6];
        let is_short = |segment: &Node| !matches!(self.get(*segment, "length"), Value::Int(1..));
        counts[0] = self.nodes("Segment").into_iter().filter(is_short).count();
        for switch in self.nodes("Switch") {
            counts[1] += usize::from(self.to("monitoredBy", switch).is_empty());
        }
        for route in self.nodes("Route") {
            let may_enter = |semaphore: &Node| {
                self.get(*semaphore, "signal") == "GO".into()
                    && self.get(route, "active") == true.into()
            };
            let entries = self.to("entry", route).iter().filter(|s| may_enter(s)).count();
            for position in self.to("follows", route) {
                for switch in self.to("target", position) {
                    let requires = |sensor: &Node| self.to("requires", route).contains(sensor);
                    let sensors = self.to("monitoredBy", switch);
                    counts[2] += sensors.iter().filter(|sensor| !requires(sensor)).count();
                    let is_set =
                        self.get(switch, "currentPosition") == self.get(position, "position");
                    counts[3] += if is_set { 0 } else { entries };
                }
            }
            counts[5] += self.wrong_neighbours(route);
        }
        for sensor in self.nodes("Sensor") {
            let monitored = self.from("monitoredBy", sensor);
            counts[4] += monitored.iter().map(|first| self.rows(sensor, *first, 6)).sum::<usize>();
        }
        counts
    }

    /// Number of rows of segments that begin with `first` and are monitored by a sensor.
    fn rows(&self, sensor: Node, first: Node, length: usize) -> usize {
        let is_monitored = self.to("monitoredBy", first).contains(&sensor);
        match length {
            _ if !is_monitored || !self.is("Segment", first) => 0,
            1 => 1,
            _ => {
                let next = self.to("connectsTo", first);
                next.into_iter().map(|next| self.rows(sensor, next, length - 1)).sum()
            }
        }
    }

    fn wrong_neighbours(&self, route: Node) -> usize {
        let all = |of: &'static str, from: Vec<Node>| -> Vec<Node> {
            from.into_iter().flat_map(|from| self.to(of, from)).collect()
        };
        let sensors = self.to("requires", route);
        let last = sensors.iter().flat_map(|sensor| self.from("monitoredBy", *sensor)).collect();
        let others = all("monitoredBy", all("connectsTo", last));
        let next = others.iter().flat_map(|sensor| self.from("requires", *sensor));
        let next: Vec<Node> = next.filter(|next| *next != route).collect();
        let exits = self.to("exit", route);
        let is_wrong = |next: &Node, exit: &Node| !self.to("entry", *next).contains(exit);
        exits.iter().map(|exit| next.iter().filter(|next| is_wrong(next, exit)).count()).sum()
    }

    /// The queries, then the repairs.
    fn rules(&mut self) -> Vec<Rule> {
        let queries = QUERIES.iter().map(|q| format!("{} RETURN {}", q.pattern, q.results));
        let repairs = QUERIES.iter().map(|q| format!("{} {}", q.pattern, q.repair));
        let text: Vec<String> = queries.chain(repairs).collect();
        parse_rules("train", &text.join(";"), &HashMap::new(), &mut self.graph)
            .unwrap_or_else(|e| panic!("{e}"))
    }

    /// The numbers of matches and of faulty elements of each query, by the library.
    fn found(&mut self, rules: &[Rule], threads: usize) -> [(usize, usize); 6] {
        std::array::from_fn(|index| {
            let options = Options { threads, ..Options::default() };
            let rows = query(&mut self.graph, &rules[index], &options).unwrap().rows;
            let faulty: HashSet<String> = rows.iter().map(|row| row[0].to_string()).collect();
            (rows.len(), faulty.len())
        })
    }
}

#[test]
fn generated_railways_have_no_faults() {
    for seed in 0..4 {
        let mut railway = Railway::new(&mut fastrand::Rng::with_seed(seed));
        for element in railway.nodes("TrackElement") {
            assert_eq!(railway.to("connectsTo", element).len(), 1);
            assert_eq!(railway.from("connectsTo", element).len(), 1);
        }
        for sensor in railway.nodes("Sensor") {
            assert_eq!(railway.from("monitoredBy", sensor).len(), 1 + SEGMENTS);
            assert_eq!(railway.from("requires", sensor).len(), 1);
        }
        assert_eq!(railway.by_hand(), [0; 6]);
        let rules = railway.rules();
        assert_eq!(railway.found(&rules, 1), [(0, 0); 6]);
    }
}

#[test]
fn queries_find_the_injected_faults_and_rules_repair_them() {
    for seed in 0..3 {
        for (threads, mode) in [(1, Mode::Immediate), (2, Mode::Immediate), (2, Mode::Cycle)] {
            let random = &mut fastrand::Rng::with_seed(seed);
            let mut railway = Railway::new(random);
            railway.inject(random);
            let (rules, by_hand) = (railway.rules(), railway.by_hand());
            let found = railway.found(&rules, threads);
            assert_eq!(found.map(|(matches, _)| matches), by_hand, "seed {seed}");
            assert_eq!(found.map(|(_, faulty)| faulty), [FAULTS; 6], "seed {seed}");

            let segments = railway.nodes("Segment").len();
            let repairs = QUERIES.len()..rules.len();
            let repair = repairs.map(|rule| Control::Rule(rule, Apply::Exhaustively)).collect();
            let options = Options { threads, mode, ..Options::default() };
            let outcome = run(&mut railway.graph, &rules, &Control::Sequence(repair), &options);
            // A route must then require each sensor that a switch was given.
            let context = format!("seed {seed} {threads} threads {mode:?}");
            assert_eq!(outcome.unwrap().rewrites as usize, 7 * FAULTS, "{context}");
            assert_eq!(railway.nodes("Segment").len(), segments - FAULTS, "{context}");
            assert_eq!(railway.found(&rules, threads), [(0, 0); 6], "{context}");
            assert_eq!(railway.by_hand(), [0; 6], "{context}");
        }
    }
}
