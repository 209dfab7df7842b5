//! Detects machine code that waits for another thread.
//!
//! Code waits if one more iteration of its loop changes nothing that the loop reads. The loop then
//! reads the same addresses, and writes no memory outside its frame on the stack. Neither a
//! register nor the frame carries a value to the next iteration, except a count of iterations. Only
//! a write by another thread can end such a loop.
//!
//! ```text
//!            ip, from a sample
//!             v
//!   L:  cmp dword [rdi], esi    reads a constant address                 -+
//!       jne out                 a branch that depends on the value        |  cycle: shortest path
//!       pause                                                             |  from ip back to ip
//!       add rax, 1              counts iterations                         |
//!       cmp rax, rdx                                                      |
//!       jb  L                   ----------------------------------------- +
//! ```
//!
//! 1. A thread at a PAUSE, or directly after one, waits, regardless of the surrounding code. The
//!    instruction has no other use, and takes most of the time of its loop: 9 of 10 samples in the
//!    OpenMP runtime of LLVM, whose loop is too large and calls too many functions for the
//!    following steps.
//! 2. From the sampled instruction, the analysis follows the code forward, over both sides of every
//!    branch, within the available bytes. Decoding starts at an instruction that was executed, so
//!    instruction boundaries are correct.
//! 3. The *cycle* is the shortest path back to the sampled instruction that writes no memory
//!    outside the frame, calls no function and makes no system call. The frame is the memory at
//!    constant distances from the stack pointer, or below the frame pointer: compilers keep the
//!    variables of a function there at `-O0`, and `volatile` variables always. An idempotent atomic
//!    operation (xchg, cmpxchg, or, and, bts, btr: test-and-set locks, fences) does not count as a
//!    write. An xchg is a write nevertheless if the cycle does not use the value that the xchg
//!    reads: it stores a result. Without a cycle, the code computes.
//! 4. A cycle with a PAUSE waits. This covers back-off loops that read no memory.
//! 5. Otherwise the analysis connects each instruction of the cycle to those whose results it uses,
//!    including those of the previous iteration. A circular dependency is a value carried from
//!    iteration to iteration. `sum += x`, `p = p->next` and `i = hash(i)` carry values: they
//!    compute. A circular dependency of moves and additions of constants only is a counter. A
//!    counter may be compared; any other use, such as in an address or a product, is work.
//! 6. At least one branch must depend on a value that was read from memory and not on a counter.
//!    Values from the frame do not satisfy this rule in a cycle with a counter: they are constants
//!    of the loop.
//! 7. A cycle without a counter waits, regardless of other paths of the loop. A cycle with a
//!    counter waits only if every instruction of the loop is on such a cycle: `for i { if
//!    (*enabled) work(i) }` has an idle cycle, and does not wait.
//!
//! Directly after an atomic operation, the registers of the sample show whether it has succeeded: a
//! lock that was free, or a retry that was not necessary ([`Around::WaitsAfter`]).
//!
//! `corpus.rs` samples loops that gcc, clang, rustc and Go compile at several levels, without calls
//! and with calls (`call.rs`).
//!
//! Not detected: loops of clang at `-O0` that keep a condition in the frame (the shortest path of 3
//! skips their load), and loops longer than [`REACH_BYTES`] to either side. A loop that only polls
//! `rdtsc` waits for time, not for a thread, and does not count as spinning, unless it has a PAUSE.
//! The first, successful attempt of a test-and-set lock looks like a later attempt, except directly
//! after the atomic operation; it is short.

use iced_x86::{
    Code, ConditionCode, Decoder, DecoderOptions, FlowControl, InstructionInfo,
    InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register, UsedMemory,
};
use std::collections::{HashSet, VecDeque};

/// Number of bytes of code before and after the sampled instruction that are analysed.
pub(crate) const REACH_BYTES: u64 = 256;

/// Number of instructions that are followed.
const INSTRUCTIONS_MAX: usize = 96;

/// Number of bytes below the stack pointer that a function may use without moving the pointer, by
/// the System V ABI of x86-64.
pub(super) const RED_ZONE_BYTES: i64 = 128;

/// Storage through which instructions pass values: a register (whole), one processor flag, or
/// memory in the frame, at a constant distance from the stack pointer or the frame pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Register(Register),
    Flag(u32),
    Frame { base: Register, offset: i64 },
}

impl Place {
    fn is_frame(self) -> bool {
        matches!(self, Place::Frame { .. })
    }

    /// Returns the place in the frame that an instruction accesses, if it accesses one.
    pub(super) fn in_frame(memory: &UsedMemory) -> Option<Place> {
        let offset = memory.displacement() as i64;
        let base = memory.base();
        let inside = match base {
            Register::RSP => offset >= -RED_ZONE_BYTES,
            // The arguments of callers are above the frame pointer.
            Register::RBP => offset < 0,
            _ => false,
        };
        (inside && memory.index() == Register::None).then_some(Place::Frame { base, offset })
    }
}

/// Returns whether a write determines all that a read returns, or `None` if it determines nothing.
fn overlap(write: Access, read: Access) -> Option<bool> {
    let ((to, written, all), (from, size, _)) = (write, read);
    let complete = match (to, from) {
        (Place::Frame { base: to, offset: start }, Place::Frame { base: from, offset: wanted }) => {
            let (end, wanted_end) = (start + written as i64, wanted + size as i64);
            if to != from || end <= wanted || wanted_end <= start {
                return None;
            }
            start <= wanted && wanted_end <= end
        }
        _ if to == from => written >= size,
        _ => return None,
    };
    Some(all && complete)
}

