//! Graphs and rules from files, and graphs to files.

use clap::Args;
use corebeat_command::{Failure, read_text};
use corebeat_rewrite::{
    Error, Graph, LeftOut, Metamodel, Rule, Value, left_out_of_pairs, parse_rules, read_graphml,
    read_gxl, read_metamodel, read_pairs, read_xmi, write_dot, write_graphml, write_gxl,
    write_pairs, write_xmi,
};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// Largest size of a file of a graph.
const GRAPH_BYTES_MAX: u64 = 16 << 30;
/// Largest size of a file with rules.
const RULES_BYTES_MAX: u64 = 16 << 20;

/// The graph of a command.
#[derive(Args)]
pub(crate) struct GraphSource {
    /// Read the graph from this file: .graphml, .gxl, .xmi, or .csv with pairs of names [default:
    /// an empty graph]
    #[arg(short, long, value_name = "FILE")]
    graph: Option<PathBuf>,
    /// Read the types of a graph in XMI, or of one that is written as XMI, from this Ecore
    /// metamodel
    #[arg(long, value_name = "FILE")]
    metamodel: Option<PathBuf>,
}

/// The rules of a command.
#[derive(Args)]
pub(crate) struct RulesSource {
    /// File with rules in openCypher, which semicolons separate
    #[arg(value_name = "RULES")]
    rules: PathBuf,
    /// Set the parameter $NAME of the rules
    #[arg(short, long = "param", value_name = "NAME=VALUE", value_parser = parameter)]
    parameters: Vec<(String, Value)>,
    /// Find one of the matches that are symmetric, instead of all
    #[arg(long)]
    symmetric_once: bool,
}

/// A parameter: an integer, a number, true or false, or else a text.
fn parameter(text: &str) -> Result<(String, Value), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    let int = value.parse().ok().map(Value::Int);
    let number = int.or_else(|| value.parse().ok().map(Value::Float));
    let value = number.or_else(|| value.parse().ok().map(Value::Bool));
    let text = || Value::from(text.split_once('=').map_or("", |(_, value)| value));
    Ok((name.to_owned(), value.unwrap_or_else(text)))
}

/// The failure for an error of the library.
pub(crate) fn failure(error: Error) -> Failure {
    match error {
        Error::Parallel { .. } => Failure::internal(error),
        _ => Failure::data(error),
    }
}

fn read(path: &Path, bytes_max: u64, expected: &str) -> Result<String, Failure> {
    read_text(&path.display().to_string(), File::open(path), bytes_max, expected)
}

/// The ending of a file's name in lower case.
fn ending(path: &Path) -> String {
    path.extension().map(|e| e.to_string_lossy().to_lowercase()).unwrap_or_default()
}

/// Whether a drawing in this file is a picture.
pub(crate) fn is_picture(path: &Path) -> bool {
    ending(path) == "svg"
}

impl GraphSource {
    pub(crate) fn path(&self) -> Option<&PathBuf> {
        self.graph.as_ref()
    }

    pub(crate) fn read(&self) -> Result<Graph, Failure> {
        self.read_for(None).map(|(graph, _)| graph)
    }

