//! Detects loops that wait by calling functions, such as `while (pthread_mutex_trylock(&m)) ;`.
//!
//! `code.rs` analyses loops without calls. If the sampled code has no such loop, this analysis
//! follows the code *through* calls and returns, from the registers and the stack of the sample:
//!
//! ```text
//!     caller                     procedure linkage        libc
//!   L:  mov  rdi, rbx     +--->  jmp [slot]  ----------->  trylock: push rbx
//!       call trylock  ----+                                         mov eax, [rdi]
//!       test eax, eax  <--------- (return address,                  test eax, eax    <- ip
//!       jne  L                     on the stack of the sample)      ...
//!                                                                   ret
//! ```
//!
//! 1. The state of a path has what is known about the registers and the frame: constants,
//!    addresses in the stack, and values that are unchanged since the sample. Everything else is
//!    unknown, above all what the code reads from memory: the sample is up to a second old when it
//!    is analysed.
//! 2. At a branch that known values decide, the path takes the side that the program takes. At
//!    other branches, it forks. A function that returns the constant -1 in case of an error is
//!    therefore not followed into the code that handles other results.
//! 3. An indirect call or jump is followed if its target is read from a constant address, as in
//!    procedure linkage tables, or from a jump table, of which every target is followed.
//! 4. A path ends at an effect: a write outside the stack of the thread, or a system call other
//!    than `sched_yield`. The stack is the memory at known distances from the stack pointer.
//! 5. A path back to the sampled instruction at the same stack depth is a cycle, and the rules of
//!    `code.rs` decide whether the cycle waits. In addition, a cycle with a counter must test an
//!    answer of a called function, or memory, in its outermost function, all of whose loop must be
//!    on waiting cycles: the called functions may do other things in other cases.
//!
//! 6. `evidence.rs` compares the samples on cycles with the other samples in the loop and in
//!    functions that it calls: `while (!done(m)) step(m)` has an idle cycle if `step` returns early
//!    after an error, but spends its time elsewhere.
//!
//! A cycle without a call is left to `code.rs`. The analysis is bounded by
//! [`INSTRUCTIONS_MAX`] instructions.

use super::code::{self, Attempt, Place, Step, Verdict};
use super::ring::{Context, REGISTER_COUNT, STACK_POINTER};
use super::state::{
    PRESERVED, R11, RAX, RBP, RCX, State, Value, constant, extend, flags, holds, index,
    is_high_byte, mask, operand_bytes, part, stack,
};
use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind, Register, UsedMemory,
};
use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;

/// Number of instructions that one analysis follows, over all paths.
pub(super) const INSTRUCTIONS_MAX: usize = 1_000;

/// Number of instructions on a path.
const PATH_MAX: usize = 300;

/// Number of paths that wait for their turn.
const PATHS_MAX: usize = 64;

/// Number of entries of a jump table that are read.
const TABLE_MAX: usize = 96;

/// Distance between the targets of a jump table, at most.
const TABLE_REACH_BYTES: u64 = 1 << 20;

/// Distance of the targets of a jump table from the table, at most.
const TABLE_DISTANCE_BYTES: i64 = 1 << 24;

/// Distance from the stack pointer up to which an address counts as one in the stack.
const STACK_REACH_BYTES: u64 = 1 << 16;

/// Number of instructions from the load of an entry of a jump table to the jump.
const JUMP_INSTRUCTIONS_MAX: usize = 3;

/// Number of callers whose addresses are searched on the stack.
const CALLERS_MAX: usize = 8;

/// Number of bytes that one decoding needs.
const INSTRUCTION_BYTES_MAX: usize = 15;

const PAGE_BYTES: u64 = 4096;

/// Number of pages of a process that are kept; a full cache is emptied.
const PAGES_MAX: usize = 256;

/// Pages of processes, for the time of one round of analyses.
#[derive(Default)]
pub(super) struct Pages(HashMap<(i32, u64), Option<Box<[u8]>>>);

impl Pages {
    /// Copies bytes of a process, as far as they are readable. Returns their number.
    fn copy(&mut self, pid: i32, address: u64, into: &mut [u8]) -> usize {
        let mut copied = 0;
        while copied < into.len() {
            let Some(at) = address.checked_add(copied as u64) else { break };
            let start = at - at % PAGE_BYTES;
            if self.0.len() >= PAGES_MAX {
                self.0.clear();
            }
            let page = self.0.entry((pid, start)).or_insert_with(|| super::read_page(pid, start));
            let Some(rest) = page.as_ref().and_then(|p| p.get((at - start) as usize..)) else {
                break;
            };
            let count = rest.len().min(into.len() - copied);
            into[copied..copied + count].copy_from_slice(&rest[..count]);
            copied += count;
            if count == 0 {
                break;
            }
        }
        copied
    }

    fn word(&mut self, pid: i32, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        (self.copy(pid, address, &mut bytes) == 8).then(|| u64::from_le_bytes(bytes))
    }
}

/// Part of a path, from one fork to the next.
struct Segment {
    parent: Option<Rc<Segment>>,
    /// Addresses of the instructions.
    steps: Vec<u64>,
}

/// The frame of a step: stack pointer and frame pointer before it.
#[derive(Debug, Clone, Copy)]
struct Reference {
    stack_pointer: i64,
    frame_pointer: Value,
}

/// Result of an analysis, and the callers on which it depends. Functions that the code calls by
/// pointers count as the same for all samples of an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Outcome {
    /// Return addresses that were read from the stack of the sample, with their distances from the
    /// stack pointer.
    pub(super) returns: Vec<(usize, u64)>,
    /// The loop, if it may wait.
    pub(super) waiting: Option<Waiting>,
    /// Whether a bound ended the search before all paths were followed.
    pub(super) is_cut: bool,
    /// Number of instructions that were followed.
    pub(super) followed: usize,
}

/// A loop that may wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Waiting {
    /// Addresses behind its calls.
    pub(super) calls: Vec<u64>,
    /// The lowest and the highest address of its instructions, without the called functions.
    pub(super) span: (u64, u64),
    /// The attempt directly before the sampled instruction: the loop waits only if it has failed.
    pub(super) attempt: Option<Attempt>,
}