/// A place with the size of the access in bytes, and a flag.
pub(super) type Access = (Place, usize, bool);

/// Properties of one instruction.
#[derive(Debug, Clone)]
pub(super) struct Step {
    pub(super) ip: u64,
    /// Addresses of possible successors; targets outside the code are omitted.
    pub(super) next: [Option<u64>; 2],
    conditional: bool,
    /// Whether the instruction has an effect that waiting code does not have.
    pub(super) effect: bool,
    pub(super) pause: bool,
    /// Whether the instruction can be part of a counter: a move between registers and the frame, or
    /// an addition of a constant.
    counts: bool,
    compares: bool,
    pub(super) loads: bool,
    /// Places that are read, with sizes in bytes; `true` for parts of a memory address.
    pub(super) reads: Vec<Access>,
    /// Places that are written, with sizes in bytes; `false` if the old value may remain.
    pub(super) writes: Vec<Access>,
    /// Whether the results come from memory only (failed atomic operations).
    result_is_memory: bool,
    /// Whether the instruction exchanges a register with memory.
    exchanges: bool,
    /// How the instruction reports the success of an atomic operation.
    pub(super) attempt: Option<Attempt>,
    /// Number of calls that the instruction is deeper than the first one.
    pub(super) depth: i32,
    /// Whether the result is known to be the same in all iterations.
    pub(super) invariant: bool,
    /// Whether the instruction restores a value from before the iteration.
    pub(super) restores: bool,
}

/// Behaviour of the code around an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Around {
    /// A loop that waits for another thread.
    Waits,
    /// A loop that waits for another thread if an attempt to change memory, directly before the
    /// address, has failed.
    WaitsAfter(Attempt),
    /// A loop that computes.
    Computes,
    /// No loop without effects, unless a loop calls functions.
    Open,
}

/// How a thread detects that an atomic operation has changed memory as intended: a lock was free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// The zero flag is set.
    ZeroFlag,
    /// The carry flag is not set.
    CarryFlag,
    /// The lowest bytes of this register are zero.
    Register(Register),
}

/// Returns whether the code around `ip` waits for another thread. `code` starts at address `start`.
///
/// `code` may have any content; undecodable code counts as computing. The run time is bounded.
#[cfg(test)]
pub(crate) fn waits(code: &[u8], start: u64, ip: u64) -> bool {
    matches!(around(code, start, ip), Around::Waits | Around::WaitsAfter(_))
}

/// Returns the behaviour of the code around `ip`. `code` starts at address `start`.
///
/// `code` may have any content; undecodable code is open. The run time is bounded.
pub(crate) fn around(code: &[u8], start: u64, ip: u64) -> Around {
    if is_behind_pause(code, start, ip) {
        return Around::Waits;
    }
    // Most code soon writes memory or calls a function, which ends the search.
    let idle = follow(code, start, ip, |step| !step.effect);
    if idle.first().is_some_and(|sampled| sampled.pause) {
        return Around::Waits;
    }
    let Some(cycle) = cycle(&idle, 0, &(0..idle.len()).collect()) else { return Around::Open };
    let waits = match judge(&idle, &cycle) {
        Verdict::Works => false,
        Verdict::Waits => true,
        Verdict::Counts(counters) => {
            let steps = follow(code, start, ip, |_| true);
            let cycle: Vec<usize> =
                cycle.iter().filter_map(|&i| position(&steps, idle[i].ip)).collect();
            let mut visited: HashSet<usize> = cycle.iter().copied().collect();
            let around = loop_around(&steps, &cycle, &counters);
            around.iter().all(|&at| {
                visited.contains(&at)
                    || self::cycle(&steps, at, &around)
                        .filter(|cycle| judge(&steps, cycle) != Verdict::Works)
                        .map(|cycle| visited.extend(cycle))
                        .is_some()
            })
        }
    };
    let before = cycle.last().map(|&i| &idle[i]).filter(|step| step.next[0] == Some(ip));
    match before.and_then(|step| step.attempt) {
        _ if !waits => Around::Computes,
        Some(attempt) => Around::WaitsAfter(attempt),
        None => Around::Waits,
    }
}

/// Returns whether the instruction before `ip` is a PAUSE, which is so slow that samples hit the
/// next instruction.
fn is_behind_pause(code: &[u8], start: u64, ip: u64) -> bool {
    const PAUSE: [u8; 2] = [0xf3, 0x90];
    ip.checked_sub(start)
        .and_then(|o| code.get(..usize::try_from(o).ok()?))
        .is_some_and(|b| b.ends_with(&PAUSE))
}

/// Decodes the instructions that are reachable from `ip`, which becomes step 0. The search does not
/// continue after steps for which `resume` returns false.
fn follow(code: &[u8], start: u64, ip: u64, resume: impl Fn(&Step) -> bool) -> Vec<Step> {
    follow_in(code, start, ip, resume, Place::in_frame)
}

/// As [`follow`], with the places in the frame that `frame` returns.
pub(super) fn follow_in(
    code: &[u8],
    start: u64,
    ip: u64,
    resume: impl Fn(&Step) -> bool,
    frame: impl Fn(&UsedMemory) -> Option<Place>,
) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut visited = HashSet::from([ip]);
    let mut todo = VecDeque::from([ip]);
    let mut factory = InstructionInfoFactory::new();
    while let Some(at) = todo.pop_front() {
        let bytes = at.checked_sub(start).and_then(|o| code.get(usize::try_from(o).ok()?..));
        let Some(bytes) = bytes.filter(|b| !b.is_empty()) else { continue };
        let instruction = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode();
        if instruction.is_invalid() {
            continue;
        }
        let step = step(&instruction, &mut factory, &frame);
        for next in step.next.into_iter().flatten().filter(|_| resume(&step)) {
            if visited.len() < INSTRUCTIONS_MAX && visited.insert(next) {
                todo.push_back(next);
            }
        }
        steps.push(step);
    }
    // Step 0 is the sampled instruction: if it is undecodable, there are no steps.
    steps
}

