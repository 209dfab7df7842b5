//! Graph transformation: rules that find patterns in a typed graph, and change the graph, on all
//! cores.
//!
//! Place in the loop: parallel; uses `corebeat-lpel` for tasks, `corebeat-sync` for locks, and
//! `corebeat-cypher` to parse rules.
//!
//! # Example
//!
//! A rule in openCypher introduces people who have a common friend. It is applied until no match is
//! left.
//!
//! ```
//! use corebeat_rewrite::{Apply, Control, Graph, Options, parse_rules, query, run};
//! use std::collections::HashMap;
//!
//! let mut graph = Graph::new();
//! let text = "
//!     CREATE (a:Person {name: 'Ada'})-[:KNOWS]->(:Person {name: 'Bob'})-[:KNOWS]->(:Person);
//!     MATCH (a)-[:KNOWS]->(b)-[:KNOWS]->(c) WHERE NOT (a)-[:KNOWS]->(c) CREATE (a)-[:KNOWS]->(c);
//!     MATCH (a {name: 'Ada'})-[:KNOWS]->(x) RETURN count(x);";
//! let rules = parse_rules("people", text, &HashMap::new(), &mut graph)?;
//! let steps = [Control::Rule(0, Apply::One), Control::Rule(1, Apply::Exhaustively)];
//! run(&mut graph, &rules, &Control::Sequence(steps.into()), &Options::default())?;
//! let table = query(&mut graph, &rules[2], &Options::default())?;
//! assert_eq!(table.rows[0][0].to_string(), "2");
//! # Ok::<(), corebeat_rewrite::Error>(())
//! ```
//!
//! # Model
//!
//! The parallel runs follow Imre, Mezei, *Parallel Graph Transformations on Multicore Systems*,
//! 2012.
//!
//! ```text
//!   text  --> cypher --.                 Graph --> statistics --.
//!                       |--> Rule ------------------------------|--> Plan
//!   RuleBuilder -------'                                        |
//!                                                               v
//!   starts of the search --> task 0: matcher --> locks --> check again --> rewriter --> Log
//!                       `--> task 1: matcher --> ...
//! ```
//!
//! - A [`Graph`] has nodes and edges of types ([`Schema`]) with inheritance and attributes
//!   ([`Value`]). It is a set of columns of atomic words, with a list of edges for each node,
//!   direction and type.
//! - A [`Rule`] has a left side (nodes, edges, conditions, patterns that must not be found) and a
//!   right side (create, delete, retype, set), or it is a [`query`]. [`parse_rules`] reads rules in
//!   openCypher, which [`rules!`] checks when the program is compiled, and [`RuleBuilder`]
//!   constructs them. [`Matching`] states which elements of a match
//!   differ, and [`Semantics`] what happens to the edges of a deleted node.
//! - Graphs are read from pairs of names ([`read_pairs`]), GraphML ([`read_graphml`]), GXL
//!   ([`read_gxl`]) and models of EMF ([`read_metamodel`], [`read_xmi`]), and written as pairs,
//!   GraphML, GXL, models ([`write_xmi`]), drawings for Graphviz ([`write_dot`]) and pictures
//!   ([`write_svg`]).
//! - A plan is the order in which the elements of a pattern are matched. It is computed from the
//!   statistics of the graph, and again when the elements of the graph or of a type have doubled or
//!   halved (`a_plan_is_computed_again_when_the_elements_of_a_type_have_doubled`). The graph keeps
//!   it between runs. [`explain`] prints it, and [`explain_drawn`] also draws it.
//! - [`run`] applies rules in the order of a [`Control`], each as [`Apply`] states. With several
//!   [threads](Options::threads), tasks take starting nodes from a counter. In [`Mode::Cycle`], all
//!   tasks match and then one thread rewrites, as in the paper; in [`Mode::Immediate`], the task
//!   that completes a match rewrites at once, while other tasks match.
//! - An exhaustive run searches at all starts, and then only around the changes of each pass,
//!   unless there are very many (module `agenda`). So does a [`LiveQuery`], which keeps its
//!   results. The module `affected` proves that no affected start is missed.
//! - The locks are optimistic: a search takes none. A task locks all nodes of a complete match or
//!   none, and checks the match again. The module `lock` has the protocol and the table of its
//!   memory orderings.
//!
//! # Invariants
//!
//! 1. The matcher finds exactly the matches that a naive matcher finds, whatever the plan and the
//!    number of threads (`matcher_finds_the_matches_of_a_naive_one`).
//!    Of symmetric matches, it finds one if that is requested (`symmetric_matches_are_found_once`).
//! 2. An application has the effect of a naive rewriter on one match
//!    (`rewriter_applies_rules_as_a_naive_one`).
//! 3. Every parallel run corresponds to a sequential order of its rewrites: the [`Log`] of the run,
//!    replayed on the original graph, finds each match at its turn and gives an isomorphic graph
//!    (`parallel_runs_equal_their_replay`, `deterministic_parallel_runs_equal_their_replay`).
//! 4. A run that ends without a limit leaves no match (the same tests;
//!    `passes_search_around_changes_of_each_kind`, with planted faults;
//!    `refused_starts_are_searched_in_the_next_pass`).
//! 5. Two tasks never change the same node, and no task reads a locked node that another task
//!    changes (`loom_locks_exclude_writers`, `loom_readers_end_before_a_writer_begins`; planted
//!    faults in `loom_lock_faults_are_detected`).
//! 6. An application whose expressions have no value changes nothing
//!    (`faults_of_expressions_change_nothing`).
//! 7. After changes of any kind, a [`LiveQuery`] has the table of a new evaluation
//!    (`live_queries_equal_new_ones`, `live_queries_equal_new_ones_after_a_replay`), and an update
//!    searches around the changes (`updates_search_around_changes`).
//! 8. The order of rows and the rounding of sums depend neither on the plan nor on the threads
//!    (`float_sums_are_exact`, `sums_beyond_the_range_of_floats_are_exact_until_they_are_rounded`;
//!    the tests of 7, in which plans and threads differ).
//! 9. A damaged file or text is an error with its place, and no panic
//!    (the tests `fuzz`, such as `damaged_rules_do_not_panic`; `mistakes_name_their_place`).
//!
//! The tests `ttc2018`, `classic`, `ants` and `train` check cases with known results: the Social
//! Media case of the Transformation Tool Contest 2018 (with new and with live queries), Sierpinski
//! triangles, mutual exclusion, AntWorld, the Train Benchmark.
//!
//! # Memory
//!
//! An edge takes 18 bytes, and 8 bytes in each of two lists; a list that had several edges has 8
//! bytes of its own and up to half as much room again. [`Graph::compact`] removes that room. A node
//! takes 10 bytes, 8 bytes for each type of its edges, and 8 bytes for its lock once a run has used
//! locks. The words of a graph keep their type and their address until the graph is dropped. A task
//! that reads an outdated word reads a number that the check under the locks rejects, and never
//! freed memory. For this reason this crate needs no grace periods, and does not use
//! corebeat-reclaim.
//!
//! # Failure
//!
//! Functions return [`Error`]. A failed run keeps the rewrites before the failure, and the graph is
//! consistent, also after [`Options::stop`]. Numbers of elements and words that would exceed their
//! limits fail before the application changes the graph; memory that the system cannot allocate
//! ends the program.
//!
//! # Limits
//!
//! A graph has at most 2^31 nodes, edges and words of lists. A rule has at most [`ELEMENTS_MAX`]
//! elements. Texts and lists, also those that an expression computes, are stored once in a graph,
//! and stay until the graph is dropped. A node has one type. A rule whose facts the locks of its
//! nodes do not cover (paths, conditions on neighbours in `NOT`, optional parts) is matched in
//! parallel, and its rewrites take turns. A run with several threads must not be started inside a
//! task of LPEL. If a change affects a part of a pattern that no edge connects with the start, a
//! live query is evaluated anew, and an exhaustive run searches at all starts.