impl Waiting {
    /// Returns whether the registers of a sample show that the loop does not wait.
    pub(super) fn has_succeeded(&self, context: &Context<'_>) -> bool {
        self.attempt.is_some_and(|attempt| has_succeeded(attempt, context))
    }
}

impl Outcome {
    /// Returns whether a sample at the same address has the same callers.
    pub(super) fn applies(&self, context: &Context<'_>) -> bool {
        are_on_stack(&self.returns, context)
    }
}

/// Returns whether the stack of a sample has these words.
pub(super) fn are_on_stack(words: &[(usize, u64)], context: &Context<'_>) -> bool {
    words.iter().all(|&(at, address)| word(context, at) == Some(address))
}

/// Returns whether the registers of a sample show that an attempt has succeeded.
pub(super) fn has_succeeded(attempt: Attempt, context: &Context<'_>) -> bool {
    const CARRY: u64 = 1;
    const ZERO: u64 = 1 << 6;
    match attempt {
        Attempt::ZeroFlag => context.flags & ZERO != 0,
        Attempt::CarryFlag => context.flags & CARRY == 0,
        Attempt::Register(register) => {
            let value = index(register).map(|i| context.registers[i]);
            !is_high_byte(register) && value.is_some_and(|v| v & mask(register.size()) == 0)
        }
    }
}

fn word(context: &Context<'_>, at: usize) -> Option<u64> {
    context.stack.get(at..)?.first_chunk().map(|b| u64::from_le_bytes(*b))
}

/// Searches for a loop with calls around `ip` of a process that waits for another thread.
pub(super) fn waits(pid: i32, ip: u64, context: &Context<'_>, pages: &mut Pages) -> Outcome {
    let mut search = Search::new(pid, context, pages);
    let waiting = search.judge(ip);
    let Search { returns, is_cut, left, .. } = search;
    Outcome { returns, waiting, is_cut, followed: INSTRUCTIONS_MAX - left }
}

/// Returns the return addresses of the functions that are active at a sample, with their distances
/// from the stack pointer, the innermost first, and the number of instructions that were followed.
/// The list may be incomplete.
pub(super) fn callers(
    pid: i32,
    ip: u64,
    context: &Context<'_>,
    pages: &mut Pages,
) -> (Vec<(usize, u64)>, usize) {
    let mut search = Search::new(pid, context, pages);
    search.skips_calls = true;
    let mut state = search.start(0, None, true);
    let mut ip = ip;
    for _ in 0..CALLERS_MAX {
        match search.leave(ip, state) {
            Some((caller, after)) => (ip, state) = (caller, after),
            None => break,
        }
    }
    (search.returns, INSTRUCTIONS_MAX - search.left)
}

/// A cycle through the sampled instruction.
struct Cycle {
    steps: Vec<Step>,
    references: Vec<Reference>,
}

impl Cycle {
    fn outermost(&self) -> i32 {
        self.steps.iter().map(|s| s.depth).min().unwrap_or(0)
    }

    /// Returns the addresses to which the functions return that the outermost one calls.
    fn calls(&self) -> Vec<u64> {
        let outermost = self.outermost();
        let count = self.steps.len();
        let returns = (0..count).filter(|&i| {
            self.steps[i].depth == outermost
                && self.steps[(i + count - 1) % count].depth > outermost
        });
        returns.map(|i| self.steps[i].ip).collect()
    }

    /// Returns what is known of the loop, for a sample at `ip`.
    fn waiting(&self, ip: u64) -> Waiting {
        let outermost = self.outermost();
        let own = self.steps.iter().filter(|s| s.depth == outermost).map(|s| s.ip);
        let span = own.fold((u64::MAX, 0), |(low, high), ip| (low.min(ip), high.max(ip)));
        let before = self.steps.last().filter(|step| step.next[0] == Some(ip));
        Waiting { calls: self.calls(), span, attempt: before.and_then(|step| step.attempt) }
    }
}

struct Search<'s> {
    pid: i32,
    context: &'s Context<'s>,
    pages: &'s mut Pages,
    factory: InstructionInfoFactory,
    left: usize,
    returns: Vec<(usize, u64)>,
    /// Whether calls and effects are skipped.
    skips_calls: bool,
    /// Whether the paths begin at the sample, whose registers and stack then hold pointers.
    is_at_sample: bool,
    /// Whether a bound has ended a path.
    is_cut: bool,
}

