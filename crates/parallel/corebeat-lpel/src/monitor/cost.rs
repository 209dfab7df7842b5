//! Costs of tasks, from the logs of a run.

use super::line;
use super::log::{LogError, failed, log_path, map_path};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// Bytes of a line at most: a longer line would list more than a million streams.
const LINE_MAX: u64 = 32 << 20;

/// Returns, for each name, the mean total execution time of a task with that name, in nanoseconds.
/// [`Measured`](crate::placement::Measured) places tasks by these costs. Tasks without a name are
/// ignored.
///
/// `folder` is the folder of a [`TextLog`](crate::monitor::TextLog).
///
/// # Errors
///
/// A file cannot be read, or has an invalid line.
pub fn costs(folder: impl AsRef<Path>) -> Result<HashMap<String, u64>, LogError> {
    let folder = folder.as_ref();
    let mut kinds = Kinds::default();
    let path = map_path(folder);
    each_line(&path, open(&path)?, |line| kinds.add(line))?;
    for worker in 0.. {
        let path = log_path(folder, worker);
        let log = match open(&path) {
            Err(LogError::File { source, .. })
                if worker > 0 && source.kind() == io::ErrorKind::NotFound =>
            {
                break;
            }
            log => log?,
        };
        each_line(&path, log, |text| {
            if let Some((task, execution_ns)) = line::parse(text)? {
                kinds.count(task, execution_ns);
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
        let length =
            (&mut file).take(LINE_MAX).read_until(b'\n', &mut line).map_err(|e| failed(path, e))?;
        if length == 0 {
            break;
        }
        let result = match line.split_last() {
            Some((b'\n', line)) => {
                std::str::from_utf8(line).map_err(|_| "the line is not UTF-8").and_then(&mut f)
            }
            _ => Err("the line is cut short"),
        };
        result.map_err(|why| LogError::Line { path: path.into(), line: number, why })?;
    }
    Ok(())
}

/// Tasks, grouped by name.
#[derive(Default)]
struct Kinds {
    /// Index into `kinds` for each name.
    places: HashMap<String, usize>,
    kinds: Vec<Kind>,
    /// Index into `kinds` for each task.
    tasks: HashMap<u64, usize>,
}

#[derive(Default)]
struct Kind {
    tasks: u64,
    total_ns: u64,
}

impl Kinds {
    /// Adds a line `TASK NAME`.
    fn add(&mut self, line: &str) -> Result<(), &'static str> {
        let (task, name) =
            line.split_once(' ').ok_or("expected the number of a task and its name")?;
        let task = line::parse_number(task).ok_or("expected the number of a task")?;
        let name = unescape(name).ok_or("expected `n`, `r` or a backslash after a backslash")?;
        let place = *self.places.entry(name).or_insert_with(|| {
            self.kinds.push(Kind::default());
            self.kinds.len() - 1
        });
        if self.tasks.insert(task, place).is_some() {
            return Err("the task has two names");
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn costs_are_means_by_name_over_all_workers() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(map_path(folder.path()), "1 long\n2 short\n3 long\n4 never\n5 back\\\\slash\n")
            .unwrap();
        let first = "10 tid 1 disp 1 st R et 100 []\n20 tid 9 disp 1 st R et 1000\n\
                     30 tid 1 disp 2 st Z et 50 creat 1\n";
        let second = "10 *** worker 1 waited (1) for 0.000000001\n\
                      20 tid 3 disp 1 st Z et 250 creat 1 []\n\
                      20 tid 2 disp 1 st Bi et 7\n30 tid 5 disp 1 st Ba et 8\n";
        fs::write(log_path(folder.path(), 0), first).unwrap();
        fs::write(log_path(folder.path(), 1), second).unwrap();
        let costs = costs(folder.path()).unwrap();
        assert_eq!((costs["long"], costs["short"], costs["never"]), (200, 7, 0));
        assert_eq!(costs["back\\slash"], 8);
        assert_eq!(costs.len(), 4);
    }

    #[test]
    fn error_names_the_line() {
        for (map, log, expected) in [
            ("1 a\n1 b\n", "", "task.map, line 2: the task has two names"),
            ("1 a\\x\n", "", "task.map, line 1: expected `n`, `r` or a backslash"),
            ("one a\n", "", "task.map, line 1: expected the number of a task"),
            ("1 a", "", "task.map, line 1: the line is cut short"),
            (
                "1 a\n",
                "1 tid 1 disp 1 st R et 1\n2 tid",
                "worker0.log, line 2: the line is cut short",
            ),
            (
                "1 a\n",
                "1 tid 1 disp 1 st R et 1\n2 tid 1\n",
                "worker0.log, line 2: expected `disp`",
            ),
        ] {
            let folder = tempfile::tempdir().unwrap();
            fs::write(map_path(folder.path()), map).unwrap();
            fs::write(log_path(folder.path(), 0), log).unwrap();
            let why = costs(folder.path()).unwrap_err().to_string();
            assert!(why.contains(expected), "{why}");
        }
        let nothing = tempfile::tempdir().unwrap();
        let why = costs(nothing.path()).unwrap_err().to_string();
        assert!(why.contains("task.map"), "{why}");
    }
}
