//! A trial compiles the crate with all proposals applied, in memory, and judges the program that
//! would run: the compiler checks types, borrows and `Send`, and the analysis computes the effects
//! of the closures themselves, with what they capture.
//!
//! The trial is a process of its own, because errors end a compilation. Its sources come from
//! a [`Plan`]; its verdicts go to a file.

use crate::graph::{Graph, body_of};
use crate::rule;
use rustc_middle::mir::TerminatorKind;
use rustc_middle::ty::{self, TyCtxt};
use rustc_span::Span;
use rustc_span::source_map::{FileLoader, RealFileLoader};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The environment variable with the path of the plan, in the process of a trial.
pub(crate) const VARIABLE: &str = "COREBEAT_EFFECT_TRIAL";

/// The module that stands for the runtime in a trial.
pub(crate) const MODULE: &str = "__corebeat_trial";

/// Functions with the bounds of the runtime's, appended to the root of the crate. They call what
/// they receive, so that the analysis finds it when a region contains another rewritten place.
pub(crate) const RUNTIME: &str = r#"
#[doc(hidden)] #[allow(warnings)] mod __corebeat_trial {
    extern crate std;
    use ::core::iter::{IntoIterator, Iterator};
    use ::core::marker::{PhantomData, Send, Sized, Sync};
    use ::core::ops::{Drop, Fn, FnOnce, Range};
    use ::core::option::Option::{self, None, Some};
    use self::std::vec::Vec;
    pub fn join<A, B, RA, RB>(a: A, b: B) -> (RA, RB)
    where A: FnOnce() -> RA, B: FnOnce() -> RB + Send, RB: Send { (a(), b()) }
    pub struct Scope<'scope, 'env: 'scope>(
        PhantomData<&'scope mut &'scope ()>, PhantomData<&'env mut &'env ()>);
    pub struct Future<'scope, T>(Option<T>, PhantomData<&'scope ()>);
    pub fn scope<'env, R, F>(body: F) -> R
    where F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R {
        body(&Scope(PhantomData, PhantomData)) }
    impl<'scope, 'env> Scope<'scope, 'env> {
        pub fn future<F, T>(&'scope self, f: F) -> Future<'scope, T>
        where F: FnOnce() -> T + Send + 'scope, T: Send + 'scope {
            Future(Some(f()), PhantomData) } }
    impl<T> Future<'_, T> { pub fn join(mut self) -> T {
        match self.0.take() { Some(value) => value, None => loop {} } } }
    impl<T> Drop for Future<'_, T> { fn drop(&mut self) {} }
    pub trait Split: Sized { type Item; fn one(self) -> Self::Item { loop {} } }
    impl<'a, T: Sync> Split for &'a [T] { type Item = &'a T; }
    impl<'a, T: Sync> Split for &'a Vec<T> { type Item = &'a T; }
    impl<'a, T: Sync, const N: usize> Split for &'a [T; N] { type Item = &'a T; }
    impl<'a, T: Send> Split for &'a mut [T] { type Item = &'a mut T; }
    impl<'a, T: Send> Split for &'a mut Vec<T> { type Item = &'a mut T; }
    impl<'a, T: Send, const N: usize> Split for &'a mut [T; N] { type Item = &'a mut T; }
    pub struct Chunks<'a, T>(&'a [T]);
    pub struct ChunksMut<'a, T>(&'a mut [T]);
    pub fn chunks<T>(items: &[T], size: usize) -> Chunks<'_, T> { Chunks(items) }
    pub fn chunks_mut<T>(items: &mut [T], size: usize) -> ChunksMut<'_, T> { ChunksMut(items) }
    impl<'a, T: Sync> Split for Chunks<'a, T> { type Item = &'a [T]; }
    impl<'a, T: Send> Split for ChunksMut<'a, T> { type Item = &'a mut [T]; }
    pub trait Integer {}
    macro_rules! integers { ($($t:ty)*) => { $(
        impl Split for Range<$t> { type Item = $t; } impl Integer for $t {} )* } }
    integers!(i8 i16 i32 i64 isize u8 u16 u32 u64 usize);
    impl Split for Range<i128> { type Item = i128; }
    impl Split for Range<u128> { type Item = u128; }
    pub fn map<I: Split, R: Send, F: Fn(I::Item) -> R + Sync>(items: I, f: F) -> Vec<R> {
        self::std::vec![f(items.one())]
    }
    pub fn for_each<I: Split, F: Fn(I::Item) + Sync>(items: I, f: F) { f(items.one()) }
    pub fn sum<I: Split, T: Integer, F: Fn(I::Item) -> T + Sync, A: Fn(T, T) -> T + Sync>(
        first: T, items: I, f: F, add: A) -> T { add(first, f(items.one())) }
    pub fn reduce<I: Split, T: Send, F: Fn(I::Item) -> T + Sync, O: Fn(T, T) -> T + Sync>(
        first: T, items: I, f: F, op: O) -> T { op(first, f(items.one())) }
    pub struct Results<'a, I, F> { items: I, compute: &'a F }
    impl<M: Send, T: Send, I: Iterator<Item = M>, F: Fn(M) -> T + Sync> Iterator
        for Results<'_, I, F> {
        type Item = T;
        fn next(&mut self) -> Option<T> { match self.items.next() {
            Some(item) => Some((self.compute)(item)), None => None } }
    }
    pub fn pipeline<L: IntoIterator<IntoIter = I, Item = M>, I: Iterator<Item = M>, M: Send,
        T: Send, R, F: Fn(M) -> T + Sync, B: FnOnce(Results<'_, I, F>) -> R>(
        items: L, compute: F, body: B) -> R {
        body(Results { items: items.into_iter(), compute: &compute })
    }
}
"#;

/// The input of a trial.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// The changed files, by their canonical paths.
    pub(crate) files: HashMap<PathBuf, String>,
    pub(crate) sites: Vec<Site>,
    pub(crate) verdicts: PathBuf,
}

/// A rewritten place.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Site {
    pub(crate) number: usize,
    pub(crate) pattern: String,
    pub(crate) file: PathBuf,
    /// Bytes of the changed file.
    pub(crate) start: u32,
    pub(crate) end: u32,
    pub(crate) shown: Vec<String>,
    /// The parts are operands of one expression, not statements.
    pub(crate) is_expression: bool,
    /// A loop that an iteration may leave.
    pub(crate) may_leave: bool,
}

/// The judgement of a site.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Verdict {
    pub(crate) number: usize,
    /// Why the site must stay sequential; `None` if it need not.
    pub(crate) reason: Option<String>,
    /// A place that explains the reason: bytes of a changed file.
    pub(crate) place: Option<(PathBuf, u32, u32)>,
    /// The assumptions of the judgement, as sentences.
    pub(crate) assumed: Vec<String>,
}

