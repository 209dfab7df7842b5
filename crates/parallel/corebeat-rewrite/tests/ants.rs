//! AntWorld, the simulation case of the tool contest of GraBaTs 2008: ants search food, carry it to
//! their hill along rings of fields that grow, and lay trails of pheromones. Runs of the rules are
//! compared with a simulation in Rust, round by round.
//!
//! A rule cannot choose one of its matches at random, so each ant has a number, its luck, from
//! which the rules compute the field that it searches next. No result depends on the order in which
//! rules find their matches.

use corebeat_rewrite::{
    Apply, Control, Graph, Key, Mode, Node, Options, Rule, Value, parse_rules, run,
};
use std::collections::HashMap;

/// Prime number by which lucks and fields are scattered.
const PRIME: i64 = 10_007;
/// Number of ants of the first round.
const ANTS: i64 = 8;
/// Number of rings of the first round.
const RINGS: i64 = 2;
/// Food of every tenth field.
const FOOD: i64 = 100;

/// The rules of a round in their order. A ring is numbered along its cycle of `NEXT`, from the
/// corner that is `first`.
const RULES: [(&str, Apply); 15] = [
    (
        "MATCH (a:Ant)-[:AT]->(h:Hill) WHERE a.carries SET a.carries = false, h.food = h.food + 1",
        Apply::Exhaustively,
    ),
    // Of several ants at a field, the one with the smallest luck takes food.
    (
        "MATCH (a:Ant)-[:AT]->(f:Field) WHERE NOT a.carries AND f.food > 0 AND NOT EXISTS {
            MATCH (b:Ant)-[:AT]->(f) WHERE NOT b.carries AND b.luck < a.luck
        } SET a.carries = true, f.food = f.food - 1",
        Apply::Exhaustively,
    ),
    (
        "MATCH (a:Ant)-[at:AT]->(f:Field)-[:HOME]->(g) WHERE a.carries AND NOT a.done
        DELETE at CREATE (a)-[:AT]->(g) SET f.pheromones = f.pheromones + 1024, a.done = true",
        Apply::Exhaustively,
    ),
    // Ants without food follow a trail, or search at random.
    (
        "MATCH (a:Ant)-[at:AT]->(f)<-[:HOME]-(g:Field)
        WHERE NOT a.done AND g.pheromones > 9 AND NOT EXISTS {
            MATCH (f)<-[:HOME]-(x:Field) WHERE x.pheromones > 9
                AND x.number * a.luck % $prime < g.number * a.luck % $prime
        } DELETE at CREATE (a)-[:AT]->(g) SET a.done = true, a.luck = a.luck * 48271 % $prime",
        Apply::Exhaustively,
    ),
    (
        "MATCH (a:Ant)-[at:AT]->(f)-[:HOME|NEXT]-(g:Field) WHERE NOT a.done AND NOT EXISTS {
            MATCH (f)-[:HOME|NEXT]-(x:Field)
            WHERE x.number * a.luck % $prime < g.number * a.luck % $prime
        } DELETE at CREATE (a)-[:AT]->(g) SET a.done = true, a.luck = a.luck * 48271 % $prime",
        Apply::Exhaustively,
    ),
    // An ant at the border makes the world grow by a ring.
    (
        "MATCH (:Ant)-[:AT]->(f:Field), (h:Hill) WHERE NOT (f)<-[:HOME]-()
        SET h.rings = h.rings + 1",
        Apply::One,
    ),
    (
        "MATCH (f:Corner), (h:Hill) WHERE f.ring < h.rings AND NOT (f)<-[:HOME]-()
        CREATE (x:Side {ring: h.rings, pheromones: 0})-[:HOME]->(f),
            (y:Corner {ring: h.rings, pheromones: 0})-[:HOME]->(f),
            (z:Side {ring: h.rings, pheromones: 0})-[:HOME]->(f),
            (x)-[:NEXT]->(y)-[:NEXT]->(z)",
        Apply::Exhaustively,
    ),
    (
        "MATCH (f:Side), (h:Hill) WHERE f.ring < h.rings AND NOT (f)<-[:HOME]-()
        CREATE (:Side {ring: h.rings, pheromones: 0})-[:HOME]->(f)",
        Apply::Exhaustively,
    ),
    (
        "MATCH (x:Field)-[:HOME]->(f:Field)-[:NEXT]->(g:Field)<-[:HOME]-(y:Field)
        WHERE NOT (x)-[:NEXT]->() AND NOT ()-[:NEXT]->(y) CREATE (x)-[:NEXT]->(y)",
        Apply::Exhaustively,
    ),
    (
        "MATCH (g:Corner)-[:HOME]->(f:Corner) WHERE f.first AND g.number IS NULL
        SET g.first = true, g.number = f.number + 8 * f.ring - 4",
        Apply::Exhaustively,
    ),
    (
        "MATCH (f:Field)-[:NEXT]->(g:Field) WHERE f.number > 0 AND g.number IS NULL
        SET g.number = f.number + 1",
        Apply::Exhaustively,
    ),
    (
        "MATCH (f:Field) WHERE f.ring > $rings AND f.number % 10 = 0 AND f.food IS NULL
        SET f.food = $food",
        Apply::Exhaustively,
    ),
    (
        "MATCH (h:Hill) WHERE h.food > 0 SET h.food = h.food - 1, h.born = h.born + 1
        CREATE (:Ant {luck: h.born * 7919 % $prime, carries: false, done: false})-[:AT]->(h)",
        Apply::Exhaustively,
    ),
    (
        "MATCH (f:Field) WHERE f.pheromones > 0 SET f.pheromones = f.pheromones * 95 / 100",
        Apply::All,
    ),
    ("MATCH (a:Ant) WHERE a.done SET a.done = false", Apply::All),
];

