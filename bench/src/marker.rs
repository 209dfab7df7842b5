//! Markers in the book, which name stored rows: the text between a marker and `<!-- end -->` is
//! generated.
//!
//! ```text
//! <!-- rows BENCH; case: TEXT; subject: NAME; unit: UNIT; decimals: NUMBER; ratio: SUBJECT -->
//! <!-- value BENCH; case: NAME; subject: NAME -->1.23<!-- end -->
//! <!-- list BENCH; case: NAME; subject: NAME; subject: NAME -->1.23 ns; go 4.56<!-- end -->
//! ```
//!
//! `rows` stands on lines of its own and is filled with a table: a line for each subject, a column
//! for each case. `value` stands inside a line and is filled with one median, and `list` with
//! the medians of several subjects. `docs/measuring.md` describes the fields.

use crate::row::{Better, Row, figure, figure_within};
use crate::stored::{Benches, Stored};

const OPEN: &str = "<!-- ";
const END: &str = "<!-- end -->";

#[derive(Debug, Default, PartialEq)]
struct Marker<'a> {
    bench: &'a str,
    /// Texts as of `--filter`, or names. Empty for all cases.
    cases: Vec<&'a str>,
    /// Empty for all subjects.
    subjects: Vec<&'a str>,
    unit: Option<&'a str>,
    decimals: Option<usize>,
    /// The subject whose medians the others are divided by.
    ratio: Option<&'a str>,
}

/// Returns a page with the present rows between its markers. An error has the number of its line.
pub(crate) fn fill(page: &str, benches: &Benches) -> Result<String, (usize, String)> {
    let mut filled = String::new();
    let mut done = 0;
    for (at, _) in page.match_indices(OPEN) {
        if at < done || is_code(&page[..at]) {
            continue;
        }
        let error = |why: String| (page[..at].matches('\n').count() + 1, why);
        let (marker, after) = page[at + OPEN.len()..]
            .split_once("-->")
            .ok_or_else(|| error("the marker has no '-->'".into()))?;
        let words: Vec<&str> = marker.split_whitespace().collect();
        let fields = words.get(1..).unwrap_or_default().join(" ");
        let line_begin = page[..at].rsplit('\n').next().unwrap_or_default();
        let kind = *words.first().unwrap_or(&"");
        let write: fn(&Marker, &Benches) -> Result<String, String> = match kind {
            "rows" => table,
            "value" => value,
            "list" => list,
            "end" => return Err(error(format!("'{END}' without a marker before it"))),
            _ => continue,
        };
        // Markdown would end a paragraph at a line that begins with a comment.
        let must_begin = kind == "rows";
        if must_begin != line_begin.is_empty() {
            let must = if must_begin { "must" } else { "must not" };
            return Err(error(format!("'{kind}' {must} begin its line; move a word")));
        }
        let (_, rest) = after
            .split_once(END)
            .filter(|(old, _)| !old.contains(OPEN))
            .ok_or_else(|| error(format!("no '{END}' follows the marker")))?;
        filled += &page[done..page.len() - after.len()];
        filled += &parse(&fields).and_then(|marker| write(&marker, benches)).map_err(error)?;
        filled += END;
        done = page.len() - rest.len();
    }
    Ok(filled + &page[done..])
}

/// Whether a position is inside a block of code or a code span, by the text before it.
fn is_code(before: &str) -> bool {
    let line = before.rsplit('\n').next().unwrap_or_default();
    let fences = before.lines().filter(|line| line.trim_start().starts_with("```")).count();
    fences % 2 == 1 || line.matches('`').count() % 2 == 1
}

fn parse(fields: &str) -> Result<Marker<'_>, String> {
    let mut fields = fields.split(';').map(str::trim);
    let mut marker = Marker { bench: fields.next().unwrap_or_default(), ..Marker::default() };
    for field in fields {
        let (key, value) = field.split_once(':').map_or((field, ""), |(k, v)| (k, v.trim()));
        match key {
            "case" => marker.cases.push(value),
            "subject" => marker.subjects.push(value),
            "unit" => marker.unit = Some(value),
            "ratio" => marker.ratio = Some(value),
            "decimals" => {
                let number = value.parse();
                marker.decimals =
                    Some(number.map_err(|_| format!("decimals '{value}' are not a number"))?);
            }
            _ => {
                return Err(format!(
                    "there is no field '{key}'; there are case, subject, unit, decimals, ratio"
                ));
            }
        }
    }
    Ok(marker)
}