mod affected;
mod agenda;
mod aggregate;
mod array;
mod builder;
mod change;
mod compile;
mod diagram;
mod error;
mod expression;
mod format;
mod graph;
mod live;
mod lock;
mod log;
mod matcher;
#[cfg(all(test, loom))]
mod model;
mod parallel;
mod plan;
mod progress;
mod query;
mod rewriter;
mod rule;
mod run;
mod schema;
mod statistics;
mod store;
mod sum;
mod symmetry;
mod value;

pub use builder::RuleBuilder;
pub use compile::parse_rules;
pub use error::Error;
pub use format::{
    LeftOut, Metamodel, left_out_of_pairs, read_graphml, read_gxl, read_metamodel, read_pairs,
    read_xmi, write_dot, write_graphml, write_gxl, write_pairs, write_svg, write_xmi,
};
pub use graph::{Edge, Element, Graph, Node};
pub use live::LiveQuery;
pub use log::{Log, Replay};
pub use progress::Progress;
pub use query::{Table, explain, explain_drawn, query};
pub use rule::{ELEMENTS_MAX, Matching, Rule, SYMMETRIES_MAX, Semantics};
pub use run::{Apply, Control, Mode, Options, Outcome, apply_exhaustively, run};
pub use schema::{EdgeType, Key, NodeType, Schema, TYPES_MAX};
pub use value::Value;

/// A text with rules, which is checked when the program is compiled.
///
/// The macro returns its text. A mistake in the syntax, or an element that no pattern defines, is
/// an error of the compiler, which shows the line of the text and a mark below the place.
/// Parameters belong to a graph: [`parse_rules`] checks them. It also checks types and attributes,
/// unless the macro has a schema.
///
/// ```
/// use corebeat_rewrite::{Graph, parse_rules, rules};
/// use std::collections::HashMap;
///
/// let text = rules!("CREATE (a:Person)-[:KNOWS]->(b:Person); MATCH (a:Person) RETURN count(a)");
/// let rules = parse_rules("people", text, &HashMap::new(), &mut Graph::new())?;
/// assert_eq!(rules.len(), 2);
/// # Ok::<(), corebeat_rewrite::Error>(())
/// ```
///
/// A schema is a text that creates an element of each type, with its attributes. With a schema, a
/// type or an attribute that the schema lacks is an error of the compiler, also where a rule
/// creates an element. The values of the attributes have no meaning. Rules in several places share
/// a schema through a macro:
///
/// ```
/// macro_rules! people {
///     ($rules:literal) => {
///         corebeat_rewrite::rules!(
///             $rules,
///             schema = "CREATE (:Person {name: ''})-[:KNOWS {since: 0}]->(:Person)"
///         )
///     };
/// }
///
/// people!("MATCH (a:Person)-[k:KNOWS]->(b) WHERE k.since < 2000 RETURN a.name, b.name");
/// ```
///
/// ```compile_fail
/// corebeat_rewrite::rules!("MATCH (a:Persn) RETURN a", schema = "CREATE (:Person)");
/// ```
///
/// ```compile_fail
/// corebeat_rewrite::rules!("MATCH (a)-[:KNOWS]->(b RETURN a");
/// ```
///
/// ```compile_fail
/// corebeat_rewrite::rules!("MATCH (a)-[:KNOWS]->(b) RETURN c");
/// ```
pub use corebeat_rewrite_macro::rules;

/// The Rust code of the book is compiled and run as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/rewrite.md")]
pub struct Book;
