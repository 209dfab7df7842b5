//! One line of cells for a program or a thread: number, name, CPU, the bar, and further columns if
//! the line is wide enough.
//!
//! ```text
//!      ID USER     NAME           CPU% TIME                 LOCK% WAIT% COMMAND
//!    4711 alice    ▾ ferret      163.2 ████████▒###--·····   21.0   8.1 /usr/bin/ferret images
//!    4713            ferret       81.0 ████████████▒##-···   12.3   4.0
//! ```

use crate::column::{Cells, Column};
use crate::stack::{PARTS, cells};
use corebeat_command::printable;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};

/// Smallest width of the bar beside a further column.
const BAR_MIN: u16 = 20;

/// Smallest widths of the command line and of the function beside other columns.
const COMMAND_MIN: u16 = 24;
const FUNCTION_MIN: u16 = 20;

/// Largest width of the name column: a mark and a whole name.
const NAME_MAX: u16 = 17;

/// Columns of a line, and the widths of those that vary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    user: bool,
    name: u16,
    bar: u16,
    /// Columns of numbers after the bar.
    extra: Vec<Column>,
    /// Widths of the function in which the row spins and of the command line, if the line contains
    /// them.
    function: Option<u16>,
    command: Option<u16>,
}

/// The mark before a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    /// A program with its threads in the rows below.
    Unfolded,
    /// A program without rows for its threads.
    Folded,
    /// A thread.
    Thread,
}

impl Mark {
    fn text(self) -> &'static str {
        match self {
            Mark::Unfolded => "▾ ",
            Mark::Folded => "▸ ",
            Mark::Thread => "  ",
        }
    }
}

/// Order of the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sort {
    pub(crate) column: Column,
    pub(crate) reversed: bool,
}

impl Layout {
    /// Layout of a line. It always contains the column that determines the order, and no other one
    /// of the `absent` columns.
    pub(crate) fn new(width: u16, sort: Sort, absent: &[Column]) -> Self {
        let with_gap = |column: Column| column.width() + 1;
        let name = (width / 5).clamp(Column::Name.width(), NAME_MAX);
        let fixed = with_gap(Column::Id) + name + 1 + with_gap(Column::Cpu);
        let kept = if Column::EXTRA.contains(&sort.column) { with_gap(sort.column) } else { 0 };
        let mut bar = width.saturating_sub(fixed + kept);
        let mut fits = |&column: &Column| {
            if column == sort.column {
                return true;
            }
            let needed = match column {
                Column::Command => COMMAND_MIN + 1,
                Column::Function => FUNCTION_MIN + 1,
                _ => with_gap(column),
            };
            let fits = !absent.contains(&column) && bar >= needed + BAR_MIN;
            bar -= if fits { needed } else { 0 };
            fits
        };
        let mut extra: Vec<Column> = Column::EXTRA.into_iter().filter(&mut fits).collect();
        let user = extra.contains(&Column::User);
        let mut text = |column: Column, min: u16| {
            extra.contains(&column).then(|| {
                let width = if sort.column == column { column.width() } else { min };
                // The bar and the text share the rest of the line.
                let more = bar.saturating_sub(BAR_MIN) / 2;
                bar -= more;
                width + more
            })
        };
        let command = text(Column::Command, COMMAND_MIN);
        let function = text(Column::Function, FUNCTION_MIN);
        extra.retain(|c| !matches!(c, Column::User | Column::Command | Column::Function));
        Layout { user, name, bar, extra, function, command }
    }

    /// Draws the titles.
    pub(crate) fn titles(&self, area: Rect, sort: Sort, buffer: &mut Buffer) {
        let style = Style::new().add_modifier(Modifier::BOLD);
        let title = |column: Column| match column == sort.column {
            true => format!("{}{}", column.title(), if sort.reversed { "▴" } else { "▾" }),
            false => column.title().to_owned(),
        };
        let mut line = Line::new(area, buffer);
        line.right(&title(Column::Id), Column::Id.width(), style);
        if self.user {
            line.left(&title(Column::User), Column::User.width(), style);
        }
        line.left(&format!("  {}", title(Column::Name)), self.name, style);
        line.right(&title(Column::Cpu), Column::Cpu.width(), style);
        line.left("TIME", self.bar, style);
        for &column in &self.extra {
            line.right(&title(column), column.width(), style);
        }
        if let Some(width) = self.function {
            line.left(&title(Column::Function), width, style);
        }
        if let Some(width) = self.command {
            line.left(&title(Column::Command), width, style);
        }
    }

