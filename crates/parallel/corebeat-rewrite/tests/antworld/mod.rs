//! AntWorld: its rules, and the graph with which it begins. A rule cannot choose one of its matches
//! at random, so each ant has a number, its luck, from which the rules compute the field that it
//! searches next. No result depends on the order in which rules find their matches.

use corebeat_rewrite::{
    Apply, Control, Error, Graph, Options, Outcome, Rule, Value, parse_rules, run,
};
use std::collections::HashMap;

/// Prime number by which lucks and fields are scattered.
pub(crate) const PRIME: i64 = 10_007;
/// Number of ants of the first round.
pub(crate) const ANTS: i64 = 8;
/// Number of rings of the first round.
pub(crate) const RINGS: i64 = 2;
/// Food of every tenth field.
pub(crate) const FOOD: i64 = 100;

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

/// The graph and its rules.
pub(crate) struct Ants {
    pub(crate) graph: Graph,
    rules: Vec<Rule>,
}

impl Ants {
    /// A hill with [`RINGS`] rings and [`ANTS`] ants.
    pub(crate) fn new() -> Ants {
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
        ants.run(steps, &Options::default()).unwrap();
        ants
    }

    fn run(
        &mut self,
        steps: impl Iterator<Item = (usize, Apply)>,
        options: &Options,
    ) -> Result<Outcome, Error> {
        let steps = steps.map(|(rule, apply)| Control::Rule(rule, apply)).collect();
        run(&mut self.graph, &self.rules, &Control::Sequence(steps), options)
    }

    /// Applies the rules of a round.
    pub(crate) fn round(&mut self, options: &Options) -> Result<Outcome, Error> {
        self.run((1..).zip(RULES.map(|(_, apply)| apply)), options)
    }
}
