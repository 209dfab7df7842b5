//! A place of the source that a pattern would rewrite.

use rustc_hir::Expr;
use rustc_hir::def_id::LocalDefId;
use rustc_middle::ty::TyCtxt;
use rustc_span::Span;

/// The form of the rewritten code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// Two calls in consecutive statements, or two operands of an expression.
    ConsecutiveCalls,
    /// The same, where both calls go back to the function that contains them.
    DivideAndConquer,
    /// A call whose result is needed later than in the next statement.
    Future,
    /// A statement, and a group of statements behind it.
    StatementBlocks,
    /// A loop whose iterations change one element each.
    Loop,
    /// A loop that collects one result of each element.
    Map,
    /// A loop that adds up.
    Reduction,
    /// A loop whose first part is independent, and whose rest keeps its order and its thread.
    Pipeline,
}

impl Pattern {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Pattern::ConsecutiveCalls => "consecutive-calls",
            Pattern::DivideAndConquer => "divide-and-conquer",
            Pattern::Future => "future",
            Pattern::StatementBlocks => "statement-blocks",
            Pattern::Loop => "loop",
            Pattern::Map => "map",
            Pattern::Reduction => "reduction",
            Pattern::Pipeline => "pipeline",
        }
    }
}

impl Pattern {
    /// Whether a part is a group of statements.
    pub(crate) fn is_group(self) -> bool {
        matches!(self, Pattern::Future | Pattern::StatementBlocks | Pattern::Pipeline)
    }

    /// Which of two overlapping proposals comes first. Loops can use all CPUs; two calls that
    /// contain loops can use two; groups are what is left.
    pub(crate) fn rank(self) -> u8 {
        match self {
            Pattern::Loop | Pattern::Map | Pattern::Reduction | Pattern::Pipeline => 0,
            Pattern::ConsecutiveCalls | Pattern::DivideAndConquer => 1,
            Pattern::Future | Pattern::StatementBlocks => Pattern::LAST_RANK,
        }
    }

    pub(crate) const LAST_RANK: u8 = 2;
}

/// A part of rewritten code.
#[derive(Debug, Clone)]
pub(crate) enum Piece {
    /// New text.
    Text(String),
    /// Text of the original, which keeps its place in reports.
    Source(Span),
    /// The path of the crate of the runtime.
    Runtime,
}

/// A part of the original that would run at the same time as another.
#[derive(Debug, Clone)]
pub(crate) struct Part<'tcx> {
    pub(crate) exprs: Vec<&'tcx Expr<'tcx>>,
    pub(crate) span: Span,
    /// As the user wrote it, shortened.
    pub(crate) shown: String,
}

/// A candidate, before the analysis.
#[derive(Debug, Clone)]
pub(crate) struct Candidate<'tcx> {
    pub(crate) pattern: Pattern,
    pub(crate) owner: LocalDefId,
    /// The text that is replaced.
    pub(crate) span: Span,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) parts: Vec<Part<'tcx>>,
    /// The parts are operands of one expression, not statements.
    pub(crate) is_expression: bool,
    /// A loop that an iteration may leave.
    pub(crate) may_leave: bool,
    /// A reason against it that the syntax shows, with its place.
    pub(crate) against: Option<(String, Span)>,
}

/// The path of the runtime in the user's code.
pub(crate) const RUNTIME: &str = "corebeat_future";

/// Where the text of an original part is in the rewritten text: both as offsets from the start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kept {
    pub(crate) new_start: u32,
    pub(crate) old: Span,
}

impl Candidate<'_> {
    /// Whether the rewritten text has fewer comments than the original.
    pub(crate) fn loses_comments(&self, tcx: TyCtxt<'_>) -> bool {
        let old = tcx.sess.source_map().span_to_snippet(self.span).unwrap_or_default();
        let new = self.text(tcx, RUNTIME).map(|(text, _)| text).unwrap_or_default();
        comments(&new) < comments(&old)
    }

    /// The rewritten text, with this path of the runtime, and the original parts in it.
    pub(crate) fn text(&self, tcx: TyCtxt<'_>, runtime: &str) -> Option<(String, Vec<Kept>)> {
        let map = tcx.sess.source_map();
        let mut text = String::new();
        let mut kept = Vec::new();
        for piece in &self.pieces {
            match piece {
                Piece::Text(new) => text.push_str(new),
                Piece::Runtime => text.push_str(runtime),
                Piece::Source(span) => {
                    kept.push(Kept { new_start: u32::try_from(text.len()).ok()?, old: *span });
                    text.push_str(&map.span_to_snippet(*span).ok()?);
                }
            }
        }
        Some((text, kept))
    }
}

/// The number of comments in a text.
fn comments(text: &str) -> usize {
    rustc_lexer::tokenize(text, rustc_lexer::FrontmatterAllowed::No)
        .filter(|token| {
            matches!(
                token.kind,
                rustc_lexer::TokenKind::LineComment { .. }
                    | rustc_lexer::TokenKind::BlockComment { .. }
            )
        })
        .count()
}