/// The rows of a marker.
struct Selected<'a> {
    stored: &'a Stored,
    cases: Vec<&'a str>,
    subjects: Vec<&'a str>,
}

impl<'a> Selected<'a> {
    fn new(marker: &Marker, benches: &'a Benches) -> Result<Self, String> {
        let bench = marker.bench;
        let stored = benches.get(bench).ok_or_else(|| {
            format!("no rows of '{bench}' are stored; 'bench {bench} --store' stores them")
        })?;
        let all = distinct(stored.rows.iter().map(|row| row.case.as_str()));
        let mut cases = Vec::new();
        for text in &marker.cases {
            let before = cases.len();
            match all.iter().find(|case| *case == text) {
                Some(case) => cases.push(*case),
                None => cases.extend(all.iter().filter(|case| case.contains(text))),
            }
            if cases.len() == before {
                return Err(no_such("case", text, bench, &all));
            }
        }
        let cases = if marker.cases.is_empty() { all } else { distinct(cases.into_iter()) };
        let rows = stored.rows.iter().filter(|row| cases.contains(&row.case.as_str()));
        let all = distinct(rows.map(|row| row.subject.as_str()));
        let find = |name: &&str| {
            let found = all.iter().copied().find(|subject| subject == name);
            found.ok_or_else(|| no_such("subject", name, bench, &all))
        };
        marker.ratio.iter().try_for_each(|name| find(name).map(drop))?;
        let subjects = marker.subjects.iter().map(find).collect::<Result<Vec<_>, _>>()?;
        let subjects = if subjects.is_empty() { all } else { subjects };
        Ok(Selected { stored, cases, subjects })
    }

    fn row(&self, case: &str, subject: &str) -> Option<&'a Row> {
        self.stored.rows.iter().find(|row| row.case == case && row.subject == subject)
    }

    /// The unit of a case, and the factor of its values. The unit may only change the time in it.
    fn unit(&self, case: &str, wanted: Option<&str>) -> Result<(String, f64), String> {
        const TIMES: [(&str, f64); 4] = [("ns", 1.0), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)];
        let row = self.stored.rows.iter().find(|row| row.case == case);
        let unit = row.map_or("", |row| row.unit.as_str());
        let Some(wanted) = wanted else { return Ok((unit.to_owned(), 1.0)) };
        let split = |at: &str| at.find('/').unwrap_or(at.len());
        let (time, per) = unit.split_at(split(unit));
        let ns = |name: &str| TIMES.iter().find(|time| time.0 == name).map(|time| time.1);
        match (ns(time), ns(wanted)) {
            (Some(from), Some(to)) => Ok((format!("{wanted}{per}"), from / to)),
            _ => Err(format!("'{unit}' cannot be shown in '{wanted}'; times have ns, µs, ms, s")),
        }
    }
}

fn no_such(kind: &str, name: &str, bench: &str, all: &[&str]) -> String {
    format!("{bench} has no {kind} '{name}'; there are '{}'", all.join("', '"))
}

/// The values without repetitions, in their order.
fn distinct<'a>(values: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut distinct = Vec::new();
    for value in values {
        if !distinct.contains(&value) {
            distinct.push(value);
        }
    }
    distinct
}