impl<'s> Search<'s> {
    fn new(pid: i32, context: &'s Context<'s>, pages: &'s mut Pages) -> Search<'s> {
        Search {
            pid,
            context,
            pages,
            factory: InstructionInfoFactory::new(),
            left: INSTRUCTIONS_MAX,
            returns: Vec::new(),
            skips_calls: false,
            is_at_sample: true,
            is_cut: false,
        }
    }

    /// Searches for the end of a function. Returns the address in its caller, and the state there.
    fn leave(&mut self, ip: u64, state: State) -> Option<(u64, State)> {
        let mut visited = HashSet::new();
        let mut todo = VecDeque::from([(ip, state)]);
        while let Some((ip, mut state)) = todo.pop_front() {
            if self.left == 0 || !visited.insert(ip) {
                continue;
            }
            self.left -= 1;
            let Some(instruction) = self.decode(ip) else { continue };
            let Some((_, next)) = self.advance(&instruction, &mut state) else { continue };
            if instruction.mnemonic() == Mnemonic::Ret {
                return next.first().map(|&caller| (caller, state));
            }
            todo.extend(next.into_iter().map(|next| (next, state.clone())));
        }
        None
    }

    /// Returns the loop if a cycle through the sampled instruction waits.
    fn judge(&mut self, ip: u64) -> Option<Waiting> {
        let mut start = self.start(0, None, true);
        self.know_jump(ip, &mut start);
        let (cycle, verdict) = self.cycle(ip, start)?;
        let waiting = cycle.waiting(ip);
        let Verdict::Counts(counters) = verdict else { return Some(waiting) };
        self.is_at_sample = false;
        // The loop of the outermost function.
        let outermost = cycle.outermost();
        let outer: Vec<usize> =
            (0..cycle.steps.len()).filter(|&i| cycle.steps[i].depth == outermost).collect();
        let first = *outer.first()?;
        let reference = cycle.references[first];
        let frame_state = self.start(reference.stack_pointer, Some(reference.frame_pointer), false);
        let ip = cycle.steps[first].ip;
        let (code, from) = super::read_code(self.pid, ip)?;
        let frame = |memory: &UsedMemory| place(&frame_state, memory);
        let steps = code::follow_in(&code, from, ip, |_| true, frame);
        let positions = |cycle: &Cycle| -> Vec<usize> {
            let outer = cycle.steps.iter().filter(|s| s.depth == cycle.outermost());
            outer.filter_map(|s| code::position(&steps, s.ip)).collect()
        };
        let on_cycle = positions(&cycle);
        let around = code::loop_around(&steps, &on_cycle, &counters);
        let mut around: Vec<usize> = around.into_iter().collect();
        around.sort_unstable();
        let mut visited: HashSet<usize> = on_cycle.into_iter().collect();
        for at in around {
            if visited.contains(&at) {
                continue;
            }
            let (other, _) = self.cycle(steps[at].ip, frame_state.clone())?;
            visited.extend(positions(&other));
        }
        Some(waiting)
    }

    /// Sets the registers of a jump by a table, or the number of a system call, if one of them
    /// follows directly: the instructions before the sample that set the registers are not known.
    fn know_jump(&mut self, mut ip: u64, state: &mut State) {
        let mut read = Vec::new();
        for _ in 0..JUMP_INSTRUCTIONS_MAX {
            let Some(instruction) = self.decode(ip) else { return };
            let used = self.factory.info(&instruction).used_registers();
            read.extend(used.iter().filter_map(|used| index(used.register())));
            let is_call = instruction.mnemonic() == Mnemonic::Syscall;
            if is_call {
                read = vec![RAX];
            }
            match instruction.flow_control() {
                FlowControl::Next => ip = instruction.next_ip(),
                flow => {
                    if is_call || flow == FlowControl::IndirectBranch {
                        for i in read.into_iter().filter(|&i| i != STACK_POINTER) {
                            state.registers[i] = constant(self.context.registers[i]);
                        }
                    }
                    return;
                }
            }
        }
    }

    /// Returns the state at the start of a search.
    fn start(&self, stack_pointer: i64, frame_pointer: Option<Value>, sampled: bool) -> State {
        let mut registers = std::array::from_fn(Value::Initial);
        if sampled {
            for (register, &value) in registers.iter_mut().zip(&self.context.registers) {
                if let Some(offset) = self.distance(value) {
                    *register = Value::Stack(offset);
                }
            }
        }
        registers[STACK_POINTER] = Value::Stack(stack_pointer);
        if let Some(value @ Value::Stack(_)) = frame_pointer {
            registers[RBP] = value;
        }
        State { registers, flags: None, frame: Vec::new(), depth: 0 }
    }

    /// Returns the distance of an address from the stack pointer of the sample, if it is close.
    fn distance(&self, address: u64) -> Option<i64> {
        let distance = address.wrapping_sub(self.context.registers[STACK_POINTER]);
        (distance < STACK_REACH_BYTES).then_some(distance as i64)
    }

    /// Searches for a cycle that contains a call and waits.
    fn cycle(&mut self, start: u64, state: State) -> Option<(Cycle, Verdict)> {
        let depth = state.stack_pointer();
        let mut visited: HashSet<(u64, State)> = HashSet::new();
        let mut todo: VecDeque<(u64, State, Option<Rc<Segment>>, usize)> =
            VecDeque::from([(start, state, None, 0)]);
        while let Some((mut ip, mut state, parent, mut length)) = todo.pop_front() {
            if !visited.insert((ip, state.clone())) {
                continue;
            }
            let mut steps: Vec<u64> = Vec::new();
            loop {
                if length > 0 && ip == start && state.stack_pointer() == depth {
                    let path = path(&parent, &steps);
                    if let Some(found) = self.repeat(&path, start, &state) {
                        return Some(found);
                    }
                    break;
                }
                if length >= PATH_MAX || self.left == 0 {
                    self.is_cut = true;
                    break;
                }
                self.left -= 1;
                let Some(instruction) = self.decode(ip) else { break };
                let Some((_, next)) = self.advance(&instruction, &mut state) else { break };
                steps.push(ip);
                length += 1;
                match next[..] {
                    [] => break,
                    [only] => ip = only,
                    ref many => {
                        let segment = Rc::new(Segment { parent, steps });
                        for &next in many {
                            if todo.len() >= PATHS_MAX {
                                self.is_cut = true;
                                break;
                            }
                            todo.push_back((next, state.clone(), Some(segment.clone()), length));
                        }
                        break;
                    }
                }
            }
        }
        None
    }

    /// Executes a path that has led back to its start once more, from the state at its end.
    /// Returns the cycle if the program can take the same path again and again, if the cycle
    /// contains a call, and if it waits.
    fn repeat(&mut self, path: &[u64], start: u64, end: &State) -> Option<(Cycle, Verdict)> {
        let mut first = end.clone();
        let is_known = |value: Value| {
            use Value::{Constant, Entry, Stack, Target};
            matches!(value, Constant { .. } | Stack(_) | Entry(_) | Target(_))
        };
        for (i, register) in first.registers.iter_mut().enumerate() {
            if !is_known(*register) {
                *register = Value::Initial(i);
            }
        }
        for (at, size, value) in &mut first.frame {
            if !is_known(*value) {
                *value = if *size == 8 { Value::Slot(*at) } else { Value::Unknown };
            }
        }
        first.depth = 0;
        let mut state = first.clone();
        let mut cycle = Cycle { steps: Vec::new(), references: Vec::new() };
        let mut results = Vec::new();
        for (i, &ip) in path.iter().enumerate() {
            if self.left == 0 {
                self.is_cut = true;
                return None;
            }
            self.left -= 1;
            let instruction = self.decode(ip)?;
            let stack_pointer = state.stack_pointer()?;
            let frame_pointer = state.registers[RBP];
            let (step, next) = self.advance(&instruction, &mut state)?;
            if !next.contains(path.get(i + 1).unwrap_or(&start)) {
                return None;
            }
            results.push(result(&instruction, &state));
            cycle.steps.push(step);
            cycle.references.push(Reference { stack_pointer, frame_pointer });
        }
        let keeps = |(before, after): (&Value, &Value)| !is_known(*before) || before == after;
        let keeps_frame = |&(at, size, value): &(i64, usize, Value)| {
            !is_known(value) || state.stored(at, size) == Some(part(value, size))
        };
        if !first.registers.iter().zip(&state.registers).all(keeps)
            || !first.frame.iter().all(keeps_frame)
            || cycle.steps.iter().all(|s| s.depth == 0)
        {
            return None;
        }
        for (step, result) in cycle.steps.iter_mut().zip(results) {
            step.restores = match result {
                Some(Value::Initial(i)) => state.registers[i] == Value::Initial(i),
                Some(Value::Slot(o)) => {
                    state.stored(o, 8).is_none_or(|value| value == Value::Slot(o))
                }
                _ => false,
            };
            let known =
                matches!(result, Some(Value::Constant { bytes: 8, .. }) | Some(Value::Stack(_)));
            step.invariant = step.restores || known;
        }
        let order: Vec<usize> = (0..cycle.steps.len()).collect();
        let verdict = code::judge(&cycle.steps, &order);
        (verdict != Verdict::Works).then_some((cycle, verdict))
    }

    fn decode(&mut self, ip: u64) -> Option<Instruction> {
        let mut bytes = [0; INSTRUCTION_BYTES_MAX];
        let count = self.pages.copy(self.pid, ip, &mut bytes);
        let instruction = Decoder::with_ip(64, &bytes[..count], ip, DecoderOptions::NONE).decode();
        (!instruction.is_invalid()).then_some(instruction)
    }

    /// Executes an instruction, as far as values are known. Returns its properties and the
    /// addresses of its successors. `None` if the instruction has an effect.
    fn advance(
        &mut self,
        instruction: &Instruction,
        state: &mut State,
    ) -> Option<(Step, Vec<u64>)> {
        let before = state.clone();
        let frame = |memory: &UsedMemory| place(&before, memory);
        let mut step = code::step(instruction, &mut self.factory, &frame);
        step.depth = state.depth;
        let mnemonic = instruction.mnemonic();
        state.stack_pointer()?;
        let is_call = matches!(mnemonic, Mnemonic::Call | Mnemonic::Syscall);
        if is_call && self.skips_calls {
            for i in (0..REGISTER_COUNT).filter(|i| !PRESERVED.contains(i)) {
                state.registers[i] = Value::Unknown;
            }
            state.flags = None;
            return Some((step, vec![instruction.next_ip()]));
        }
        if mnemonic == Mnemonic::Syscall {
            return self.system_call(instruction, state, step);
        }
        if step.effect && !is_call && !self.skips_calls {
            return None;
        }
        step.effect = false;
        // The distance of the stack pointer is known: no value passes from step to step.
        let is_stack_pointer = |place: Place| place == Place::Register(Register::RSP);
        step.reads.retain(|access| !is_stack_pointer(access.0));
        step.writes.retain(|access| !is_stack_pointer(access.0));

        let value = self.value(instruction, &before);
        self.discard(instruction, &before, state);
        self.write(instruction, &before, state, value)?;
        let next = self.successors(instruction, &before)?;
        Some((step, next))
    }

    /// Discards the values that an instruction replaces, except those of flags that are known.
    fn discard(&mut self, instruction: &Instruction, before: &State, state: &mut State) {
        let info = self.factory.info(instruction);
        for used in info.used_registers() {
            if !matches!(used.access(), OpAccess::Read | OpAccess::CondRead) {
                state.set(used.register(), Value::Unknown);
            }
        }
        for memory in info.used_memory() {
            let read = matches!(
                memory.access(),
                OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess | OpAccess::None
            );
            if let Some(Place::Frame { offset, .. }) = place(before, memory).filter(|_| !read) {
                state.store(offset, memory.memory_size().size().max(1), Value::Unknown);
            }
        }
        if instruction.rflags_modified() != 0 {
            state.flags = flags(instruction, before);
        }
    }

    /// Stores the result of an instruction, as far as it is known. `None` if the stack pointer is
    /// not known afterwards.
    fn write(
        &mut self,
        instruction: &Instruction,
        before: &State,
        state: &mut State,
        value: Value,
    ) -> Option<()> {
        let stack_pointer = before.stack_pointer()?;
        let mnemonic = instruction.mnemonic();
        match mnemonic {
            Mnemonic::Push => {
                state.registers[STACK_POINTER] = stack(stack_pointer - 8);
                state.store(stack_pointer - 8, 8, value);
            }
            Mnemonic::Pop => {
                state.registers[STACK_POINTER] = stack(stack_pointer + 8);
                state.set(instruction.op0_register(), value);
            }
            Mnemonic::Leave => {
                let Value::Stack(frame_pointer) = before.registers[RBP] else { return None };
                state.registers[STACK_POINTER] = stack(frame_pointer + 8);
                state.registers[RBP] = value;
            }
            Mnemonic::Call => {
                state.registers[STACK_POINTER] = stack(stack_pointer - 8);
                state.store(stack_pointer - 8, 8, constant(instruction.next_ip()));
                state.depth += 1;
            }
            Mnemonic::Cdqe => state.registers[RAX] = value,
            Mnemonic::Ret => {
                state.registers[STACK_POINTER] = stack(stack_pointer + 8);
                state.depth -= 1;
            }
            _ if instruction.op_count() > 0 && writes_first(mnemonic) => {
                match instruction.op0_kind() {
                    OpKind::Register => state.set(instruction.op0_register(), value),
                    OpKind::Memory => {
                        let memory = self.factory.info(instruction).used_memory().first().copied();
                        let place = memory.as_ref().and_then(|memory| place(before, memory));
                        if let (Some(memory), Some(Place::Frame { offset, .. })) = (memory, place) {
                            state.store(offset, memory.memory_size().size().max(1), value);
                        }
                    }
                    _ => {}
                }
            }
            _ => {}
        }
        state.stack_pointer().map(drop)
    }

    /// Returns the addresses at which the program may continue. `None` if a return address is not
    /// known.
    fn successors(&mut self, instruction: &Instruction, before: &State) -> Option<Vec<u64>> {
        let fall = instruction.next_ip();
        let target = || instruction.near_branch_target();
        Some(match instruction.flow_control() {
            FlowControl::Next => vec![fall],
            FlowControl::UnconditionalBranch | FlowControl::Call => vec![target()],
            FlowControl::ConditionalBranch => {
                match before.flags.and_then(|f| holds(instruction.condition_code(), f)) {
                    Some(true) => vec![target()],
                    Some(false) => vec![fall],
                    None => vec![fall, target()],
                }
            }
            FlowControl::Return => self.return_address(before.stack_pointer()?, before)?,
            FlowControl::IndirectBranch | FlowControl::IndirectCall => {
                self.targets(instruction, before)
            }
            _ => Vec::new(),
        })
    }

    /// Executes a system call. Only `sched_yield` has no effect.
    fn system_call(
        &mut self,
        instruction: &Instruction,
        state: &mut State,
        mut step: Step,
    ) -> Option<(Step, Vec<u64>)> {
        let Value::Constant { value, bytes: 8 } = state.registers[RAX] else { return None };
        if value != libc::SYS_sched_yield as u64 {
            return None;
        }
        let written = [Register::RAX, Register::RCX, Register::R11];
        step.effect = false;
        step.loads = false;
        step.reads.clear();
        step.writes = written.map(|register| (Place::Register(register), 8, true)).into();
        for i in [RAX, RCX, R11] {
            state.registers[i] = Value::Unknown;
        }
        state.flags = None;
        Some((step, vec![instruction.next_ip()]))
    }

    /// Returns where a `ret` continues.
    fn return_address(&mut self, at: i64, state: &State) -> Option<Vec<u64>> {
        match state.stored(at, 8) {
            Some(Value::Constant { value, bytes: 8 }) => Some(vec![value]),
            Some(_) => None,
            None => {
                let at = usize::try_from(at).ok()?;
                let address = word(self.context, at)?;
                if !self.returns.contains(&(at, address)) {
                    self.returns.push((at, address));
                }
                Some(vec![address])
            }
        }
    }

    /// Returns the targets of an indirect branch or call, if they are known.
    fn targets(&mut self, instruction: &Instruction, state: &State) -> Vec<u64> {
        let value = match instruction.op0_kind() {
            OpKind::Register => state.get(instruction.op0_register()),
            OpKind::Memory => self.load(instruction, state),
            _ => Value::Unknown,
        };
        match value {
            Value::Constant { value, bytes: 8 } => vec![value],
            Value::Target(table) => self.table(table),
            other => self.pointer(other).into_iter().collect(),
        }
    }

    /// Returns the targets of a jump table: numbers of four bytes, relative to the table.
    fn table(&mut self, table: u64) -> Vec<u64> {
        let mut bytes = [0; 4 * TABLE_MAX];
        let count = self.pages.copy(self.pid, table, &mut bytes);
        let mut targets = Vec::new();
        for entry in bytes[..count].chunks_exact(4) {
            let distance = i64::from(i32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]));
            if distance == 0 || distance.abs() > TABLE_DISTANCE_BYTES {
                break;
            }
            let target = table.wrapping_add(distance as u64);
            let near = targets
                .first()
                .is_none_or(|&first: &u64| first.abs_diff(target) < TABLE_REACH_BYTES);
            if !near {
                break;
            }
            if !targets.contains(&target) {
                targets.push(target);
            }
        }
        targets
    }

    /// Returns the result of an instruction, from the values before it.
    fn value(&mut self, instruction: &Instruction, state: &State) -> Value {
        let first = self.peek(instruction, 0, state);
        let second = self.peek(instruction, 1, state);
        let size = operand_bytes(instruction);
        let numbers = || match (first, second) {
            (Value::Constant { value: a, .. }, Value::Constant { value: b, .. }) => Some((a, b)),
            _ => None,
        };
        let known = |value: Option<u64>| match value {
            Some(value) => Value::Constant { value: value & mask(size), bytes: size },
            None => Value::Unknown,
        };
        let is_same = instruction.op_count() == 2
            && instruction.op0_kind() == OpKind::Register
            && instruction.op1_kind() == OpKind::Register
            && instruction.op0_register() == instruction.op1_register();
        match instruction.mnemonic() {
            Mnemonic::Mov => second,
            Mnemonic::Movzx => match second {
                Value::Constant { value, .. } => constant(value),
                _ => Value::Unknown,
            },
            Mnemonic::Movsx | Mnemonic::Movsxd => match second {
                Value::Constant { value, bytes } => known(Some(extend(value, bytes))),
                _ => self.table_entry(instruction, state),
            },
            Mnemonic::Cdqe => match part(state.registers[RAX], 4) {
                Value::Constant { value, .. } => constant(extend(value, 4)),
                _ => Value::Unknown,
            },
            Mnemonic::Lea => self.address(instruction, state),
            Mnemonic::Push => first,
            Mnemonic::Pop => self.stack_value(state, state.stack_pointer().unwrap_or(0), 8),
            Mnemonic::Leave => match state.registers[RBP] {
                Value::Stack(offset) => self.stack_value(state, offset, 8),
                _ => Value::Unknown,
            },
            Mnemonic::Xor | Mnemonic::Sub if is_same => known(Some(0)),
            Mnemonic::Add => match (first, second) {
                (Value::Stack(o), Value::Constant { value, bytes: 8 }) => {
                    stack(o.wrapping_add(value as i64))
                }
                (Value::Entry(table), Value::Constant { value, bytes: 8 })
                | (Value::Constant { value, bytes: 8 }, Value::Entry(table))
                    if table == value =>
                {
                    Value::Target(table)
                }
                _ => known(numbers().map(|(a, b)| a.wrapping_add(b))),
            },
            Mnemonic::Sub => match (first, second) {
                (Value::Stack(o), Value::Constant { value, bytes: 8 }) => {
                    stack(o.wrapping_sub(value as i64))
                }
                _ => known(numbers().map(|(a, b)| a.wrapping_sub(b))),
            },
            Mnemonic::And => match (first, second) {
                // Alignment of the stack.
                (Value::Stack(o), Value::Constant { value, bytes: 8 }) => {
                    let base = self.context.registers[STACK_POINTER];
                    let aligned = base.wrapping_add(o as u64) & value;
                    stack(aligned.wrapping_sub(base) as i64)
                }
                _ => known(numbers().map(|(a, b)| a & b)),
            },
            Mnemonic::Or | Mnemonic::Xor | Mnemonic::Shl | Mnemonic::Shr => {
                known(numbers().map(|(a, b)| combined(instruction.mnemonic(), size, a, b)))
            }
            Mnemonic::Inc | Mnemonic::Dec | Mnemonic::Neg | Mnemonic::Not => match first {
                Value::Constant { value, .. } => {
                    known(Some(changed(instruction.mnemonic(), value)))
                }
                _ => Value::Unknown,
            },
            _ => selected(instruction, state, first, second),
        }
    }

    /// Returns the value of an operand.
    fn peek(&mut self, instruction: &Instruction, operand: u32, state: &State) -> Value {
        if operand >= instruction.op_count() {
            return Value::Unknown;
        }
        match instruction.op_kind(operand) {
            OpKind::Register => state.get(instruction.op_register(operand)),
            OpKind::Memory => self.load(instruction, state),
            OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64 => Value::Unknown,
            _ => match instruction.try_immediate(operand) {
                Ok(value) => constant(value),
                Err(_) => Value::Unknown,
            },
        }
    }

    /// Returns the value in memory that an instruction reads.
    fn load(&mut self, instruction: &Instruction, state: &State) -> Value {
        let size = instruction.memory_size().size();
        match self.address(instruction, state) {
            _ if matches!(instruction.segment_prefix(), Register::FS | Register::GS) => {
                Value::Unknown
            }
            Value::Stack(offset) => self.stack_value(state, offset, size),
            Value::Constant { value, bytes: 8 } if size == 8 => Value::Loaded(value),
            _ if size == 8 && instruction.memory_index() == Register::None => {
                let base = self.pointer(state.get(instruction.memory_base()));
                let displacement = instruction.memory_displacement64();
                base.map_or(Value::Unknown, |base| Value::Loaded(base.wrapping_add(displacement)))
            }
            _ => Value::Unknown,
        }
    }

    /// Returns a pointer to an object: a value at the sample, or in the memory of the process. It
    /// only serves to find the functions of the object.
    fn pointer(&mut self, value: Value) -> Option<u64> {
        match value {
            Value::Initial(i) if self.is_at_sample => Some(self.context.registers[i]),
            Value::Slot(offset) if self.is_at_sample => {
                word(self.context, usize::try_from(offset).ok()?)
            }
            Value::Loaded(address) => self.pages.word(self.pid, address),
            _ => None,
        }
    }

    /// Returns the address of a memory operand.
    fn address(&self, instruction: &Instruction, state: &State) -> Value {
        let displacement = instruction.memory_displacement64();
        let base = instruction.memory_base();
        let index = match instruction.memory_index() {
            Register::None => Some(0),
            index => match state.get(index) {
                Value::Constant { value, bytes: 8 } => {
                    Some(value.wrapping_mul(u64::from(instruction.memory_index_scale())))
                }
                _ => None,
            },
        };
        let Some(index) = index else { return Value::Unknown };
        match base {
            // The displacement is the address.
            Register::RIP => constant(displacement),
            Register::None => constant(displacement.wrapping_add(index)),
            _ => match state.get(base) {
                Value::Constant { value, bytes: 8 } => {
                    constant(value.wrapping_add(displacement).wrapping_add(index))
                }
                Value::Stack(offset) => {
                    stack(offset.wrapping_add(displacement.wrapping_add(index) as i64))
                }
                // The value itself, if this is an addition of nothing.
                value if displacement == 0 && instruction.memory_index() == Register::None => value,
                _ => Value::Unknown,
            },
        }
    }

    fn stack_value(&mut self, state: &State, offset: i64, size: usize) -> Value {
        if let Some(value) = state.stored(offset, size) {
            return value;
        }
        if size != 8 {
            return Value::Unknown;
        }
        let sampled = match usize::try_from(offset) {
            Ok(at) => word(self.context, at),
            // The red zone, which samples do not have: a waiting thread still has the same there.
            Err(_) if offset >= -code::RED_ZONE_BYTES => {
                let address = self.context.registers[STACK_POINTER].wrapping_add(offset as u64);
                self.pages.word(self.pid, address)
            }
            Err(_) => None,
        };
        match sampled.and_then(|value| self.distance(value)) {
            Some(distance) => Value::Stack(distance),
            None => Value::Slot(offset),
        }
    }

    /// Returns the table if an instruction loads an entry of a jump table.
    fn table_entry(&self, instruction: &Instruction, state: &State) -> Value {
        let is_table = instruction.op1_kind() == OpKind::Memory
            && instruction.memory_size().size() == 4
            && instruction.memory_index_scale() == 4
            && instruction.memory_index() != Register::None;
        match state.get(instruction.memory_base()) {
            Value::Constant { value, bytes: 8 } if is_table => {
                Value::Entry(value.wrapping_add(instruction.memory_displacement64()))
            }
            _ => Value::Unknown,
        }
    }
}