/// Returns the properties of an instruction. `frame` returns the place in the frame of an access to
/// memory, if it is one.
pub(super) fn step(
    instruction: &iced_x86::Instruction,
    factory: &mut InstructionInfoFactory,
    frame: &dyn Fn(&UsedMemory) -> Option<Place>,
) -> Step {
    let mnemonic = instruction.mnemonic();
    let fall = Some(instruction.next_ip());
    let jump = || Some(instruction.near_branch_target());
    let mut effect = instruction.is_privileged() || instruction.is_string_instruction();
    let next = match instruction.flow_control() {
        FlowControl::Next => [fall, None],
        FlowControl::ConditionalBranch => [fall, jump()],
        FlowControl::UnconditionalBranch => [jump(), None],
        // The called code works, then execution continues.
        FlowControl::Call | FlowControl::IndirectCall | FlowControl::Interrupt => {
            effect = true;
            [fall, None]
        }
        _ => [None, None],
    };
    let repeatable = is_idempotent(instruction);
    let info = factory.info(instruction);
    let mut loads = false;
    for memory in info.used_memory() {
        match memory.access() {
            OpAccess::None | OpAccess::NoMemAccess => {}
            OpAccess::Read | OpAccess::CondRead => loads = true,
            _ if repeatable => loads = true,
            access if frame(memory).is_some() => loads |= access == OpAccess::ReadWrite,
            _ => effect = true,
        }
    }
    let (reads, writes) = accesses(instruction, info, frame, loads, &mut effect);
    Step {
        ip: instruction.ip(),
        next,
        conditional: instruction.flow_control() == FlowControl::ConditionalBranch,
        effect,
        pause: matches!(
            mnemonic,
            Mnemonic::Pause | Mnemonic::Tpause | Mnemonic::Umwait | Mnemonic::Mwaitx
        ),
        counts: is_counting(instruction, info, frame),
        compares: matches!(mnemonic, Mnemonic::Cmp | Mnemonic::Test) || is_condition(instruction),
        loads,
        reads,
        writes,
        exchanges: loads && mnemonic == Mnemonic::Xchg,
        result_is_memory: loads && matches!(mnemonic, Mnemonic::Xchg | Mnemonic::Cmpxchg),
        attempt: match mnemonic {
            Mnemonic::Cmpxchg if loads => Some(Attempt::ZeroFlag),
            Mnemonic::Bts if loads && repeatable => Some(Attempt::CarryFlag),
            Mnemonic::Xchg if loads && instruction.op1_kind() == OpKind::Register => {
                Some(Attempt::Register(instruction.op1_register()))
            }
            _ => None,
        },
        depth: 0,
        invariant: false,
        restores: false,
    }
}

/// Returns whether the instruction stores a condition as 0 or 1.
fn is_condition(instruction: &iced_x86::Instruction) -> bool {
    instruction.condition_code() != ConditionCode::None
        && instruction.flow_control() == FlowControl::Next
        && instruction.op_count() == 1
}

/// Returns whether repeating a write of this instruction leaves the same value.
fn is_idempotent(instruction: &iced_x86::Instruction) -> bool {
    match instruction.mnemonic() {
        Mnemonic::Xchg => true,
        Mnemonic::Cmpxchg
        | Mnemonic::Cmpxchg8b
        | Mnemonic::Cmpxchg16b
        | Mnemonic::Or
        | Mnemonic::And
        | Mnemonic::Bts
        | Mnemonic::Btr => instruction.has_lock_prefix(),
        // The usual fence of older compilers.
        Mnemonic::Add => {
            instruction.has_lock_prefix()
                && is_immediate(instruction, 1)
                && instruction.immediate(1) == 0
        }
        _ => false,
    }
}

/// Returns whether the instruction can be the counter of a loop.
fn is_counting(
    instruction: &iced_x86::Instruction,
    info: &InstructionInfo,
    frame: &dyn Fn(&UsedMemory) -> Option<Place>,
) -> bool {
    match instruction.mnemonic() {
        Mnemonic::Lea => instruction.memory_index() == Register::None,
        _ if !info.used_memory().iter().all(|memory| frame(memory).is_some()) => false,
        Mnemonic::Inc | Mnemonic::Dec => true,
        Mnemonic::Add | Mnemonic::Sub => is_immediate(instruction, 1),
        Mnemonic::Mov => !is_immediate(instruction, 1),
        Mnemonic::Push | Mnemonic::Pop | Mnemonic::Ret | Mnemonic::Leave => true,
        _ => false,
    }
}