impl Plan {
    /// The plan of this process, if it is a trial.
    pub(crate) fn of_this_process() -> Option<Plan> {
        let path = std::env::var_os(VARIABLE)?;
        let text = std::fs::read_to_string(path).ok()?;
        serde_json::from_str(&text).ok()
    }
}

/// Reads the changed files from a plan, and the others from the disk.
pub(crate) struct Loader(pub(crate) HashMap<PathBuf, String>);

impl FileLoader for Loader {
    fn file_exists(&self, path: &Path) -> bool {
        RealFileLoader.file_exists(path)
    }

    fn read_file(&self, path: &Path) -> io::Result<String> {
        let known = path.canonicalize().ok().and_then(|path| self.0.get(&path));
        known.map_or_else(|| RealFileLoader.read_file(path), |text| Ok(text.clone()))
    }

    fn read_binary_file(&self, path: &Path) -> io::Result<Arc<[u8]>> {
        RealFileLoader.read_binary_file(path)
    }

    fn current_directory(&self) -> io::Result<PathBuf> {
        RealFileLoader.current_directory()
    }
}

/// The file and the bytes of a span.
pub(crate) fn bytes(tcx: TyCtxt<'_>, span: Span) -> Option<(PathBuf, u32, u32)> {
    let span = span.source_callsite();
    let file = tcx.sess.source_map().lookup_source_file(span.lo());
    let rustc_span::FileName::Real(name) = &file.name else { return None };
    let path = name.local_path()?.canonicalize().ok()?;
    let offset = |at: rustc_span::BytePos| (at - file.start_pos).0;
    Some((path, offset(span.lo()), offset(span.hi())))
}

/// Judges all sites of the plan in this crate, whose rewritten form has compiled.
pub(crate) fn judge(tcx: TyCtxt<'_>, plan: &Plan) -> Vec<Verdict> {
    let mut graph = Graph::new(tcx);
    let mut observer = None;
    let mut verdicts: HashMap<usize, Verdict> = HashMap::new();
    let owners: Vec<_> = tcx.hir_body_owners().map(|owner| owner.to_def_id()).collect();
    for owner in owners {
        let Some(body) = body_of(tcx, owner) else { continue };
        for block in body.basic_blocks.iter() {
            let terminator = block.terminator();
            let TerminatorKind::Call { func, .. } = &terminator.kind else { continue };
            let ty::FnDef(callee, args) = *func.ty(body, tcx).kind() else { continue };
            // The methods of the runtime belong to the judgement of a scope, and parts of slices to
            // that of a loop.
            if !callee.is_local()
                || !graph.path(callee).contains(&format!("::{MODULE}::"))
                || tcx.opt_associated_item(callee).is_some()
                || matches!(tcx.item_name(callee).as_str(), "chunks" | "chunks_mut")
            {
                continue;
            }
            let Some((file, start, _)) = bytes(tcx, terminator.source_info.span) else { continue };
            let site = plan
                .sites
                .iter()
                .filter(|site| site.file == file && (site.start..site.end).contains(&start))
                .min_by_key(|site| site.end - site.start);
            let Some(site) = site else { continue };
            graph.enter(owner);
            let name = tcx.item_name(callee);
            let verdict = rule::judge(
                &mut graph,
                owner,
                name.as_str(),
                args,
                site,
                terminator.source_info.span,
                &mut observer,
            );
            let (reason, place, assumed) = match verdict {
                Ok(assumed) => (None, None, assumed),
                Err(why) => {
                    (Some(why.text), why.span.and_then(|span| bytes(tcx, span)), Vec::new())
                }
            };
            let verdict = Verdict { number: site.number, reason, place, assumed };
            // Code in a generic context may be judged twice: the refusal counts.
            let known = verdicts.entry(site.number).or_insert_with(|| verdict.clone());
            if known.reason.is_none() {
                *known = verdict;
            }
        }
    }
    verdicts.into_values().collect()
}
