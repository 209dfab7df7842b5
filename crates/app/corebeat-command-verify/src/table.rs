//! Tables of text.

/// A table whose columns are as wide as their cells. The first row is the header; columns named in
/// `numbers` are aligned at the right.
pub(crate) fn table(rows: &[Vec<String>], numbers: &[usize]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |c: usize| rows.iter().map(|row| row[c].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cell = |(c, cell): (usize, &String)| match numbers.contains(&c) {
            true => format!("{cell:>width$}", width = widths[c]),
            false => format!("{cell:<width$}", width = widths[c]),
        };
        let cells: Vec<String> = row.iter().enumerate().map(cell).collect();
        text += cells.join("  ").trim_end();
        text.push('\n');
    }
    text
}

/// A time in milliseconds, or a dash.
pub(crate) fn ms(ns: Option<u64>) -> String {
    ns.map_or("-".into(), |ns| format!("{:.3} ms", ns as f64 / 1e6))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [["a", "time"], ["long", "1"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(table(&rows, &[1]), "a     time\nlong     1\n");
        assert_eq!(ms(Some(1_234_567)), "1.235 ms");
        assert_eq!(table(&[], &[]), "");
    }
}