/// Returns the place in the frame that an instruction accesses, as a distance from the stack
/// pointer of the sample.
fn place(state: &State, memory: &UsedMemory) -> Option<Place> {
    if matches!(memory.segment(), Register::FS | Register::GS) {
        return None;
    }
    let offset = state.offset(memory.base(), memory.index(), memory.displacement())?;
    Some(Place::Frame { base: Register::RSP, offset })
}

/// The result of a conditional move, or of an instruction that stores a condition.
fn selected(instruction: &Instruction, state: &State, first: Value, second: Value) -> Value {
    match state.flags.and_then(|f| holds(instruction.condition_code(), f)) {
        Some(true) if is_move(instruction) => second,
        Some(false) if is_move(instruction) => first,
        Some(set) if is_set(instruction) => Value::Constant { value: u64::from(set), bytes: 1 },
        _ => Value::Unknown,
    }
}

/// The result of `or`, `xor` or a shift of numbers with this number of bytes.
fn combined(mnemonic: Mnemonic, bytes: usize, a: u64, b: u64) -> u64 {
    // Shifts use the lowest bits of the count.
    let count = b as u32 & if bytes == 8 { 63 } else { 31 };
    match mnemonic {
        Mnemonic::Or => a | b,
        Mnemonic::Xor => a ^ b,
        Mnemonic::Shl => a << count,
        _ => a >> count,
    }
}

