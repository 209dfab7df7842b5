//! Pictures of small graphs.
//!
//! The layout is layered, as in Sugiyama, Tagawa, Toda, *Methods for Visual Understanding of
//! Hierarchical System Structures*, 1981: edges lead downwards, except one of each cycle; an edge
//! over several layers has a bend in each of them; bends and nodes of a layer are ordered by the
//! mean of their neighbours.

use super::write::{edge_type, name, node_type, xml};
use crate::graph::Graph;
use std::collections::HashMap;
use std::io::{self, Write};

/// Largest numbers of nodes and edges of a picture: larger ones are not legible.
const NODES_MAX: u64 = 300;
const EDGES_MAX: u64 = 1000;
/// Largest number of characters of a label.
const LABEL_MAX: usize = 40;
/// Number of times that the layers are ordered, and that they are moved.
const SWEEPS: usize = 8;

/// Lengths in pixels: the width of a character, the height of a box, the distance of boxes in a
/// layer, the distance of layers, and that of parallel edges.
const CHARACTER: f64 = 7.3;
const HEIGHT: f64 = 20.0;
const GAP: f64 = 24.0;
const LAYER: f64 = 84.0;
const PARALLEL: f64 = 14.0;

/// Writes a picture as SVG.
///
/// # Errors
/// Those of the writer; [`io::ErrorKind::InvalidData`] if the graph has more than 300 nodes or 1000
/// edges.
pub fn write_svg(graph: &Graph, to: &mut impl Write) -> io::Result<()> {
    let (nodes, edges) = (graph.node_count(), graph.edge_count());
    if nodes > NODES_MAX || edges > EDGES_MAX {
        let why = format!(
            "a picture has at most {NODES_MAX} nodes and {EDGES_MAX} edges, and the graph has \
             {nodes} and {edges}; write .dot, and draw the graph with Graphviz"
        );
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    let mut drawing = Drawing::new(graph);
    drawing.order();
    drawing.place();
    drawing.write(to)
}

/// A node, or a bend of an edge.
struct Point {
    layer: usize,
    /// The middle.
    x: f64,
    width: f64,
    /// None for a bend.
    label: Option<String>,
    /// The points in the layers above and below to which lines lead.
    above: Vec<usize>,
    below: Vec<usize>,
}

/// An edge.
struct Line {
    /// The source, the bends and the target.
    points: Vec<usize>,
    label: String,
    /// Distance from the middle of parallel edges.
    offset: f64,
}

struct Drawing {
    points: Vec<Point>,
    /// The points of each layer, from left to right.
    layers: Vec<Vec<usize>>,
    lines: Vec<Line>,
}

fn label(text: &str) -> String {
    let visible = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    match text.chars().count() > LABEL_MAX {
        true => text.chars().take(LABEL_MAX - 1).map(visible).chain(['…']).collect(),
        false => text.chars().map(visible).collect(),
    }
}

fn width(label: &str) -> f64 {
    label.chars().count() as f64 * CHARACTER
}

/// The nodes, by index, in an order in which few edges lead backwards: those that close a cycle.
fn downwards(count: usize, ends: &[(usize, usize)]) -> Vec<usize> {
    let mut targets = vec![Vec::new(); count];
    ends.iter().for_each(|(from, to)| targets[*from].push(*to));
    // Nodes without incoming edges first: the others are below them.
    let mut is_target = vec![false; count];
    ends.iter().filter(|(from, to)| from != to).for_each(|(_, to)| is_target[*to] = true);
    let mut starts: Vec<usize> = (0..count).collect();
    starts.sort_by_key(|node| is_target[*node]);
    let (mut is_seen, mut done) = (vec![false; count], Vec::new());
    for start in starts {
        let mut open = vec![(start, 0)];
        if std::mem::replace(&mut is_seen[start], true) {
            continue;
        }
        while let Some((node, next)) = open.last_mut() {
            match targets[*node].get(*next).copied() {
                Some(target) => {
                    *next += 1;
                    if !std::mem::replace(&mut is_seen[target], true) {
                        open.push((target, 0));
                    }
                }
                None => done.extend(open.pop().map(|(node, _)| node)),
            }
        }
    }
    done.reverse();
    done
}

impl Drawing {
    fn new(graph: &Graph) -> Drawing {
        let index: HashMap<_, usize> =
            graph.nodes().enumerate().map(|(index, node)| (node, index)).collect();
        let edges: Vec<_> = graph.edges().filter_map(|e| Some((e, graph.ends(e)?))).collect();
        let ends: Vec<(usize, usize)> =
            edges.iter().map(|(_, (from, to))| (index[from], index[to])).collect();
        let order = downwards(index.len(), &ends);
        let mut place = vec![0; index.len()];
        order.iter().enumerate().for_each(|(at, node)| place[*node] = at);
        let upper_first =
            |(a, b): (usize, usize)| if place[a] < place[b] { (a, b) } else { (b, a) };
        let mut below = vec![Vec::new(); index.len()];
        for (upper, lower) in ends.iter().copied().map(upper_first) {
            below[upper].push(lower);
        }
        let mut layer = vec![0; index.len()];
        for node in order {
            for lower in below[node].iter().filter(|lower| **lower != node) {
                layer[*lower] = layer[*lower].max(layer[node] + 1);
            }
        }
        let mut drawing = Drawing { points: Vec::new(), layers: Vec::new(), lines: Vec::new() };
        for (index, node) in graph.nodes().enumerate() {
            let text = label(&format!("{} {}", node_type(graph, node), name(graph, node)));
            drawing.add(layer[index], width(&text) + 12.0, Some(text));
        }
        let mut parallel = HashMap::<(usize, usize), usize>::new();
        ends.iter().for_each(|ends| *parallel.entry(upper_first(*ends)).or_default() += 1);
        let mut drawn = HashMap::<(usize, usize), usize>::new();
        for ((edge, _), ends) in edges.iter().zip(&ends) {
            let pair = upper_first(*ends);
            let number = drawn.entry(pair).or_default();
            let offset = (*number as f64 - (parallel[&pair] - 1) as f64 / 2.0) * PARALLEL;
            *number += 1;
            let points = drawing.connect(pair, pair != *ends);
            drawing.lines.push(Line { points, label: label(edge_type(graph, *edge)), offset });
        }
        drawing
    }

    fn add(&mut self, layer: usize, width: f64, label: Option<String>) -> usize {
        let point = self.points.len();
        self.layers.resize_with(self.layers.len().max(layer + 1), Vec::new);
        self.layers[layer].push(point);
        let (above, below) = (Vec::new(), Vec::new());
        self.points.push(Point { layer, x: 0.0, width, label, above, below });
        point
    }

    /// The points of an edge, with a bend in each layer between its nodes.
    fn connect(&mut self, (upper, lower): (usize, usize), is_reversed: bool) -> Vec<usize> {
        let mut points = vec![upper];
        for layer in self.points[upper].layer + 1..self.points[lower].layer {
            points.push(self.add(layer, 0.0, None));
        }
        points.push(lower);
        if upper != lower {
            for pair in points.windows(2) {
                self.points[pair[0]].below.push(pair[1]);
                self.points[pair[1]].above.push(pair[0]);
            }
        }
        if is_reversed {
            points.reverse();
        }
        points
    }

    /// Orders the points of each layer by the mean of their neighbours, downwards and upwards.
    fn order(&mut self) {
        self.number();
        for sweep in 0..SWEEPS {
            let is_down = sweep % 2 == 0;
            for index in 0..self.layers.len() {
                let index = if is_down { index } else { self.layers.len() - 1 - index };
                let mut layer = std::mem::take(&mut self.layers[index]);
                let mean =
                    |point: &usize| self.mean(*point, is_down).unwrap_or(self.points[*point].x);
                layer.sort_by(|a, b| mean(a).total_cmp(&mean(b)));
                self.layers[index] = layer;
                self.number();
            }
        }
    }

    /// Sets each point to its number in its layer.
    fn number(&mut self) {
        for layer in &self.layers {
            layer.iter().enumerate().for_each(|(at, point)| self.points[*point].x = at as f64);
        }
    }

    /// The mean of the neighbours in the layer above or below.
    fn mean(&self, point: usize, of_above: bool) -> Option<f64> {
        let own = &self.points[point];
        let near = if of_above { &own.above } else { &own.below };
        let sum: f64 = near.iter().map(|near| self.points[*near].x).sum();
        (!near.is_empty()).then(|| sum / near.len() as f64)
    }

    /// Moves the points of each layer towards the mean of their neighbours, side by side.
    fn place(&mut self) {
        for sweep in 0..=SWEEPS {
            let is_down = sweep % 2 == 0;
            for index in 0..self.layers.len() {
                let index = if is_down { index } else { self.layers.len() - 1 - index };
                let mut right = f64::NEG_INFINITY;
                let (mut moved, layer) = (0.0, self.layers[index].clone());
                for point in &layer {
                    let wanted = match sweep {
                        // The numbers of points are no positions.
                        0 => 0.0,
                        _ => self.mean(*point, is_down).unwrap_or(self.points[*point].x),
                    };
                    let half = self.points[*point].width / 2.0;
                    let x = wanted.max(right + half + GAP);
                    (right, moved) = (x + half, moved + x - wanted);
                    self.points[*point].x = x;
                }
                let back = moved / layer.len().max(1) as f64;
                layer.iter().for_each(|point| self.points[*point].x -= back);
            }
        }
        let left = self.points.iter().map(|p| p.x - p.width / 2.0).fold(f64::INFINITY, f64::min);
        self.points.iter_mut().for_each(|point| point.x += GAP - left);
    }

    fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let right = self.points.iter().map(|p| p.x + p.width / 2.0).fold(0.0, f64::max);
        // Loops and labels of edges are beside their points.
        let labels = self.lines.iter().map(|line| width(&line.label)).fold(0.0, f64::max);
        let (wide, high) = (right + labels + 2.0 * GAP, self.layers.len() as f64 * LAYER);
        writeln!(
            to,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{wide:.0}\" height=\"{high:.0}\" \
             viewBox=\"0 0 {wide:.0} {high:.0}\" font-family=\"monospace\" font-size=\"12\">\n\
             <defs><marker id=\"arrow\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" markerWidth=\"8\" \
             markerHeight=\"8\" orient=\"auto\"><path d=\"M0 0L8 4L0 8z\" fill=\"#555\"/></marker></defs>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>"
        )?;
        self.lines.iter().try_for_each(|line| self.write_line(line, to))?;
        for point in &self.points {
            let Some(label) = &point.label else { continue };
            let (left, y) = (point.x - point.width / 2.0, middle(point.layer));
            writeln!(
                to,
                "<rect x=\"{left:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{HEIGHT}\" rx=\"3\" \
                 fill=\"#fdf1e3\" stroke=\"#777\"/>\n<text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                y - HEIGHT / 2.0,
                point.width,
                left + 6.0,
                y + 4.0,
                xml(label)
            )?;
        }
        writeln!(to, "</svg>")?;
        to.flush()
    }

    /// Writes an edge with its label. The edge ends at the borders of its boxes.
    fn write_line(&self, line: &Line, to: &mut impl Write) -> io::Result<()> {
        let [first, .., last] = line.points[..] else { return Ok(()) };
        let is_loop = first == last;
        let (first, last) = (&self.points[first], &self.points[last]);
        let (path, x, y) = if is_loop {
            let (x, y) = (first.x + first.width / 2.0, middle(first.layer));
            let out = 16.0 + line.offset.abs();
            let path = format!("M{x:.1} {:.1}q{out:.1} -4 {out:.1} 5t-{out:.1} 5", y - 5.0);
            (path, x + out + 2.0, y + 4.0)
        } else {
            let is_down = first.layer < last.layer;
            let border = |point: &Point, is_lower: bool| {
                let half = if point.label.is_none() { 0.0 } else { HEIGHT / 2.0 };
                middle(point.layer) + if is_lower { half } else { -half }
            };
            let mut path = String::new();
            for (at, point) in line.points.iter().map(|point| &self.points[*point]).enumerate() {
                let is_lower = (at == 0) == is_down;
                let (x, y) = (point.x + line.offset, border(point, is_lower));
                path += &format!("{}{x:.1} {y:.1}", if at == 0 { 'M' } else { 'L' });
            }
            let next = &self.points[line.points[1]];
            let (x, y) =
                ((first.x + next.x) / 2.0, f64::midpoint(middle(first.layer), middle(next.layer)));
            (path, x + line.offset + 4.0, y + 4.0 + line.offset)
        };
        writeln!(
            to,
            "<path d=\"{path}\" fill=\"none\" stroke=\"#555\" marker-end=\"url(#arrow)\"/>\n\
             <text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"#555\">{}</text>",
            xml(&line.label)
        )
    }
}

/// The middle of the boxes of a layer.
fn middle(layer: usize) -> f64 {
    (layer as f64 + 0.5) * LAYER
}
