//! AntWorld, the simulation case of the tool contest of GraBaTs 2008: ants search food, carry it to
//! their hill along rings of fields that grow, and lay trails of pheromones. Runs of the rules are
//! compared with a simulation in Rust, round by round.

mod antworld;

use antworld::{ANTS, Ants, FOOD, PRIME, RINGS};
use corebeat_rewrite::{Key, Mode, Node, Options, Value};

impl Ants {
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
            ants.round(&options).unwrap();
            world.round();
            let found = ants.world();
            assert_eq!(found, world, "round {round} with {threads} threads, {mode:?}");
            ants.check(&found);
        }
        assert_eq!((world.rings, world.ants.len()), (9, 61));
    }
}