/// The rules of growth: see [`RULES`].
const GROWTH: std::ops::Range<usize> = 6..12;
const BIRTH: usize = 12;

struct Ants {
    graph: Graph,
    rules: Vec<Rule>,
}

impl Ants {
    /// A hill with [`RINGS`] rings and [`ANTS`] ants.
    fn new() -> Ants {
        let mut graph = Graph::new();
        let schema = graph.schema_mut();
        let field = schema.node_type("Field", &[]).unwrap();
        for of in ["Side", "Corner"] {
            schema.node_type(of, &[field]).unwrap();
        }
        let begin = "
            CREATE (h:Hill {rings: $rings, food: $ants, born: 1}),
                (a:Corner {ring: 1, pheromones: 0, number: 1, first: true})-[:HOME]->(h),
                (b:Corner {ring: 1, pheromones: 0})-[:HOME]->(h),
                (c:Corner {ring: 1, pheromones: 0})-[:HOME]->(h),
                (d:Corner {ring: 1, pheromones: 0})-[:HOME]->(h),
                (a)-[:NEXT]->(b)-[:NEXT]->(c)-[:NEXT]->(d)-[:NEXT]->(a);";
        let text: Vec<&str> = RULES.iter().map(|(text, _)| *text).collect();
        let numbers = [("prime", PRIME), ("ants", ANTS), ("rings", RINGS), ("food", FOOD)];
        let parameters: HashMap<String, Value> =
            numbers.map(|(name, value)| (name.into(), Value::Int(value))).into();
        let mut rules = parse_rules("begin", begin, &parameters, &mut graph).unwrap();
        rules.extend(parse_rules("round", &text.join(";"), &parameters, &mut graph).unwrap());
        let mut ants = Ants { graph, rules };
        let later = GROWTH.chain([BIRTH]).map(|rule| (rule + 1, RULES[rule].1));
        let steps = [(0, Apply::One)].into_iter().chain(later);
        ants.run(steps, &Options::default());
        ants
    }