fn table(marker: &Marker, benches: &Benches) -> Result<String, String> {
    let selected = Selected::new(marker, benches)?;
    let cases = selected.cases.iter();
    let units: Vec<(String, f64)> =
        cases.map(|case| selected.unit(case, marker.unit)).collect::<Result<_, _>>()?;
    let is_same = units.iter().all(|unit| *unit == units[0]);
    let mut text =
        format!("\n{}\n\n| subject |", caption(&selected, is_same.then(|| &*units[0].0)));
    for (case, (unit, _)) in selected.cases.iter().zip(&units) {
        text += &if is_same { format!(" {case} |") } else { format!(" {case}, {unit} |") };
        text += &marker.ratio.map(|subject| format!(" of {subject} |")).unwrap_or_default();
    }
    let columns = selected.cases.len() * if marker.ratio.is_some() { 2 } else { 1 };
    text += &format!("\n| --- |{}\n", " --- |".repeat(columns));
    for subject in &selected.subjects {
        text += &format!("| {subject} |");
        for (case, (_, factor)) in selected.cases.iter().zip(&units) {
            let row = selected.row(case, subject);
            text +=
                &format!(" {} |", row.map(|row| cell(marker, row, *factor)).unwrap_or_default());
            if let Some(name) = marker.ratio {
                let ratio = row.and_then(|row| ratio(row, selected.row(case, name)?));
                text += &format!(" {} |", ratio.unwrap_or_default());
            }
        }
        text.push('\n');
    }
    Ok(text + "\n")
}

/// The bench, the unit if all cases have the same, and the conditions of the run.
fn caption(selected: &Selected, unit: Option<&str>) -> String {
    let run = &selected.stored.run;
    let bench = &selected.stored.rows[0].bench;
    let unit = unit.map(|unit| format!(", {unit}")).unwrap_or_default();
    let of_case = |row: &&Row| selected.cases.contains(&row.case.as_str());
    let lines = selected.stored.rows.iter().filter(of_case).filter_map(|row| row.line_ns);
    let ends = lines.fold(None, |ends: Option<(f64, f64)>, x| {
        Some(ends.map_or((x, x), |(least, most)| (least.min(x), most.max(x))))
    });
    let line = match ends.map(|(least, most)| (format!("{least:.0}"), format!("{most:.0}"))) {
        None => String::new(),
        Some((least, most)) if least == most => format!(", a cache line moves in {least} ns"),
        Some((least, most)) => format!(", a cache line moves in {least} to {most} ns"),
    };
    let (origin, load) = match &run.typed {
        Some(conditions) => ("from an earlier table".to_owned(), conditions.clone()),
        None => (format!("commit {}", run.commit), format!("load {}", run.load)),
    };
    format!("`{bench}`{unit} ({}, {origin},\n{}, {load}{line}):", run.date, run.machine)
}

/// The median, with the smallest and the largest value unless all have the same text.
fn cell(marker: &Marker, row: &Row, factor: f64) -> String {
    let [median, min, max] = row.texts(|x| number(x * factor, marker.decimals));
    match min == max {
        true => median,
        false => format!("{median} ({min} to {max})"),
    }
}

/// The ratio of two medians. `None` if it has no meaning.
fn ratio(row: &Row, of: &Row) -> Option<String> {
    let ratio = row.median / of.median;
    let bound = match (row.is_cut(), of.is_cut()) {
        (false, false) => "",
        (true, false) => "over ",
        (false, true) => "under ",
        (true, true) => return None,
    };
    ratio.is_finite().then(|| bound.to_owned() + &number(ratio, Some(2)))
}

fn value(marker: &Marker, benches: &Benches) -> Result<String, String> {
    let selected = Selected::new(marker, benches)?;
    let (&[case], &[subject]) = (&selected.cases[..], &marker.subjects[..]) else {
        return Err("'value' needs one case and one subject".into());
    };
    // Subjects without a row in the only case are refused above.
    let row = |subject| selected.row(case, subject).expect("the case has the subject");
    match marker.ratio {
        None => {
            let (_, factor) = selected.unit(case, marker.unit)?;
            Ok(row(subject).texts(|x| number(x * factor, marker.decimals))[0].clone())
        }
        Some(name) => ratio(row(subject), row(name))
            .ok_or_else(|| format!("the ratio of '{subject}' to '{name}' has no meaning")),
    }
}