    /// Draws a row.
    pub(crate) fn row(
        &self,
        area: Rect,
        mark: Mark,
        row: &Cells,
        span_s: f64,
        style: Style,
        buffer: &mut Buffer,
    ) {
        buffer.set_style(area, style);
        let strong = match mark {
            Mark::Thread => style,
            _ => style.add_modifier(Modifier::BOLD),
        };
        let mut line = Line::new(area, buffer);
        line.right(&Column::Id.text(row, span_s), Column::Id.width(), style);
        if self.user {
            line.cut(&Column::User.text(row, span_s), Column::User.width(), style);
        }
        line.left(&format!("{}{}", mark.text(), row.name), self.name, strong);
        line.right(&Column::Cpu.text(row, span_s), Column::Cpu.width(), strong);
        line.bar(row, self.bar);
        for &column in &self.extra {
            line.right(&column.text(row, span_s), column.width(), style);
        }
        if let Some(width) = self.function {
            line.cut(&Column::Function.text(row, span_s), width, style);
        }
        if let Some(width) = self.command {
            line.left(&Column::Command.text(row, span_s), width, style);
        }
    }
}

/// A line that is filled from left to right. Control characters are escaped, and text beyond the
/// end is left out.
struct Line<'a> {
    buffer: &'a mut Buffer,
    x: u16,
    area: Rect,
}

impl<'a> Line<'a> {
    fn new(area: Rect, buffer: &'a mut Buffer) -> Self {
        Line { buffer, x: area.x, area }
    }

    fn put(&mut self, text: &str, width: u16, style: Style) {
        let left = self.area.right().saturating_sub(self.x).min(width);
        if left > 0 && self.area.height > 0 {
            let text = printable(text);
            self.buffer.set_stringn(self.x, self.area.y, text, usize::from(left), style);
        }
        self.x = self.x.saturating_add(width);
    }

    fn gap(&mut self) {
        self.x = self.x.saturating_add(1);
    }

    fn left(&mut self, text: &str, width: u16, style: Style) {
        self.put(text, width, style);
        self.gap();
    }

    /// As [`left`](Self::left), with a `+` at the end of a text that is cut.
    fn cut(&mut self, text: &str, width: u16, style: Style) {
        let kept = usize::from(width) - 1;
        match text.char_indices().nth(kept) {
            Some((end, _)) if text.chars().nth(kept + 1).is_some() => {
                self.left(&format!("{}+", &text[..end]), width, style);
            }
            _ => self.left(text, width, style),
        }
    }

    fn right(&mut self, text: &str, width: u16, style: Style) {
        self.put(&format!("{text:>width$}", width = usize::from(width)), width, style);
        self.gap();
    }

    fn bar(&mut self, row: &Cells, width: u16) {
        for (part, count) in PARTS.iter().zip(cells(&row.figures.shares, usize::from(width))) {
            let text: String = std::iter::repeat_n(part.glyph, count).collect();
            self.put(&text, count as u16, Style::new().fg(part.color));
        }
        self.gap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn widths(width: u16, column: Column, absent: &[Column]) -> (usize, u16, u16) {
        let layout = Layout::new(width, Sort { column, reversed: false }, absent);
        let columns = layout.user.then_some(&Column::User).into_iter().chain(&layout.extra);
        let extra: u16 = columns.map(|c| c.width() + 1).sum();
        let texts = layout.function.into_iter().chain(layout.command);
        let extra = extra + texts.clone().map(|width| width + 1).sum::<u16>();
        let count = layout.extra.len() + usize::from(layout.user);
        (count + texts.count(), layout.bar, 8 + layout.name + 1 + 7 + layout.bar + extra)
    }

    #[test]
    fn layout_fills_the_width_and_keeps_the_bar() {
        for width in 40..300 {
            for column in Column::SORTS {
                let (extra, bar, sum) = widths(width, column, &[]);
                assert_eq!(sum, width, "{column:?}");
                assert!(bar >= BAR_MIN || extra <= 1, "{column:?} {width}: {bar}");
            }
        }
        assert_eq!(widths(40, Column::Cpu, &[]).0, 0);
        assert_eq!(widths(40, Column::Wait, &[]).0, 1);
        let of_servers = [Column::Requests, Column::Connections, Column::Server];
        let absent = [&[Column::Misses, Column::Function][..], &of_servers].concat();
        assert_eq!(widths(200, Column::Cpu, &absent).0, Column::EXTRA.len() - 5);
        assert_eq!(widths(200, Column::Function, &absent).0, Column::EXTRA.len() - 4);
    }

    #[test]
    fn layout_of_a_tiny_width_does_not_panic() {
        (0..40).for_each(|width| {
            drop(Layout::new(width, Sort { column: Column::Lock, reversed: true }, &[]))
        });
    }
}
