//! The Social Media case of the Transformation Tool Contest 2018: its models, their changes, and
//! its two queries. For the test and for the bench.

use corebeat_rewrite::{
    Graph, LiveQuery, Node, Options, Rule, Table, Value, parse_rules, query, read_metamodel,
    read_xmi,
};
use std::collections::HashMap;
use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// A post's score is 10 for each comment below it and 1 for each like of such a comment.
const Q1: &str = "
    MATCH (p:Post)
    OPTIONAL MATCH (p)-[:comments*]->(c:Comment)
    OPTIONAL MATCH (c)-[:likedBy]->(u:User)
    RETURN p.id, 10 * count(DISTINCT c) + count(u) AS score, p.timestamp
    ORDER BY score DESC, p.timestamp DESC LIMIT 3;";

/// The users who like a comment, and the friendships between them.
const Q2: &str = "
    MATCH (c:Comment) OPTIONAL MATCH (c)-[:likedBy]->(u:User)
    RETURN c, c.id, c.timestamp, collect(u);
    MATCH (c:Comment)-[:likedBy]->(u:User)-[:friends]->(v:User), (v)-[:likes]->(c)
    RETURN c, u, v;";

/// How a query is evaluated.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum How {
    /// Anew, by so many threads.
    New(usize),
    /// By an update of a live query.
    Live,
}

pub(crate) struct Model {
    graph: Graph,
    pub(crate) rules: Vec<Rule>,
    /// By rule.
    live: Vec<Option<LiveQuery>>,
    /// Nodes by class and identifier.
    nodes: HashMap<(String, String), Node>,
}

impl Model {
    pub(crate) fn read(folder: &Path, size: &str) -> Model {
        let read = |path: PathBuf| read_to_string(&path).unwrap_or_else(|e| panic!("{path:?} {e}"));
        let mut graph = Graph::new();
        let text = read(folder.join("social_network.ecore"));
        let metamodel = read_metamodel("social_network.ecore", &text, &mut graph).unwrap();
        let text = read(folder.join(size).join("initial.xmi"));
        let mut graph = read_xmi("initial.xmi", &text, &metamodel, graph).unwrap();
        let rules = parse_rules("queries", &format!("{Q1}{Q2}"), &HashMap::new(), &mut graph);
        let rules = rules.unwrap();
        let live = rules.iter().map(|_| None).collect();
        let id = graph.schema().find_key("id").unwrap();
        let mut nodes = HashMap::new();
        for node in graph.nodes() {
            let class = graph.schema().node_name(graph.node_type(node).unwrap());
            if let Value::Text(id) = graph.get(node, id) {
                nodes.insert((class.to_owned(), id.to_string()), node);
            }
        }
        Model { graph, rules, live, nodes }
    }

    fn node(&self, classes: &[&str], id: &str) -> Node {
        let key = |class: &&str| self.nodes.get(&((*class).to_owned(), id.to_owned())).copied();
        classes.iter().find_map(key).unwrap_or_else(|| panic!("{classes:?} {id} exists"))
    }

    fn add(&mut self, class: &str, id: &str, values: &[(&str, &str)]) -> Node {
        let of = self.graph.schema().find_node_type(class).unwrap();
        let node = self.graph.add_node(of).unwrap();
        for (key, value) in [("id", id)].iter().chain(values) {
            let key = self.graph.schema().find_key(key).unwrap();
            self.graph.set(node, key, *value).unwrap();
        }
        self.nodes.insert((class.into(), id.into()), node);
        node
    }

    fn link(&mut self, of: &str, from: Node, to: Node) {
        let (of, backwards) = self.graph.schema().find_edge_type(of).unwrap();
        let (from, to) = if backwards { (to, from) } else { (from, to) };
        self.graph.add_edge(of, from, to).unwrap();
    }

    pub(crate) fn change(&mut self, line: &str) {
        let fields: Vec<&str> = line.split('|').collect();
        match fields[..] {
            ["Users", id, name] => drop(self.add("User", id, &[("name", name)])),
            ["Friends", from, to] => {
                let (from, to) = (self.node(&["User"], from), self.node(&["User"], to));
                self.link("friends", from, to);
            }
            ["Likes", user, comment] => {
                let (user, comment) =
                    (self.node(&["User"], user), self.node(&["Comment"], comment));
                self.link("likes", user, comment);
            }
            ["Posts", id, time, content, user] => {
                let time = time.replace(' ', "T");
                let post = self.add("Post", id, &[("timestamp", &time), ("content", content)]);
                let user = self.node(&["User"], user);
                self.link("submitter", post, user);
            }
            ["Comments", id, time, ref content @ .., user, parent] => {
                let (time, content) = (time.replace(' ', "T"), content.join("|"));
                let parent = self.node(&["Post", "Comment"], parent);
                let values = [("timestamp", &*time), ("content", &*content)];
                let comment = self.add("Comment", id, &values);
                self.link("comments", parent, comment);
                let user = self.node(&["User"], user);
                self.link("submitter", comment, user);
            }
            _ => panic!("unknown change {line}"),
        }
    }

    pub(crate) fn table(&mut self, rule: usize, how: How) -> Table {
        let graph = &mut self.graph;
        match (how, &mut self.live[rule]) {
            (How::New(threads), _) => {
                let options = Options { threads, ..Options::default() };
                query(graph, &self.rules[rule], &options).unwrap()
            }
            (How::Live, Some(live)) => {
                live.update(graph).unwrap();
                live.table()
            }
            (How::Live, live) => {
                live.insert(LiveQuery::new(graph, &self.rules[rule]).unwrap()).table()
            }
        }
    }

    pub(crate) fn q1(&mut self, how: How) -> String {
        let ids: Vec<String> = self.table(0, how).rows.iter().map(|row| text(&row[0])).collect();
        ids.join("|")
    }

    /// A comment's score is the sum of the squares of the sizes of the components of friends among
    /// the users who like it.
    pub(crate) fn q2(&mut self, how: How) -> String {
        let mut friends: HashMap<i64, Vec<[i64; 2]>> = HashMap::new();
        for row in self.table(2, how).rows {
            friends.entry(int(&row[0])).or_default().push([int(&row[1]), int(&row[2])]);
        }
        let mut scores: Vec<(u64, String, String)> = Vec::new();
        for row in self.table(1, how).rows {
            let Value::List(users) = &row[3] else { panic!("a list of users") };
            let mut component: HashMap<i64, i64> = users.iter().map(|u| (int(u), int(u))).collect();
            for [a, b] in friends.get(&int(&row[0])).into_iter().flatten() {
                let (a, b) = (component[a], component[b]);
                component.values_mut().filter(|c| **c == a).for_each(|c| *c = b);
            }
            let mut sizes: HashMap<i64, u64> = HashMap::new();
            component.values().for_each(|component| *sizes.entry(*component).or_default() += 1);
            let score = sizes.values().map(|size| size * size).sum();
            scores.push((score, text(&row[2]), text(&row[1])));
        }
        scores.sort_unstable_by(|a, b| b.cmp(a));
        let ids: Vec<&str> = scores.iter().take(3).map(|score| &*score.2).collect();
        ids.join("|")
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::Text(text) => text.to_string(),
        other => panic!("{other} is no text"),
    }
}

fn int(value: &Value) -> i64 {
    match value {
        Value::Int(int) => *int,
        other => panic!("{other} is no integer"),
    }
}