/// The medians of each subject in all cases. Those that are better than the first subject's are
/// bold.
fn list(marker: &Marker, benches: &Benches) -> Result<String, String> {
    let selected = Selected::new(marker, benches)?;
    let (unit, factor) = selected.unit(selected.cases[0], marker.unit)?;
    let first = selected.subjects[0];
    let medians = |subject: &str| {
        let shown = selected.cases.iter().filter_map(|case| {
            let row = selected.row(case, subject)?;
            let [median, ..] = row.texts(|x| number(x * factor, marker.decimals));
            let is_ahead = selected.row(case, first).is_some_and(|first| match row.better {
                Better::Lower => row.median < first.median,
                Better::Higher => row.median > first.median,
                Better::Neither => false,
            });
            Some(if is_ahead { format!("**{median}**") } else { median })
        });
        shown.collect::<Vec<_>>().join(" and ")
    };
    let others = selected.subjects[1..].iter().map(|name| format!("{name} {}", medians(name)));
    let unit = unit.split('/').next().unwrap_or_default();
    Ok(format!("{} {unit}; {}", medians(first), others.collect::<Vec<_>>().join(", ")))
}

/// A number with three significant digits, without a negative zero, and with commas after each
/// thousand.
fn number(x: f64, decimals: Option<usize>) -> String {
    let text = decimals.map_or_else(|| figure(x), |most| figure_within(x, most));
    let digits = text.strip_prefix('-').unwrap_or(&text);
    let sign = if x < 0.0 && digits.contains(|c| matches!(c, '1'..='9')) { "-" } else { "" };
    let (whole, part) = digits.split_at(digits.find('.').unwrap_or(digits.len()));
    let groups: Vec<&str> =
        whole.as_bytes().rchunks(3).rev().flat_map(std::str::from_utf8).collect();
    format!("{sign}{}{part}", groups.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stored::Run;

    fn benches() -> Benches {
        let row = |case: &str, subject: &str, unit: &str, median: f64, cut_runs| Row {
            bench: "a.b".into(),
            case: case.into(),
            subject: subject.into(),
            unit: unit.into(),
            better: Better::Lower,
            median,
            min: median / 2.0,
            max: median,
            runs: 1,
            cut_runs,
            line_ns: Some(40.4),
        };
        let rows = vec![
            row("read", "corebeat", "ns/item", 4.0, 0),
            row("read", "go", "ns/item", 12_346.0, 0),
            row("read, cold", "corebeat", "ns/item", 0.5, 0),
            row("size", "corebeat", "bytes", 0.0, 0),
            row("size", "go", "bytes", 20.0, 1),
        ];
        let run = Run {
            machine: "2 CPUs".into(),
            date: "1 May 2026".into(),
            commit: "0a".into(),
            load: "0.1".into(),
            typed: None,
        };
        Benches::from([("a.b".to_owned(), Stored { run, rows })])
    }

    #[test]
    fn rows_become_a_table_and_the_rest_of_the_page_stays() {
        let page = "# A\n<!-- rows a.b; case: read -->\nold\n<!-- end -->\nB <!-- note -->\n";
        let expected = "# A\n<!-- rows a.b; case: read -->\n\
            `a.b`, ns/item (1 May 2026, commit 0a,\n\
            2 CPUs, load 0.1, a cache line moves in 40 ns):\n\n\
            | subject | read |\n| --- | --- |\n\
            | corebeat | 4.00 (2.00 to 4.00) |\n| go | 12,346 (6,173 to 12,346) |\n\n\
            <!-- end -->\nB <!-- note -->\n";
        let filled = fill(page, &benches()).unwrap();
        assert_eq!(filled, expected);
        assert_eq!(fill(&filled, &benches()).unwrap(), expected);
    }

    #[test]
    fn table_of_typed_rows_has_the_conditions_of_their_text() {
        let mut benches = benches();
        let stored = benches.get_mut("a.b").unwrap();
        stored.run.typed = Some("quiet".into());
        stored.rows.iter_mut().for_each(|row| row.line_ns = None);
        let filled = fill("<!-- rows a.b; case: size -->\n<!-- end -->", &benches).unwrap();
        let caption = "(1 May 2026, from an earlier table,\n2 CPUs, quiet):";
        assert!(filled.contains(caption), "{filled}");
    }

    #[test]
    fn marker_selects_and_orders_and_adds_units_and_ratios() {
        let page = "<!-- rows a.b; case: size; case: re; subject: go;\n  subject: corebeat; decimals: 1; \
            ratio: corebeat -->\n<!-- end -->";
        let filled = fill(page, &benches()).unwrap();
        let lines: Vec<&str> = filled.lines().filter(|line| line.starts_with('|')).collect();
        assert_eq!(
            lines,
            [
                "| subject | size, bytes | of corebeat | read, ns/item | of corebeat | read, cold, ns/item | of corebeat |",
                "| --- | --- | --- | --- | --- | --- | --- |",
                "| go | over 20.0 (over 10.0 to over 20.0) |  | 12,346 (6,173 to 12,346) | 3,086 |  |  |",
                "| corebeat | 0.0 |  | 4.0 (2.0 to 4.0) | 1.00 | 0.5 (0.2 to 0.5) | 1.00 |",
            ]
        );
    }

    #[test]
    fn value_is_one_median_or_ratio() {
        let page = "a <!-- value a.b; case: read;\nsubject: go; unit: µs -->?<!-- end --> µs, \
            <!-- value a.b; case: read; subject: go; ratio: corebeat --><!-- end --> times\n";
        let filled = fill(page, &benches()).unwrap();
        assert!(
            filled.contains("-->12.3<!-- end --> µs") && filled.contains("-->3,086<!-- end -->")
        );
    }

    #[test]
    fn list_has_each_subject_and_shows_those_ahead() {
        let page =
            "| a | <!-- list a.b; case: read; subject: go; subject: corebeat --><!-- end --> |";
        let filled = fill(page, &benches()).unwrap();
        assert!(filled.contains("-->12,346 ns; corebeat **4.00**<!-- end -->"), "{filled}");
    }

    #[test]
    fn code_holds_no_markers() {
        let page = "```\n<!-- rows a.b -->\n```\na `<!-- end -->`\n";
        assert_eq!(fill(page, &benches()).unwrap(), page);
    }

    #[test]
    fn bad_marker_is_reported_with_its_line() {
        for (page, says) in [
            ("<!-- rows a.c -->\n<!-- end -->", "'bench a.c --store' stores them"),
            ("<!-- rows a.b; case: x -->\n<!-- end -->", "'read', 'read, cold', 'size'"),
            ("<!-- rows a.b; subject: x -->\n<!-- end -->", "there are 'corebeat', 'go'"),
            ("<!-- rows a.b; ratio: x -->\n<!-- end -->", "no subject 'x'"),
            ("<!-- rows a.b; cases: x -->\n<!-- end -->", "no field 'cases'"),
            ("<!-- rows a.b; decimals: x -->\n<!-- end -->", "decimals 'x'"),
            ("<!-- rows a.b; unit: µs -->\n<!-- end -->", "'bytes' cannot be shown in 'µs'"),
            ("<!-- rows a.b\n", "no '-->'"),
            ("<!-- rows a.b -->\n| 1 |\n", "no '<!-- end -->'"),
            ("<!-- rows a.b -->\n<!-- rows a.b -->\n<!-- end -->", "no '<!-- end -->'"),
            ("<!-- row a.b -->\n<!-- end -->", "without a marker"),
            ("<!-- value a.b -->1<!-- end -->", "must not begin its line"),
            ("a <!-- rows a.b --><!-- end -->", "must begin its line"),
            ("a <!-- value a.b; case: read -->1<!-- end -->", "one case and one subject"),
            ("a <!-- value a.b; case: re; subject: go -->1<!-- end -->", "one case and one"),
            (
                "a <!-- value a.b; case: size; subject: go; ratio: corebeat -->1<!-- end -->",
                "the ratio of 'go' to 'corebeat' has no meaning",
            ),
        ] {
            let (line, why) = fill(&format!("text\n{page}"), &benches()).unwrap_err();
            assert!(line >= 2 && why.contains(says) && !why.contains('\n'), "{line}: {why}");
        }
    }

    #[test]
    fn number_has_three_digits_commas_and_no_negative_zero() {
        let texts = [(-0.004, Some(2)), (1234567.8, None), (-1234.0, None), (99.96, None)];
        let texts = texts.map(|(x, decimals)| number(x, decimals));
        assert_eq!(texts, ["0.00", "1,234,568", "-1,234", "100.0"]);
    }
}