    fn run(&mut self, steps: impl Iterator<Item = (usize, Apply)>, options: &Options) {
        let steps = steps.map(|(rule, apply)| Control::Rule(rule, apply)).collect();
        run(&mut self.graph, &self.rules, &Control::Sequence(steps), options).unwrap();
    }

    fn round(&mut self, options: &Options) {
        self.run((1..).zip(RULES.map(|(_, apply)| apply)), options);
    }

    fn nodes(&self, of: &str) -> Vec<Node> {
        let of = self.graph.schema().find_node_type(of).unwrap();
        self.graph.nodes_of(of).collect()
    }

    fn key(&self, name: &str) -> Key {
        self.graph.schema().find_key(name).unwrap()
    }

    /// The value of an attribute; 0 if there is none.
    fn get(&self, node: Node, key: &str) -> i64 {
        match self.graph.get(node, self.key(key)) {
            Value::Int(value) => value,
            Value::Bool(value) => value.into(),
            _ => 0,
        }
    }

    fn world(&self) -> World {
        let at = self.graph.schema().find_edge_type("AT").unwrap().0;
        let hill = self.nodes("Hill")[0];
        let ant = |node: Node| {
            let places: Vec<Node> = self.graph.out_edges(node, at).map(|(_, to)| to).collect();
            assert_eq!(places.len(), 1, "an ant is at one place");
            let carries = self.get(node, "carries") == 1;
            Ant { at: self.get(places[0], "number"), luck: self.get(node, "luck"), carries }
        };
        let mut ants: Vec<Ant> = self.nodes("Ant").into_iter().map(ant).collect();
        ants.sort_unstable();
        let mut fields: Vec<(i64, [i64; 2])> = self
            .nodes("Field")
            .into_iter()
            .map(|f| (self.get(f, "number"), [self.get(f, "food"), self.get(f, "pheromones")]))
            .collect();
        fields.sort_unstable();
        let numbers = fields.iter().map(|(number, _)| *number);
        assert!(numbers.eq(1..=fields.len() as i64), "fields have the numbers from 1");
        let (food, pheromones) = fields.iter().map(|(_, [food, p])| (*food, *p)).unzip();
        let rings = self.get(hill, "rings");
        World { rings, food, pheromones, ants, born: self.get(hill, "born") }
    }

