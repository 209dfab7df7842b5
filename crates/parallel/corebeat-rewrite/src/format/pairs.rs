//! Edges as pairs of names.

use super::{EDGE_TYPE, ID, NODE_TYPE, finished, mistake};
use crate::error::Error;
use crate::graph::{Graph, Node};
use std::borrow::Cow;
use std::collections::HashMap;

/// Separators of the two names, in the order in which they are tried.
const SEPARATORS: [char; 5] = ['\t', '|', ';', ',', ' '];

/// Reads a graph from lines with the names of a source and a target, such as `3,7`. The separator
/// is a tab, `|`, `;`, `,` or a space, whichever the first line has. A third field is the type of
/// the edge. All nodes have the type `Node` and their name as the attribute `id`; edges without a
/// type have the type `EDGE`.
///
/// A field in double quotes may contain the separator, line breaks, and quotes, which are doubled
/// (RFC 4180): `"a, ""b""",c`. White space around other fields is no part of them, and empty ones
/// are skipped. A line that begins with `#` is a comment, unless quotes enclose its first field. A
/// first line that has the word `source`, `sourceId` or `START_ID` names the columns: `target`,
/// `targetId` or `END_ID`, and `type` are the others, in any order.
///
/// # Errors
/// [`Error::Read`] for a line without two names, for a quote that is not closed, for text after a
/// closing quote, and for other columns; [`Error::Full`].
pub fn read_pairs(name: &str, text: &str) -> Result<Graph, Error> {
    let mut graph = Graph::new();
    let node_type = graph.schema_mut().node_type(NODE_TYPE, &[])?;
    let edge_type = graph.schema_mut().edge_type(EDGE_TYPE, &[])?;
    let id = graph.schema_mut().key(ID)?;
    let mut names: HashMap<Cow<str>, Node> = HashMap::new();
    let mut separator = None;
    let (mut rest, mut number) = (text.trim_start_matches('\u{feff}'), 1);
    let mut fields = Vec::new();
    let mut columns = COLUMNS.to_vec();
    while !rest.is_empty() {
        let line = rest.split_once('\n').map_or(rest, |(line, _)| line);
        if line.trim().is_empty() || line.trim_start().starts_with('#') {
            (rest, number) = (rest[line.len()..].strip_prefix('\n').unwrap_or(""), number + 1);
            continue;
        }
        let is_first = separator.is_none();
        let separator = *separator.get_or_insert_with(|| separator_of(rest));
        fields.clear();
        let after = read_fields(rest, separator, &mut fields);
        let after = after.map_err(|why| mistake(name, number, why))?;
        let read = &rest[..rest.len() - after.len()];
        let at = number;
        (rest, number) = (after, number + read.matches('\n').count());
        if is_first && fields.iter().any(|field| column(field) == Some(0)) {
            columns = columns_of(&fields).map_err(|why| mistake(name, at, why))?;
            continue;
        }
        if columns != COLUMNS {
            if fields.len() != columns.len() {
                let [own, all] = [fields.len(), columns.len()];
                let why = format!("the line has {own} of {all} fields; the first line names them");
                return Err(mistake(name, at, why));
            }
            let mut ordered = vec![Cow::Borrowed(""); columns.len()];
            fields.drain(..).zip(&columns).for_each(|(field, at)| ordered[*at] = field);
            fields = ordered;
        }
        let mut fields = fields.drain(..);
        let (Some(from), Some(to)) = (fields.next(), fields.next()) else {
            let why = format!("expected two names with '{separator}' between them");
            return Err(mistake(name, at, why));
        };
        let of = match fields.next() {
            Some(of) => graph.schema_mut().edge_type(&of, &[])?,
            None => edge_type,
        };
        if fields.next().is_some() {
            return Err(mistake(name, at, "a line has a source, a target and a type"));
        }
        let mut node = |graph: &mut Graph, name: Cow<'_, str>| match names.get(&name) {
            Some(node) => Ok(*node),
            None => {
                let node = graph.add_node(node_type)?;
                graph.set(node, id, &*name)?;
                names.insert(name.into_owned().into(), node);
                Ok::<_, Error>(node)
            }
        };
        let (from, to) = (node(&mut graph, from)?, node(&mut graph, to)?);
        graph.add_edge(of, from, to)?;
    }
    Ok(finished(graph))
}