/// The result of `inc`, `dec`, `neg` or `not`.
fn changed(mnemonic: Mnemonic, value: u64) -> u64 {
    match mnemonic {
        Mnemonic::Inc => value.wrapping_add(1),
        Mnemonic::Dec => value.wrapping_sub(1),
        Mnemonic::Neg => value.wrapping_neg(),
        _ => !value,
    }
}

/// Returns whether an instruction that [`Search::value`] handles writes its first operand.
fn writes_first(mnemonic: Mnemonic) -> bool {
    !matches!(
        mnemonic,
        Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Jmp | Mnemonic::Bt | Mnemonic::Nop
    )
}

fn is_move(instruction: &Instruction) -> bool {
    instruction.op_count() == 2
        && instruction.op0_kind() == OpKind::Register
        && instruction.flow_control() == FlowControl::Next
}

fn is_set(instruction: &Instruction) -> bool {
    instruction.op_count() == 1 && instruction.flow_control() == FlowControl::Next
}

/// Returns the value that an instruction wrote, if it wrote one place that is known.
fn result(instruction: &Instruction, state: &State) -> Option<Value> {
    let stack_pointer = state.stack_pointer()?;
    match instruction.mnemonic() {
        Mnemonic::Push | Mnemonic::Call => state.stored(stack_pointer, 8),
        Mnemonic::Leave => Some(state.registers[RBP]),
        mnemonic if instruction.op_count() > 0 && writes_first(mnemonic) => {
            match instruction.op0_kind() {
                OpKind::Register => index(instruction.op0_register())
                    .map(|i| state.registers[i])
                    .filter(|_| instruction.op0_register().size() >= 4),
                OpKind::Memory => {
                    let offset = state.offset(
                        instruction.memory_base(),
                        instruction.memory_index(),
                        instruction.memory_displacement64(),
                    )?;
                    state.stored(offset, instruction.memory_size().size())
                }
                _ => None,
            }
        }
        _ => None,
    }
}

