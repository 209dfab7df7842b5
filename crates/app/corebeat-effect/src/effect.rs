//! Effects: all that a function may do besides computing its result from memory that it owns or
//! borrows.

use rustc_span::Span;

/// A class of effects. Two calls may overlap only if at most the first has any of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Locks, condition variables, channels and barriers.
    Lock,
    /// A static that can change.
    Static,
    /// A thread-local variable, or the identity of the thread.
    ThreadLocal,
    /// Standard input, output and error.
    Output,
    /// Files and their offsets, folders, sockets.
    File,
    /// The current directory.
    CurrentDir,
    /// A value that is initialised once.
    Once,
    /// Environment variables and arguments.
    Environment,
    /// Clocks.
    Time,
    /// Random numbers.
    Random,
    /// Threads.
    Thread,
    /// The process: exit, abort, child processes, signals.
    Process,
    /// Atomic variables.
    Atomic,
    /// `Cell`, `RefCell` and other values that change behind a shared reference.
    Cell,
    /// The counts of `Rc` and `Arc`.
    Count,
    /// A memory allocator of the program.
    Allocator,
    /// A panic that is caught.
    Catch,
    /// The hook of panics.
    Hook,
    /// The place or the name of code as a value.
    Location,
    /// The address of a value as a value.
    Address,
    /// Unsafe code without a reviewed summary.
    Unsafe,
    /// A foreign function.
    Foreign,
    /// A call whose target is not known.
    Dynamic,
    /// A function whose code is not available.
    Unknown,
    /// Asynchronous code.
    Async,
}

impl Kind {
    /// Whether code with this effect could do anything, also change memory that other code reads.
    pub(crate) fn is_opaque(self) -> bool {
        matches!(self, Kind::Unsafe | Kind::Foreign | Kind::Dynamic | Kind::Unknown | Kind::Async)
    }

    /// Whether code with this effect must not be in a closure of the rewritten program, although it
    /// keeps its thread and its order: its closure has another name, place and stack frame, and the
    /// runtime handles panics around it.
    pub(crate) fn is_confined(self) -> bool {
        self.is_opaque()
            || matches!(self, Kind::Catch | Kind::Hook | Kind::Location | Kind::Address)
    }
}

/// An effect, and the place in the analysed crate that leads to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) kind: Kind,
    /// As the end of a sentence: `locks a mutex`.
    pub(crate) text: String,
    pub(crate) span: Span,
}

/// The effects of a call and of everything that it calls.
#[derive(Debug, Clone, Default)]
pub(crate) struct Effects {
    /// The first effect of each kind, the nearest first.
    pub(crate) findings: Vec<Finding>,
    /// The nearest place that may panic.
    pub(crate) panic: Option<Place>,
    /// The nearest place at which the program itself decides that the call does not return.
    pub(crate) stop: Option<Place>,
    /// The nearest loop or recursion whose bound is not known.
    pub(crate) unbounded: Option<Place>,
    /// The nearest one of the program, or of the standard library over an iterator that may not
    /// end.
    pub(crate) endless: Option<Place>,
    /// The nearest place whose time or memory a number gives: a loop over a range of integers, or
    /// an allocation.
    pub(crate) sized: Option<Place>,
    /// Whether it contains a loop or recursion, and code outside the standard library.
    pub(crate) is_work: bool,
}

/// A place and what happens there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) text: String,
    pub(crate) span: Span,
}

impl Effects {
    /// The nearest effect that is not to be ignored.
    pub(crate) fn first(&self) -> Option<&Finding> {
        self.findings.iter().find(|finding| !crate::fault::ignores(finding.kind))
    }

    /// The nearest effect that must not be in a closure of the rewritten program.
    pub(crate) fn confined(&self) -> Option<&Finding> {
        self.findings
            .iter()
            .find(|finding| finding.kind.is_confined() && !crate::fault::ignores(finding.kind))
    }

    /// Adds the effects of another region, whose turn is later.
    pub(crate) fn append(&mut self, other: Effects) {
        self.findings.extend(other.findings);
        self.panic = self.panic.take().or(other.panic);
        self.stop = self.stop.take().or(other.stop);
        self.unbounded = self.unbounded.take().or(other.unbounded);
        self.endless = self.endless.take().or(other.endless);
        self.sized = self.sized.take().or(other.sized);
        self.is_work |= other.is_work;
    }

    /// The nearest place at which the program itself ends the call, or the process.
    pub(crate) fn end(&self) -> Option<Place> {
        let process = self.findings.iter().find(|finding| finding.kind == Kind::Process);
        let process = process.map(|f| Place { text: f.text.clone(), span: f.span });
        process.or_else(|| self.stop.clone())
    }
}