/// Returns the registers and flags that the instruction reads and writes. Sets `effect` for
/// registers that no waiting loop uses.
fn accesses(
    instruction: &iced_x86::Instruction,
    info: &InstructionInfo,
    frame: &dyn Fn(&UsedMemory) -> Option<Place>,
    loads: bool,
    effect: &mut bool,
) -> (Vec<Access>, Vec<Access>) {
    let is_address = |register: Register| {
        loads
            && [instruction.memory_base(), instruction.memory_index()]
                .iter()
                .any(|r| r.full_register() == register.full_register())
    };
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    for used in info.used_registers() {
        let register = used.register();
        let place = Place::Register(register.full_register());
        if !(register.is_gpr() || register.is_vector_register() || register.is_k()) {
            // Segments are constant; no waiting loop uses the floating-point stack.
            *effect |= !register.is_segment_register();
            continue;
        }
        let size = register.size();
        let (read, write) = read_and_write(used.access());
        reads.extend(read.then_some((place, size, is_address(register))));
        writes.extend(write.map(|all| (place, size, all)));
    }
    for memory in info.used_memory() {
        if let Some(place) = frame(memory) {
            let size = memory.memory_size().size();
            let (read, write) = read_and_write(memory.access());
            reads.extend(read.then_some((place, size, false)));
            writes.extend(write.filter(|_| !is_idempotent(instruction)).map(|a| (place, size, a)));
        }
    }
    let flags = |bits: u32| (0..32).map(|b| 1 << b).filter(move |b| bits & b != 0).map(Place::Flag);
    reads.extend(flags(instruction.rflags_read()).map(|p| (p, 1, false)));
    writes.extend(flags(instruction.rflags_modified()).map(|p| (p, 1, true)));
    (reads, writes)
}

/// Returns whether an access reads, and whether it writes: `false` if the old value may remain.
fn read_and_write(access: OpAccess) -> (bool, Option<bool>) {
    match access {
        OpAccess::Read | OpAccess::CondRead => (true, None),
        OpAccess::Write => (false, Some(true)),
        OpAccess::ReadWrite => (true, Some(true)),
        OpAccess::CondWrite | OpAccess::ReadCondWrite => (true, Some(false)),
        OpAccess::None | OpAccess::NoMemAccess => (false, None),
    }
}

fn is_immediate(instruction: &iced_x86::Instruction, operand: u32) -> bool {
    instruction.code() != Code::INVALID
        && matches!(
            instruction.op_kind(operand),
            OpKind::Immediate8
                | OpKind::Immediate16
                | OpKind::Immediate32
                | OpKind::Immediate64
                | OpKind::Immediate8to16
                | OpKind::Immediate8to32
                | OpKind::Immediate8to64
                | OpKind::Immediate32to64
        )
}

/// Returns the shortest path from a step back to itself over steps without effect, within
/// `allowed`; in order, `from` first.
fn cycle(steps: &[Step], from: usize, allowed: &HashSet<usize>) -> Option<Vec<usize>> {
    if steps.get(from)?.effect {
        return None;
    }
    let mut came_from: Vec<Option<usize>> = vec![None; steps.len()];
    let mut todo = VecDeque::from([from]);
    while let Some(at) = todo.pop_front() {
        for next in successors(steps, at) {
            if next == from {
                let mut way = vec![at];
                while let Some(before) = came_from[*way.last()?] {
                    way.push(before);
                }
                way.reverse();
                return Some(way);
            }
            if allowed.contains(&next) && !steps[next].effect && came_from[next].is_none() {
                came_from[next] = Some(at);
                todo.push_back(next);
            }
        }
    }
    None
}

fn successors(steps: &[Step], at: usize) -> impl Iterator<Item = usize> + '_ {
    steps[at].next.into_iter().flatten().filter_map(|ip| position(steps, ip))
}

pub(super) fn position(steps: &[Step], ip: u64) -> Option<usize> {
    steps.iter().position(|s| s.ip == ip)
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The cycle carries a value, or depends on no value in memory.
    Works,
    /// All iterations are equal.
    Waits,
    /// All iterations are equal except for counters, in these places.
    Counts(Vec<Place>),
}

/// Returns what one iteration of this cycle does.
pub(super) fn judge(steps: &[Step], cycle: &[usize]) -> Verdict {
    let cycle: Vec<&Step> = cycle.iter().map(|&i| &steps[i]).collect();
    if cycle.iter().any(|s| s.pause) {
        return Verdict::Waits;
    }
    if !keeps_its_frame(&cycle) {
        return Verdict::Works;
    }
    // For each step, the steps whose results it reads, and whether as part of an address.
    let uses: Vec<Vec<(usize, bool)>> = (0..cycle.len()).map(|i| sources(&cycle, i)).collect();
    // For each step, the steps on which its results depend. The result of a failed atomic operation
    // comes from memory.
    let inputs: Vec<Vec<usize>> = uses
        .iter()
        .zip(&cycle)
        .map(|(uses, step)| {
            let derived = !step.result_is_memory && !step.invariant;
            uses.iter().filter(|_| derived).map(|&(from, _)| from).collect()
        })
        .collect();

    let is_used = |i: usize| uses.iter().flatten().any(|&(from, _)| from == i);
    if (0..cycle.len()).any(|i| cycle[i].exchanges && !is_used(i)) {
        return Verdict::Works;
    }
    let carried: Vec<usize> = (0..cycle.len()).filter(|&i| is_self_dependent(i, &inputs)).collect();
    if carried.iter().any(|&i| !cycle[i].counts) {
        return Verdict::Works;
    }
    let mut varies: Vec<bool> = (0..cycle.len()).map(|i| carried.contains(&i)).collect();
    let is_own =
        |read: &Access| read.0.is_frame() && (!carried.is_empty() || is_written(&cycle, *read));
    let mut loaded: Vec<bool> =
        cycle.iter().map(|s| s.loads && !s.reads.iter().any(is_own)).collect();
    spread(&mut varies, &inputs);
    spread(&mut loaded, &inputs);
    for (i, step) in cycle.iter().enumerate() {
        let may = step.counts || step.compares || step.conditional || step.invariant;
        if uses[i].iter().any(|&(from, address)| varies[from] && (!may || (address && step.loads)))
        {
            return Verdict::Works;
        }
    }
    if !(0..cycle.len()).any(|i| cycle[i].conditional && loaded[i] && !varies[i]) {
        return Verdict::Works;
    }
    if carried.is_empty() {
        return Verdict::Waits;
    }
    // A loop that counts must itself test what it waits for: `for i { work_if_enabled(i) }` calls a
    // function whose test alone is idle. A called function answers by the value that it returns,
    // unless its branches depend on the counter, as in an iterator over a range.
    let outermost = cycle.iter().map(|s| s.depth).min().unwrap_or(0);
    let is_called = |i: usize| cycle[i].depth > outermost;
    let counts_called = (0..cycle.len()).any(|i| is_called(i) && cycle[i].conditional && varies[i]);
    let mut answers: Vec<bool> = (0..cycle.len())
        .map(|i| loaded[i] || (is_called(i) && !counts_called && !cycle[i].restores))
        .collect();
    // An answer that is a constant also passes from step to step.
    let passes = |(uses, step): (&Vec<(usize, bool)>, &&Step)| -> Vec<usize> {
        uses.iter().filter(|_| !step.restores).map(|&(from, _)| from).collect()
    };
    let passed: Vec<Vec<usize>> = uses.iter().zip(&cycle).map(passes).collect();
    spread(&mut answers, &passed);
    let tests = |i: usize| cycle[i].conditional && cycle[i].depth == outermost && !varies[i];
    if !(0..cycle.len()).any(|i| tests(i) && answers[i]) {
        return Verdict::Works;
    }
    let written = carried.iter().flat_map(|&i| &cycle[i].writes).map(|w| w.0);
    Verdict::Counts(written.filter(|p| !matches!(p, Place::Flag(_))).collect())
}

