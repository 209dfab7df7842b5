//! What tasks cost, from the logs of a run.

use super::line::{self, Line};
use super::{LogError, failed, log_path, map_path};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// A longer line is none of ours: it would list more than a million streams.
const LINE_MAX: u64 = 32 << 20;

/// For each name, how long a task of that name ran in all, on average, in nanoseconds: what
/// [`Measured`](crate::placement::Measured) places tasks by. Tasks without a name are left out.
///
/// `folder` is where a [`TextLog`](crate::monitor::TextLog) was written to.
///
/// # Errors
///
/// A file cannot be read, or has a line that is not as it should be.
pub fn costs(folder: impl AsRef<Path>) -> Result<HashMap<String, u64>, LogError> {
    let folder = folder.as_ref();
    let mut kinds = Kinds::default();
    let path = map_path(folder);
    each_line(&path, open(&path)?, |line| kinds.add(line))?;
    let mut streams = Vec::new();
    for worker in 0.. {
        let path = log_path(folder, worker);
        let log = match open(&path) {
            Err(LogError::File { source, .. }) if worker > 0 && source.kind() == io::ErrorKind::NotFound => {
                break;
            }
            log => log?,
        };
        each_line(&path, log, |text| {
            if let Line::Dispatch(dispatch) = line::parse(text, &mut streams)? {
                kinds.count(dispatch.task, dispatch.execution_ns);
            }
            Ok(())
        })?;
    }
    Ok(kinds.means())
}

fn open(path: &Path) -> Result<File, LogError> {
    File::open(path).map_err(|e| failed(path, e))
}

/// Calls `f` for each line, without its end.
fn each_line(
    path: &Path,
    file: impl Read,
    mut f: impl FnMut(&str) -> Result<(), &'static str>,
) -> Result<(), LogError> {
    let mut file = BufReader::new(file);
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let length = (&mut file).take(LINE_MAX).read_until(b'\n', &mut line).map_err(|e| failed(path, e))?;
        if length == 0 {
            break;
        }
        let told = match line.split_last() {
            Some((b'\n', line)) => std::str::from_utf8(line).map_err(|_| "it is not UTF-8").and_then(&mut f),
            _ => Err("it is cut short"),
        };
        told.map_err(|why| LogError::Line { path: path.into(), line: number, why })?;
    }
    Ok(())
}

/// Tasks by name.
#[derive(Default)]
struct Kinds {
    /// Each name's place in `kinds`.
    places: HashMap<String, usize>,
    kinds: Vec<Kind>,
    /// Which kind a task is of.
    tasks: HashMap<u64, usize>,
}

#[derive(Default)]
struct Kind {
    tasks: u64,
    total_ns: u64,
}

impl Kinds {
    /// Takes in a line `TASK NAME`.
    fn add(&mut self, line: &str) -> Result<(), &'static str> {
        let (task, name) = line.split_once(' ').ok_or("expected a task's number and its name")?;
        let task = line::parse_number(task).ok_or("expected a task's number")?;
        let name = unescape(name).ok_or("a backslash stands before `n`, `r` or a backslash")?;
        let place = *self.places.entry(name).or_insert_with(|| {
            self.kinds.push(Kind::default());
            self.kinds.len() - 1
        });
        if self.tasks.insert(task, place).is_some() {
            return Err("this task has a name already");
        }
        self.kinds[place].tasks += 1;
        Ok(())
    }

    fn count(&mut self, task: u64, execution_ns: u64) {
        if let Some(&place) = self.tasks.get(&task) {
            let total_ns = &mut self.kinds[place].total_ns;
            *total_ns = total_ns.saturating_add(execution_ns);
        }
    }

    fn means(self) -> HashMap<String, u64> {
        let mean_ns = |place: usize| self.kinds[place].total_ns / self.kinds[place].tasks.max(1);
        self.places.into_iter().map(|(name, place)| (name, mean_ns(place))).collect()
    }
}

fn unescape(name: &str) -> Option<String> {
    let mut plain = String::with_capacity(name.len());
    let mut rest = name.chars();
    while let Some(char) = rest.next() {
        plain.push(match char {
            '\\' => match rest.next()? {
                'n' => '\n',
                'r' => '\r',
                '\\' => '\\',
                _ => return None,
            },
            char => char,
        });
    }
    Some(plain)
}