/// The separator of a text, by its first line, outside of quotes. White space at the ends of the
/// line separates nothing.
fn separator_of(text: &str) -> char {
    let (mut found, mut pending) = ([false; SEPARATORS.len()], [false; SEPARATORS.len()]);
    let (mut is_quoted, mut begins) = (false, true);
    for c in text.trim_start().chars() {
        match c {
            // A doubled quote ends the quotes and begins them again.
            '"' if is_quoted || begins => is_quoted = !is_quoted,
            _ if is_quoted => {}
            '\n' => break,
            _ => {
                let at = SEPARATORS.iter().position(|separator| *separator == c);
                at.into_iter().for_each(|at| pending[at] = true);
                begins = at.is_some();
            }
        }
        if is_quoted || !c.is_whitespace() {
            (0..SEPARATORS.len()).for_each(|at| found[at] |= std::mem::take(&mut pending[at]));
        }
    }
    let at = found.iter().position(|found| *found);
    at.map_or(',', |at| SEPARATORS[at])
}

/// Reads the fields of one line, which has more lines of the text if quotes enclose line breaks.
/// Returns the rest of the text.
fn read_fields<'t>(
    mut text: &'t str,
    separator: char,
    fields: &mut Vec<Cow<'t, str>>,
) -> Result<&'t str, &'static str> {
    loop {
        let is_space = |c: char| c.is_whitespace() && c != '\n' && c != separator;
        let field = text.trim_start_matches(is_space);
        text = match field.strip_prefix('"') {
            Some(quoted) => {
                let (field, after) = unquoted(quoted)?;
                fields.push(field);
                after.trim_start_matches(is_space)
            }
            None => {
                let (field, after) =
                    field.split_at(field.find(['\n', separator]).unwrap_or(field.len()));
                let field = field.trim();
                if !field.is_empty() {
                    fields.push(field.into());
                }
                after
            }
        };
        let mut rest = text.chars();
        match rest.next() {
            None | Some('\n') => return Ok(rest.as_str()),
            Some(next) if next == separator => text = rest.as_str(),
            Some(_) => return Err("a separator must follow the quotes around a name"),
        }
    }
}

/// Reads a field up to the quote that ends it. Returns the rest of the text after that quote.
fn unquoted(text: &str) -> Result<(Cow<'_, str>, &str), &'static str> {
    let mut end = 0;
    loop {
        let quote = text[end..].find('"').ok_or("a quote is not closed")?;
        end += quote;
        if !text[end + 1..].starts_with('"') {
            break;
        }
        end += 2;
    }
    let (field, after) = (&text[..end], &text[end + 1..]);
    match field.contains('"') {
        true => Ok((field.replace("\"\"", "\"").into(), after)),
        false => Ok((field.into(), after)),
    }
}

/// The usual columns: source, target and type.
const COLUMNS: [usize; 3] = [0, 1, 2];

/// The number in [`COLUMNS`] of a column, by the words of its name: `resource` is not the word
/// `source`.
fn column(name: &str) -> Option<usize> {
    let name = name.to_lowercase();
    let known = [&["source", "sourceid"][..], &["target", "targetid"], &["type"]];
    let id = ["start_id", "end_id"].iter().position(|id| name.contains(id));
    id.or_else(|| {
        let mut words = name.split(|c: char| !c.is_alphanumeric());
        words.find_map(|word| known.iter().position(|names| names.contains(&word)))
    })
}

/// The number in [`COLUMNS`] of each column that a first line names.
fn columns_of(names: &[Cow<'_, str>]) -> Result<Vec<usize>, String> {
    let number = |name: &Cow<'_, str>| {
        let why = || format!("the column {name} is none of source, target and type; remove it");
        column(name).ok_or_else(why)
    };
    let columns = names.iter().map(number).collect::<Result<Vec<usize>, String>>()?;
    let is_once = |of: &usize| columns.iter().filter(|column| *column == of).count() == 1;
    match columns.iter().all(is_once) && columns.contains(&0) && columns.contains(&1) {
        true if columns == COLUMNS[..2] => Ok(COLUMNS.to_vec()),
        true => Ok(columns),
        false => Err("the first line needs one column source and one column target".into()),
    }
}