/// Returns whether equal places in the frame are the same memory in all iterations: the cycle
/// addresses the places that it writes by one register, and does not write this register.
fn keeps_its_frame(cycle: &[&Step]) -> bool {
    let base = |access: &Access| match access.0 {
        Place::Frame { base, .. } => Some(base),
        _ => None,
    };
    let Some(written) = cycle.iter().flat_map(|s| &s.writes).find_map(base) else { return true };
    cycle
        .iter()
        .flat_map(|s| s.reads.iter().chain(&s.writes))
        .filter_map(base)
        .all(|b| b == written)
        && !cycle.iter().flat_map(|s| &s.writes).any(|w| w.0 == Place::Register(written))
}

fn is_written(cycle: &[&Step], read: Access) -> bool {
    cycle.iter().flat_map(|s| &s.writes).any(|write| overlap(*write, read).is_some())
}

/// Returns the steps of the cycle whose results step `i` reads, including those of the previous
/// iteration.
fn sources(cycle: &[&Step], i: usize) -> Vec<(usize, bool)> {
    let mut found = Vec::new();
    for &read in &cycle[i].reads {
        for back in 1..=cycle.len() {
            let from = (i + cycle.len() - back) % cycle.len();
            let complete = cycle[from].writes.iter().find_map(|write| overlap(*write, read));
            let Some(complete) = complete else { continue };
            found.push((from, read.2));
            if complete {
                break;
            }
        }
    }
    found
}

/// Returns whether the result of a step depends on itself, directly or indirectly.
fn is_self_dependent(step: usize, inputs: &[Vec<usize>]) -> bool {
    let mut marks = vec![false; inputs.len()];
    let mut todo = vec![step];
    while let Some(at) = todo.pop() {
        for &input in &inputs[at] {
            if !std::mem::replace(&mut marks[input], true) {
                todo.push(input);
            }
        }
    }
    marks[step]
}

/// Marks every step whose result depends on a marked step, up to the fixed point.
fn spread(marks: &mut [bool], inputs: &[Vec<usize>]) {
    let mut changed = true;
    while changed {
        changed = false;
        for i in 0..marks.len() {
            if !marks[i] && inputs[i].iter().any(|&from| marks[from]) {
                marks[i] = true;
                changed = true;
            }
        }
    }
}