    /// Checks the known numbers of elements.
    fn check(&self, world: &World) {
        let rings = world.rings;
        for ring in 1..=rings {
            let of = |of| self.nodes(of).iter().filter(|n| self.get(**n, "ring") == ring).count();
            assert_eq!((of("Field"), of("Corner")), (8 * ring as usize - 4, 4));
        }
        for of in ["HOME", "NEXT"] {
            let of = self.graph.schema().find_edge_type(of).unwrap().0;
            assert_eq!(self.graph.edge_count_of(of) as i64, 4 * rings * rings);
        }
        let planted = FOOD * (4 * rings * rings / 10 - 4 * RINGS * RINGS / 10);
        let carried = world.ants.iter().filter(|ant| ant.carries).count() as i64;
        let brought = world.ants.len() as i64 - ANTS;
        assert_eq!(world.food.iter().sum::<i64>() + carried + brought, planted);
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Ant {
    /// Number of a field; 0 for the hill.
    at: i64,
    luck: i64,
    carries: bool,
}

/// The simulation without a graph.
#[derive(Debug, Clone, PartialEq)]
struct World {
    rings: i64,
    /// By the number of a field, from 1.
    food: Vec<i64>,
    pheromones: Vec<i64>,
    ants: Vec<Ant>,
    born: i64,
}

/// Ring of a field, and place in it, from 0.
fn place(field: i64) -> (i64, i64) {
    let ring = (1..).find(|ring| 4 * ring * ring >= field).unwrap();
    (ring, field - 4 * (ring - 1) * (ring - 1) - 1)
}

/// The next field on the way home; 0 for the hill.
fn home(field: i64) -> i64 {
    let (ring, place) = place(field);
    if ring == 1 {
        return 0;
    }
    let (quarter, offset) = (place / (2 * ring - 1), place % (2 * ring - 1));
    let inner = (quarter * (2 * ring - 3) + (offset - 1).max(0)) % (8 * ring - 12);
    4 * (ring - 2) * (ring - 2) + inner + 1
}

fn neighbours(field: i64) -> Vec<i64> {
    let (ring, place) = place(field);
    let size = 8 * ring - 4;
    let of = |place: i64| 4 * (ring - 1) * (ring - 1) + place % size + 1;
    vec![of(place + 1), of(place + size - 1), home(field)]
}

impl World {
    /// The fields that are farther from the hill.
    fn farther(&self, at: i64) -> Vec<i64> {
        let ring = if at == 0 { 0 } else { place(at).0 };
        (4 * ring * ring + 1..=4 * (ring + 1) * (ring + 1))
            .filter(|field| *field <= self.food.len() as i64 && home(*field) == at)
            .collect()
    }

    fn round(&mut self) {
        let index = |field: i64| field as usize - 1;
        let mut ants = std::mem::take(&mut self.ants);
        let mut brought = 0;
        for ant in ants.iter_mut().filter(|ant| ant.carries && ant.at == 0) {
            ant.carries = false;
            brought += 1;
        }
        ants.sort_by_key(|ant| ant.luck);
        for ant in ants.iter_mut().filter(|ant| !ant.carries && ant.at > 0) {
            if self.food[index(ant.at)] > 0 {
                self.food[index(ant.at)] -= 1;
                ant.carries = true;
            }
        }
        for ant in ants.iter_mut().filter(|ant| ant.carries) {
            self.pheromones[index(ant.at)] += 1024;
            ant.at = home(ant.at);
        }
        for ant in ants.iter_mut().filter(|ant| !ant.carries) {
            let farther = self.farther(ant.at);
            let mut next: Vec<i64> = farther.clone();
            next.retain(|field| self.pheromones[index(*field)] > 9);
            if next.is_empty() {
                next = farther;
                next.extend(if ant.at == 0 { vec![] } else { neighbours(ant.at) });
                next.retain(|field| *field > 0);
            }
            ant.at = *next.iter().min_by_key(|field| *field * ant.luck % PRIME).unwrap();
            ant.luck = ant.luck * 48271 % PRIME;
        }
        if ants.iter().any(|ant| ant.at > 0 && place(ant.at).0 == self.rings) {
            self.rings += 1;
            for field in self.food.len() as i64 + 1..=4 * self.rings * self.rings {
                self.food.push(if field % 10 == 0 { FOOD } else { 0 });
                self.pheromones.push(0);
            }
        }
        for _ in 0..brought {
            ants.push(Ant { at: 0, luck: self.born * 7919 % PRIME, carries: false });
            self.born += 1;
        }
        self.pheromones.iter_mut().for_each(|pheromones| *pheromones = *pheromones * 95 / 100);
        ants.sort_unstable();
        self.ants = ants;
    }
}

#[test]
fn ants_bring_food_as_in_a_simulation_without_a_graph() {
    for (threads, mode) in [(1, Mode::Immediate), (2, Mode::Immediate), (2, Mode::Cycle)] {
        let mut ants = Ants::new();
        let mut world = ants.world();
        assert_eq!((world.rings, world.food.len(), world.ants.len()), (2, 16, 8));
        let options = Options { threads, mode, ..Options::default() };
        for round in 1..=40 {
            ants.round(&options);
            world.round();
            let found = ants.world();
            assert_eq!(found, world, "round {round} with {threads} threads, {mode:?}");
            ants.check(&found);
        }
        assert_eq!((world.rings, world.ants.len()), (9, 61));
    }
}