    /// Reads the graph, and the metamodel if the graph or the output is in XMI.
    pub(crate) fn read_for(
        &self,
        output: Option<&Path>,
    ) -> Result<(Graph, Option<Metamodel>), Failure> {
        let is_model = |path: &&Path| ending(path) == "xmi";
        let input = self.graph.as_deref();
        let models = [input.filter(is_model), output.filter(is_model)];
        let metamodel = match (&self.metamodel, models.into_iter().flatten().next()) {
            (None, Some(model)) => {
                let why =
                    format!("{} needs a metamodel; add --metamodel FILE.ecore", model.display());
                return Err(Failure::usage(why));
            }
            (Some(_), None) => {
                let why = "only a graph in XMI (.xmi) has a metamodel; leave out --metamodel";
                return Err(Failure::usage(why));
            }
            (metamodel, _) => metamodel.as_deref(),
        };
        let types = |graph: &mut Graph| -> Result<Option<Metamodel>, Failure> {
            let Some(path) = metamodel else { return Ok(None) };
            let text = read(path, RULES_BYTES_MAX, "metamodel")?;
            let read = read_metamodel(&path.display().to_string(), &text, graph);
            read.map(Some).map_err(failure)
        };
        let Some(path) = input else {
            let mut graph = Graph::new();
            let metamodel = types(&mut graph)?;
            return Ok((graph, metamodel));
        };
        let name = path.display().to_string();
        let text = read(path, GRAPH_BYTES_MAX, "graph")?;
        let graph = match ending(path).as_str() {
            "xmi" => {
                let mut graph = Graph::new();
                let metamodel = types(&mut graph)?.unwrap_or_default();
                let graph = read_xmi(&name, &text, &metamodel, graph).map_err(failure)?;
                return Ok((graph, Some(metamodel)));
            }
            "graphml" | "xml" => read_graphml(&name, &text),
            "gxl" => read_gxl(&name, &text),
            _ => read_pairs(&name, &text),
        };
        let mut graph = graph.map_err(failure)?;
        let metamodel = types(&mut graph)?;
        Ok((graph, metamodel))
    }
}

impl RulesSource {
    pub(crate) fn path(&self) -> &PathBuf {
        &self.rules
    }

    pub(crate) fn read(&self, graph: &mut Graph) -> Result<Vec<Rule>, Failure> {
        let rules = self.read_from(&self.rules, graph)?;
        match self.symmetric_once {
            true => rules.into_iter().map(|r| r.symmetric_once().map_err(failure)).collect(),
            false => Ok(rules),
        }
    }

    /// Reads rules from another file, with the same parameters.
    pub(crate) fn read_from(&self, path: &Path, graph: &mut Graph) -> Result<Vec<Rule>, Failure> {
        let text = read(path, RULES_BYTES_MAX, "file with rules")?;
        let parameters: HashMap<String, Value> = self.parameters.iter().cloned().collect();
        let name = path.display().to_string();
        let rules = parse_rules(&name, &text, &parameters, graph).map_err(failure)?;
        match rules.is_empty() {
            true => Err(Failure::data(format!("{name} has no rules; write MATCH or CREATE"))),
            false => Ok(rules),
        }
    }
}

/// The text that a writer produces.
pub(crate) fn text(write: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    write(&mut bytes).map_err(Failure::data)?;
    String::from_utf8(bytes).map_err(Failure::internal)
}

/// Writes a graph in the format that the ending of a file's name states.
pub(crate) fn written(
    graph: &Graph,
    metamodel: Option<&Metamodel>,
    path: &Path,
) -> Result<String, Failure> {
    if let (Some(metamodel), "xmi") = (metamodel, ending(path).as_str()) {
        return text(|to| write_xmi(graph, metamodel, to));
    }
    match ending(path).as_str() {
        "dot" | "gv" => text(|to| write_dot(graph, to)),
        "csv" => text(|to| write_pairs(graph, to)),
        "gxl" => text(|to| write_gxl(graph, to)),
        _ => text(|to| write_graphml(graph, to)),
    }
}

/// The parts of a graph that the format of a file leaves out, if there are any. A drawing is no
/// file of the graph.
pub(crate) fn left_out(graph: &Graph, path: &Path) -> Option<LeftOut> {
    let is_pairs = ending(path) == "csv";
    is_pairs.then(|| left_out_of_pairs(graph)).filter(|left_out| !left_out.is_nothing())
}

/// Requires a known ending of the file to which a graph is written.
pub(crate) fn require_format(path: &Path) -> Result<(), Failure> {
    match ending(path).as_str() {
        "dot" | "gv" | "csv" | "graphml" | "gxl" | "xmi" | "xml" => Ok(()),
        _ => {
            let path = path.display();
            Err(Failure::usage(format!("{path} must end in .graphml, .gxl, .xmi, .csv or .dot")))
        }
    }
}