/// Returns the addresses of the instructions on a path, from its start.
fn path(parent: &Option<Rc<Segment>>, last: &[u64]) -> Vec<u64> {
    let mut segments: Vec<&[u64]> = vec![last];
    let mut before = parent;
    while let Some(segment) = before {
        segments.push(&segment.steps);
        before = &segment.parent;
    }
    segments.into_iter().rev().flatten().copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::arch::asm;

    /// Assembles lines, with the labels 2 to 9, into code that never runs. Evaluates to the
    /// addresses of the labels 4, the sampled instruction, and 5, behind the call.
    macro_rules! assembled {
        ($($line:literal),+ $(,)?) => {{
            let (sampled, behind): (u64, u64);
            // SAFETY: loads two addresses and jumps over the code, which never runs.
            unsafe {
                asm!(
                    "lea {sampled}, [rip + 4f]",
                    "lea {behind}, [rip + 5f]",
                    "jmp 22f",
                    $($line,)+
                    "22:",
                    sampled = out(reg) sampled,
                    behind = out(reg) behind,
                )
            };
            (sampled, behind)
        }};
    }

    const STACK: u64 = 0x7fff_0000_0000;

    /// Returns whether a sample at `ip` waits whose stack has these words.
    fn waits_with(ip: u64, words: &[u64]) -> bool {
        let stack: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let mut registers = [0; REGISTER_COUNT];
        registers[STACK_POINTER] = STACK;
        let context = Context { registers, flags: 0, stack: &stack };
        let pid = std::process::id() as i32;
        let outcome = waits(pid, ip, &context, &mut Pages::default());
        if outcome.waiting.is_some() && !words.is_empty() {
            assert!(outcome.applies(&context));
            let other = Context { stack: &[0; 64], ..context };
            assert!(!outcome.applies(&other), "the caller determines the outcome");
        }
        outcome.waiting.is_some()
    }

    #[test]
    fn loop_around_a_function_waits_in_the_function_and_in_the_loop() {
        // `while (trylock(m)) ;`, sampled in the function.
        let (sampled, behind) = assembled!(
            "2: mov rdi, rbx",
            "call 3f",
            "5: test eax, eax",
            "jne 2b",
            "ret",
            "3: push rbx",
            "mov rbx, rdi",
            "4: mov ecx, [rbx]",
            "mov eax, 16",
            "test ecx, ecx",
            "jne 6f",
            "mov dword ptr [rbx], 1",
            "xor eax, eax",
            "6: pop rbx",
            "ret",
        );
        assert!(waits_with(sampled, &[0, behind]));
        assert!(!waits_with(sampled, &[0, sampled]), "another caller");
        assert!(!waits_with(sampled, &[]), "an unknown caller");
        assert!(waits_with(behind, &[]));
    }

    #[test]
    fn path_that_the_program_cannot_take_is_not_followed() {
        // `while (next(m) != -1) ;`: only the end returns without an effect.
        let (sampled, behind) = assembled!(
            "2: mov rdi, rbx",
            "call 3f",
            "5: cmp eax, -1",
            "jne 2b",
            "ret",
            "3: nop",
            "4: mov ecx, [rdi]",
            "mov eax, -1",
            "test ecx, ecx",
            "je 6f",
            "mov eax, ecx",
            "mov dword ptr [rdi], 0",
            "6: ret",
        );
        assert!(!waits_with(sampled, &[behind]) && !waits_with(behind, &[]));
    }

    #[test]
    fn counted_calls_wait_only_if_the_loop_tests_the_answer() {
        // `for (i = 0; i < 99; i++) work_if_enabled(i);`
        let (sampled, behind) = assembled!(
            "xor ebx, ebx",
            "2: mov edi, ebx",
            "call 3f",
            "5: inc ebx",
            "cmp ebx, 99",
            "jne 2b",
            "ret",
            "3: nop",
            "4: mov ecx, [rip + 2b]",
            "test ecx, ecx",
            "je 6f",
            "mov [rsi + rdi], edi",
            "6: ret",
        );
        assert!(!waits_with(sampled, &[behind]) && !waits_with(behind, &[]));
        // `for (i = 0; i < 99 && !is_set(m); i++) ;`
        let (sampled, behind) = assembled!(
            "xor ebx, ebx",
            "2: mov rdi, rbp",
            "call 3f",
            "5: test eax, eax",
            "jne 7f",
            "inc ebx",
            "cmp ebx, 99",
            "jne 2b",
            "7: ret",
            "3: nop",
            "4: mov eax, [rdi]",
            "ret",
        );
        assert!(waits_with(sampled, &[behind]) && waits_with(behind, &[]));
        // The function uses the counter.
        let (sampled, behind) = assembled!(
            "xor ebx, ebx",
            "2: mov rdi, rbx",
            "call 3f",
            "5: test eax, eax",
            "jne 7f",
            "inc ebx",
            "cmp ebx, 99",
            "jne 2b",
            "7: ret",
            "3: nop",
            "4: mov eax, [rsi + rdi]",
            "ret",
        );
        assert!(!waits_with(sampled, &[behind]) && !waits_with(behind, &[]));
    }

    #[test]
    fn only_the_system_call_that_yields_has_no_effect() {
        let (sampled, behind) = assembled!(
            "2: cmp dword ptr [rbx], 0",
            "jne 7f",
            "call 3f",
            "5: jmp 2b",
            "7: ret",
            "3: mov eax, 24",
            "syscall",
            "4: cmp rax, -4095",
            "jae 6f",
            "ret",
            "6: mov rcx, [rip + 2b]",
            "neg eax",
            "mov fs:[rcx], eax",
            "ret",
        );
        assert!(waits_with(sampled, &[behind]) && waits_with(behind, &[]));
        let (sampled, behind) = assembled!(
            "2: cmp dword ptr [rbx], 0",
            "jne 7f",
            "call 3f",
            "5: jmp 2b",
            "7: ret",
            "3: mov eax, 39",
            "syscall",
            "4: ret",
        );
        assert!(!waits_with(sampled, &[behind]) && !waits_with(behind, &[]));
    }

    #[test]
    fn callers_are_found_behind_effects_and_calls() {
        let (sampled, behind) = assembled!(
            "2: call 3f",
            "5: add rsp, 24",
            "ret",
            "3: push rbx",
            "4: inc dword ptr [rdi]",
            "call 2b",
            "add dword ptr [rdi], 2",
            "pop rbx",
            "ret",
        );
        let words = [0, behind, 0, 0, 0, sampled];
        let stack: Vec<u8> = words.iter().flat_map(|w: &u64| w.to_le_bytes()).collect();
        let mut registers = [0; REGISTER_COUNT];
        registers[STACK_POINTER] = STACK;
        let context = Context { registers, flags: 0, stack: &stack };
        let pid = std::process::id() as i32;
        let (found, _) = callers(pid, sampled, &context, &mut Pages::default());
        assert_eq!(found[..2], [(8, behind), (40, sampled)]);
    }

    #[test]
    fn success_of_an_attempt_is_read_from_the_registers() {
        let mut registers = [7; REGISTER_COUNT];
        registers[RAX] = 0xff00;
        let context = |flags| Context { registers, flags, stack: &[] };
        for (attempt, flags, succeeded) in [
            (Attempt::ZeroFlag, 1 << 6, true),
            (Attempt::ZeroFlag, 1, false),
            (Attempt::CarryFlag, 1 << 6, true),
            (Attempt::CarryFlag, 1, false),
            (Attempt::Register(Register::AL), 0, true),
            (Attempt::Register(Register::EAX), 0, false),
            (Attempt::Register(Register::AH), 0, false),
            (Attempt::Register(Register::R15), 0, false),
        ] {
            assert_eq!(has_succeeded(attempt, &context(flags)), succeeded, "{attempt:?} {flags}");
        }
    }

    proptest! {
        #[test]
        fn analysis_of_random_code_ends_without_panic(
            code in proptest::collection::vec(
                prop_oneof![
                    any::<u8>().prop_map(|byte| vec![byte]),
                    (0x70u8..0x80, any::<i8>()).prop_map(|(op, to)| vec![op, to as u8]),
                    any::<i8>().prop_map(|to| [&[0xe8][..], &i32::from(to).to_le_bytes()].concat()),
                    any::<[u8; 4]>().prop_map(|n| [&[0x48, 0x81, 0xc4][..], &n].concat()),
                    Just(vec![0xc3]),
                    Just(vec![0x55]),
                    Just(vec![0x5d]),
                    Just(vec![0xc9]),
                    Just(vec![0x8b, 0x07]),
                    Just(vec![0x48, 0x89, 0xe5]),
                ],
                1..60,
            ),
            at in any::<proptest::sample::Index>(),
            stack in proptest::collection::vec(any::<u8>(), 0..64),
            mut registers in any::<[u64; REGISTER_COUNT]>(),
        ) {
            let code = code.concat();
            let ip = code.as_ptr() as u64 + at.index(code.len()) as u64;
            registers[1] = registers[STACK_POINTER].wrapping_add(16);
            let context = Context { registers, flags: 0, stack: &stack };
            let pid = std::process::id() as i32;
            waits(pid, ip, &context, &mut Pages::default());
            callers(pid, ip, &context, &mut Pages::default());
        }
    }
}