/// Returns the loop around a cycle: all steps on paths from the cycle back to the cycle that do not
/// reset its counters.
///
/// A reset of a counter starts another loop, even if it leads back to the cycle: a wait that blocks
/// after a thousand iterations and then waits again has two loops, of which only the inner one is
/// analysed.
pub(super) fn loop_around(steps: &[Step], cycle: &[usize], counters: &[Place]) -> HashSet<usize> {
    let resets_counter = |i: usize| {
        let step = &steps[i];
        let reads = |place| step.reads.iter().any(|r| r.0 == place);
        step.writes.iter().any(|&(place, _, all)| all && counters.contains(&place) && !reads(place))
    };
    let inside: HashSet<usize> =
        (0..steps.len()).filter(|i| cycle.contains(i) || !resets_counter(*i)).collect();
    let edges: Vec<(usize, usize)> = inside
        .iter()
        .flat_map(|&i| successors(steps, i).map(move |next| (i, next)))
        .filter(|(_, next)| inside.contains(next))
        .collect();
    let reached = |edges: &[(usize, usize)]| {
        let mut visited: HashSet<usize> = cycle.iter().copied().collect();
        let mut todo = cycle.to_vec();
        while let Some(at) = todo.pop() {
            todo.extend(
                edges
                    .iter()
                    .filter(|(from, _)| *from == at)
                    .map(|(_, to)| *to)
                    .filter(|to| visited.insert(*to)),
            );
        }
        visited
    };
    let back: Vec<(usize, usize)> = edges.iter().map(|&(from, to)| (to, from)).collect();
    reached(&edges).intersection(&reached(&back)).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::arch::asm;

    /// Assembles lines into a function that jumps over them. Evaluates to their bytes and address.
    /// Labels may be 2 to 9.
    macro_rules! assembled {
        ($($line:literal),+ $(,)?) => {{
            let (start, end): (usize, usize);
            // SAFETY: loads two addresses and jumps over the code between them, which never runs.
            unsafe {
                asm!(
                    "lea {start}, [rip + 20f]",
                    "lea {end}, [rip + 21f]",
                    "jmp 22f",
                    "20:",
                    $($line,)+
                    "21:",
                    "ret",
                    "22:",
                    start = out(reg) start,
                    end = out(reg) end,
                )
            };
            // SAFETY: the range is code, which is never written.
            (unsafe { std::slice::from_raw_parts(start as *const u8, end - start) }, start as u64)
        }};
    }

    /// Returns for every instruction whether a sample there counts as waiting.
    fn verdicts((code, start): (&[u8], u64)) -> Vec<(u64, bool)> {
        let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
        let instructions = std::iter::from_fn(|| decoder.can_decode().then(|| decoder.decode()));
        instructions.map(|i| (i.ip() - start, waits(code, start, i.ip()))).collect()
    }

    /// Checks that all instructions of the loop count as waiting.
    #[track_caller]
    fn is_wait((code, start): (&[u8], u64)) {
        let on_loop = |offset: u64| {
            let mut steps = follow(code, start, start + offset, |_| true);
            steps.iter_mut().for_each(|s| s.effect = false);
            cycle(&steps, 0, &(0..steps.len()).collect()).is_some()
        };
        let verdicts = verdicts((code, start));
        let within: Vec<_> = verdicts.iter().filter(|(offset, _)| on_loop(*offset)).collect();
        assert!(!within.is_empty() && within.iter().all(|(_, waits)| *waits), "{verdicts:x?}");
    }

    #[track_caller]
    fn is_work(code: (&[u8], u64)) {
        let verdicts = verdicts(code);
        assert!(verdicts.iter().all(|(_, waits)| !waits), "{verdicts:x?}");
    }

    /// Defines one test for each loop.
    macro_rules! loops {
        ($check:ident: $($name:ident => $code:literal;)+) => {
            $(
                #[test]
                fn $name() {
                    $check(assembled!($code));
                }
            )+
        };
    }

    loops! { is_wait:
        flag_spin_waits => "2: cmp dword ptr [rdi], 0; je 2b";
        flag_spin_with_pause_waits => "jmp 3f; 2: pause; 3: mov eax, [rdi]; test eax, eax; je 2b";
        flag_spin_with_fence_waits =>
            "2: lock or qword ptr [rsp], 0; mov eax, [rdi + 4*rsi - 4]; test eax, eax; je 2b";
        flag_spin_on_two_flags_waits =>
            "2: mov eax, [rdi]; test eax, eax; jne 3f; mov eax, [rsi]; test eax, eax; je 2b; 3:";
        flag_spin_behind_a_pointer_waits =>
            "2: mov rax, [rdi]; mov eax, [rax + 8]; test eax, eax; je 2b";
        flag_spin_on_a_double_waits =>
            "pxor xmm1, xmm1; 2: movsd xmm0, [rdi]; ucomisd xmm0, xmm1; jp 3f; je 2b; 3:";
        ticket_lock_waits => "2: cmp [rdi], eax; jne 2b";
        test_and_set_lock_waits => "2: mov eax, edx; xchg eax, [rdi]; test eax, eax; jne 2b";
        bit_lock_waits => "2: lock bts qword ptr [rdi], 0; jc 2b";
        compare_and_swap_lock_waits => "2: xor eax, eax; lock cmpxchg [rdi], edx; jne 2b";
        compare_and_swap_increment_that_fails_waits =>
            "mov eax, [rdi]; 2: lea edx, [rax + 1]; lock cmpxchg [rdi], edx; jne 2b";
        libgomp_do_spin_waits =>
            "2: cmp [rdi], esi; jne 3f; pause; add rax, 1; cmp rax, rdx; jb 2b; 3:";
        counted_spin_without_pause_waits =>
            "2: cmp [rdi], esi; jne 3f; inc rax; cmp rax, rdx; jb 2b; 3:";
        counted_spin_with_limit_in_memory_waits =>
            "2: cmp [rdi], esi; jne 3f; inc rax; cmp rax, [rsp + 8]; jb 2b; 3:";
        counted_spin_with_counter_in_the_frame_waits => // parsec_barrier_wait, gcc -O3
            "jmp 3f; 2: mov rax, [rsp + 8]; add rax, 1; mov [rsp + 8], rax; mov edx, [rbp + 96]; \
             test edx, edx; je 4f; 3: mov r13, [rsp + 8]; cmp r13, 35000; jbe 2b; 4:";
        counted_spin_with_counter_in_the_red_zone_waits => // gcc -O1, a leaf function
            "jmp 3f; 2: mov rax, [rsp - 8]; add rax, 1; mov [rsp - 8], rax; \
             3: mov eax, [rip + 64]; test eax, eax; jne 4f; mov rax, [rsp - 8]; cmp rax, 999; \
             jbe 2b; 4:";
        counted_spin_without_optimisation_waits => // gcc -O0
            "jmp 3f; 2: add dword ptr [rbp - 4], 1; 3: mov rax, [rbp - 24]; mov eax, [rax]; \
             test eax, eax; jne 4f; cmp dword ptr [rbp - 4], 999; jle 2b; 4:";
        flag_spin_with_a_copy_in_the_frame_waits => // clang -O0
            "2: mov rax, [rbp - 16]; mov eax, [rax]; mov [rbp - 20], eax; cmp dword ptr [rbp - 20], 0; \
             je 2b";
        flag_spin_on_the_own_frame_waits => // MCS lock with its node on the stack
            "2: mov eax, [rsp + 16]; test eax, eax; jne 2b";
        spin_until_a_deadline_waits =>
            "2: mov eax, [rdi]; test eax, eax; jne 3f; rdtsc; shl rdx, 32; or rax, rdx; \
             cmp rax, rsi; jb 2b; 3:";
        backoff_loop_with_pause_waits => "2: pause; dec ecx; jne 2b";
        timed_backoff_with_pause_waits =>
            "2: pause; rdtsc; shl rdx, 32; or rax, rdx; cmp rax, rsi; jb 2b";
    }

    loops! { is_work:
        sum_computes => "2: add rax, [rdi]; add rdi, 8; cmp rdi, rdx; jne 2b";
        sum_of_one_volatile_place_computes => "2: add rax, [rdi]; dec rcx; jne 2b";
        copy_computes =>
            "2: mov al, [rsi + rcx]; mov [rdi + rcx], al; inc rcx; cmp rcx, rdx; jne 2b";
        repeated_move_computes => "rep movsb";
        scan_for_a_byte_computes => "2: repne scasb; jne 2b";
        fill_of_one_place_computes => "2: mov [rdi], ecx; inc ecx; cmp ecx, edx; jne 2b";
        triad_computes =>
            "2: movsd xmm0, [rsi + rax]; mulsd xmm0, xmm2; addsd xmm0, [rdx + rax]; \
             movsd [rdi + rax], xmm0; add rax, 8; cmp rax, rcx; jne 2b";
        floating_point_product_computes => "2: mulsd xmm0, [rdi]; dec ecx; jne 2b";
        x87_sum_computes => "2: fadd qword ptr [rdi]; fcomi st, st(1); jb 2b";
        integer_hash_computes =>
            "2: mov rdx, rax; shl rdx, 13; xor rax, rdx; mov rdx, rax; shr rdx, 7; xor rax, rdx; \
             dec rcx; jne 2b";
        random_numbers_with_constants_in_memory_compute =>
            "2: imul rax, [rdi]; add rax, [rdi + 8]; dec rcx; jne 2b";
        pointer_chase_computes => "2: mov rdi, [rdi]; test rdi, rdi; jne 2b";
        search_in_a_list_computes =>
            "2: cmp [rdi + 8], esi; je 3f; mov rdi, [rdi]; test rdi, rdi; jne 2b; 3:";
        string_length_computes => "2: inc rax; cmp byte ptr [rdi + rax], 0; jne 2b";
        binary_search_computes =>
            "2: lea rcx, [rax + rdx]; shr rcx, 1; cmp [rdi + 4*rcx], esi; jge 3f; \
             lea rax, [rcx + 1]; cmp rax, rdx; jl 2b; jmp 4f; 3: mov rdx, rcx; cmp rax, rdx; \
             jl 2b; 4:";
        trial_division_of_a_spilled_number_computes =>
            "2: mov rax, [rsp + 8]; xor edx, edx; div rcx; test rdx, rdx; je 3f; inc rcx; \
             cmp rcx, [rsp + 8]; jb 2b; 3:";
        search_for_a_square_in_memory_computes =>
            "2: inc rcx; mov rax, rcx; imul rax, rax; cmp rax, [rdi]; jb 2b";
        atomic_additions_compute => "2: lock inc qword ptr [rdi]; dec rcx; jne 2b";
        atomic_tickets_compute => "2: mov eax, 1; lock xadd [rdi], eax; cmp eax, 100; jl 2b";
        atomic_store_of_a_result_computes =>
            "2: xor ecx, ecx; 3: cmp dword ptr [rdi + rcx], 0; je 4f; inc rcx; jmp 3b; \
             4: mov eax, edx; xchg eax, [rsi]; jmp 2b";
        exchange_of_a_growing_number_computes =>
            "2: inc ecx; mov eax, ecx; xchg eax, [rdi]; test eax, eax; jne 2b";
        delay_with_counter_in_the_frame_computes =>
            "jmp 3f; 2: add dword ptr [rbp - 4], 1; 3: cmp dword ptr [rbp - 4], 999; jle 2b";
        delay_with_limit_and_counter_in_the_frame_computes =>
            "jmp 3f; 2: inc dword ptr [rsp]; 3: mov eax, [rsp]; cmp eax, [rsp + 4]; jl 2b";
        sum_without_optimisation_computes =>
            "jmp 3f; 2: mov eax, [rbp - 4]; cdqe; lea rdx, [rax * 4]; mov rax, [rbp - 24]; \
             add rax, rdx; mov eax, [rax]; add [rbp - 8], eax; add dword ptr [rbp - 4], 1; \
             3: mov eax, [rbp - 4]; cmp eax, [rbp - 28]; jl 2b";
        count_by_a_constant_in_the_frame_computes =>
            "2: cmp dword ptr [rbp - 12], 0; je 3f; add dword ptr [rbp - 8], 1; \
             3: add dword ptr [rbp - 4], 1; cmp dword ptr [rbp - 4], 999; jle 2b";
        list_without_optimisation_computes =>
            "2: mov rax, [rbp - 8]; mov rax, [rax]; mov [rbp - 8], rax; \
             cmp qword ptr [rbp - 8], 0; jne 2b";
        product_in_the_frame_computes =>
            "2: mov rcx, [rbp - 32]; cmp dword ptr [rcx], 0; jne 3f; \
             imul eax, [rbp - 4], 3; mov [rbp - 4], eax; jmp 2b; 3:";
        parts_of_a_place_in_the_frame_compute => // the halves change places
            "2: cmp dword ptr [rcx], 0; jne 3f; mov rax, [rsp]; mov [rsp + 4], eax; \
             shr rax, 32; mov [rsp], eax; jmp 2b; 3:";
        counter_in_shared_memory_computes =>
            "2: cmp dword ptr [rcx], 0; jne 3f; inc dword ptr [rbp + 16]; jmp 2b; 3:";
        frame_that_moves_computes =>
            "2: cmp dword ptr [rcx], 0; jne 3f; inc dword ptr [rsp + 8]; add rsp, 8; jmp 2b; 3:";
        clock_polled_without_pause_computes =>
            "2: rdtsc; shl rdx, 32; or rax, rdx; cmp rax, rsi; jb 2b";
        empty_counting_computes => "2: dec rcx; jne 2b";
        loop_of_system_calls_computes =>
            "2: cmp dword ptr [rdi], 0; jne 3f; mov eax, 24; syscall; jmp 2b; 3:";
        counted_work_that_is_switched_off_computes =>
            "2: cmp dword ptr [rdi], 0; je 3f; mov [rsi + 8*rax], rax; 3: inc rax; cmp rax, rdx; \
             jb 2b";
        straight_code_computes => "mov eax, [rdi]; cmp eax, 1; je 3f; add eax, 2; 3:";
    }

    #[test]
    fn spin_then_block_waits_in_the_inner_loop_only() {
        // gcc -O2: the loop is entered in its middle, and blocking leads back to the start of the
        // count.
        let code = assembled!(
            "2:",
            "mov eax, 1000",
            "jmp 4f",
            "3:",
            "sub eax, 1",
            "je 5f",
            "4:",
            "mov edx, [rbx]",
            "test edx, edx",
            "je 3b",
            "jmp 6f",
            "5:",
            "mov rdi, rbx",
            "call rcx",
            "jmp 2b",
            "6:",
        );
        let waits: Vec<bool> = verdicts(code).into_iter().map(|v| v.1).collect();
        assert_eq!(waits, [false, false, true, true, true, true, true, false, false, false, false]);
    }

    #[test]
    fn barrier_waits_in_its_inner_loop_only() {
        let code = assembled!(
            "2:",
            "xor r8d, 1",
            "mov eax, 1",
            "lock xadd [rsi], eax",
            "3:",
            "mov eax, [rdi]",
            "cmp eax, r8d",
            "jne 3b",
            "dec ecx",
            "jne 2b",
        );
        let waits: Vec<bool> = verdicts(code).into_iter().map(|v| v.1).collect();
        assert_eq!(waits, [false, false, false, true, true, true, false, false]);
    }

    #[test]
    fn pause_in_a_loop_that_calls_waits_there_and_behind() {
        // The OpenMP runtime of LLVM calls a virtual function that returns whether it is done.
        let code = assembled!(
            "2:",
            "mov [rsp + 8], eax",
            "pause",
            "call [rcx + 32]",
            "test al, al",
            "jne 2b"
        );
        let waits: Vec<bool> = verdicts(code).into_iter().map(|v| v.1).collect();
        assert_eq!(waits, [false, true, true, false, false]);
    }

    #[test]
    fn pthread_spin_lock_of_this_libc_waits_somewhere() {
        let start = libc::pthread_spin_lock as *const () as usize;
        // SAFETY: the function's code, and what follows it in libc, which is larger than this.
        let code = unsafe { std::slice::from_raw_parts(start as *const u8, 64) };
        assert!(verdicts((code, start as u64)).iter().any(|v| v.1));
    }

    #[test]
    fn code_that_is_cut_short_computes() {
        let (code, start) = assembled!("2:", "cmp dword ptr [rdi], 0", "je 2b");
        for bytes in 0..code.len() {
            assert!(!waits(&code[..bytes], start, start));
        }
        assert!(!waits(code, start, start - 1));
        assert!(!waits(code, start, start + code.len() as u64));
    }

    proptest! {
        #[test]
        fn waits_on_random_bytes_ends_without_panic(
            code in proptest::collection::vec(any::<u8>(), 0..600),
            start in prop_oneof![any::<u64>(), Just(u64::MAX - 300)],
            offset in 0u64..700,
        ) {
            waits(&code, start, start.wrapping_add(offset));
        }

        /// Branches and simple instructions alone: many loops, which random bytes seldom have.
        #[test]
        fn waits_on_random_loops_ends_without_panic(
            code in proptest::collection::vec(
                prop_oneof![
                    (0x70u8..0x80, any::<i8>()).prop_map(|(op, to)| vec![op, to as u8]),
                    Just(vec![0x8b, 0x07]),
                    Just(vec![0xff, 0xc8]),
                    Just(vec![0x85, 0xc0]),
                    Just(vec![0x89, 0xc1]),
                    Just(vec![0xff, 0xd0]),
                ],
                0..200,
            ),
            at in any::<proptest::sample::Index>(),
        ) {
            let code = code.concat();
            if !code.is_empty() {
                waits(&code, 0x1000, 0x1000 + at.index(code.len()) as u64);
            }
        }
    }
}
