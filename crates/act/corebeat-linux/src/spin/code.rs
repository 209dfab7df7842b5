//! Does this machine code wait for somebody else?
//!
//! Code waits if going round its loop once more changes nothing that the loop itself could notice: what it reads is read
//! from the same places, nothing is written to memory, and no register carries anything over to the next turn, except
//! perhaps a count of the turns. The only thing that can end such a loop is a write by another thread.
//!
//! ```text
//!            ip, from a sample
//!             v
//!   L:  cmp dword [rdi], esi    reads a place that stays the same        -+
//!       jne out                 a branch that depends on what was read    |  a turn: the shortest way
//!       pause                                                             |  from ip back to ip
//!       add rax, 1              counts turns                              |
//!       cmp rax, rdx                                                      |
//!       jb  L                   ----------------------------------------- +
//! ```
//!
//! 1. On a PAUSE, or right behind one, a thread waits, whatever lies around: the instruction exists for nothing else, and
//!    takes most of the time of a loop that has one (9 of 10 samples in LLVM's OpenMP runtime, whose loop is too large,
//!    and calls too much, for the rest of this).
//! 2. From the sampled instruction, follow the code forward, over both sides of every branch, as far as the bytes reach.
//!    Decoding starts at an instruction that did run, so instructions are never cut wrongly.
//! 3. Find the shortest way back to the sampled instruction that writes no memory, calls nothing and makes no system
//!    call: the *turn*. An atomic operation that leaves the same value however often it is repeated (xchg, cmpxchg, or,
//!    and, bts, btr: test-and-set locks, fences) is no write in this sense. No turn: the code computes.
//! 4. A turn with a PAUSE waits. This covers back-off loops that read no memory.
//! 5. Otherwise join each instruction of the turn to those whose results it uses, round the corner as well. A circle in
//!    this graph is a value carried from turn to turn. `sum += x`, `p = p->next` and `i = hash(i)` carry values: they
//!    compute. A circle of nothing but moves and additions of constants is a counter, which may be compared, and nothing
//!    else: an address or a product made of it is work.
//! 6. At least one branch must depend on a value that was read from memory and not on a counter: what is waited for.
//! 7. A turn without a counter waits, whatever other ways the loop has. A turn with a counter waits only if every
//!    instruction of the loop lies on such a turn: `for i { if (*enabled) work(i) }` has an idle turn, and is no wait.
//!
//! Not seen: loops that call functions (debug builds), loops at `-O0` that keep their counter in memory, and loops longer
//! than [`REACH_BYTES`] to either side. Loops that call `sched_yield` show up as system time. A loop that polls `rdtsc`
//! alone waits for time, not for anybody, and is no spin here; with a PAUSE it is. The first, successful try of a
//! test-and-set lock looks like a later one; it is short.

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
};
use std::collections::{HashSet, VecDeque};

/// How far to each side of the sampled instruction code is looked at.
pub(crate) const REACH_BYTES: u64 = 256;

/// At most so many instructions are followed.
const INSTRUCTIONS_MAX: usize = 96;

/// A place that instructions hand values over in: a register (whole) or one processor flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Register(Register),
    Flag(u32),
}

/// What one instruction is to the analysis.
#[derive(Debug)]
struct Step {
    ip: u64,
    /// Where it may go on; targets outside the code are left out.
    next: [Option<u64>; 2],
    conditional: bool,
    /// It has an effect that a mere wait has not.
    effect: bool,
    pause: bool,
    /// A move between registers or an addition of a constant: what counters are made of.
    counts: bool,
    compares: bool,
    loads: bool,
    /// Places it reads, with how many bytes; `true` for those that make up a memory address.
    reads: Vec<(Place, usize, bool)>,
    /// Places it writes, with how many bytes; `false` if the old value may stay.
    writes: Vec<(Place, usize, bool)>,
    /// Its results are what it read from memory, and nothing else (failed atomic operations).
    result_is_memory: bool,
}

/// Whether the code around `ip` waits for somebody else. `code` starts at address `start`.
///
/// Anything may be in `code`; what cannot be decoded computes. The time this takes is bounded.
pub(crate) fn waits(code: &[u8], start: u64, ip: u64) -> bool {
    if is_behind_pause(code, start, ip) {
        return true;
    }
    // Most code writes or calls something soon, and need not be followed further.
    let idle = follow(code, start, ip, |step| !step.effect);
    if idle.first().is_some_and(|sampled| sampled.pause) {
        return true;
    }
    let Some(turn) = turn(&idle, 0, &(0..idle.len()).collect()) else { return false };
    match judge(&idle, &turn) {
        Verdict::Works => false,
        Verdict::Waits => true,
        Verdict::Counts(counters) => {
            let steps = follow(code, start, ip, |_| true);
            let turn: Vec<usize> = turn.iter().filter_map(|&i| position(&steps, idle[i].ip)).collect();
            let mut seen: HashSet<usize> = turn.iter().copied().collect();
            let around = loop_around(&steps, &turn, &counters);
            around.iter().all(|&at| {
                seen.contains(&at)
                    || self::turn(&steps, at, &around)
                        .filter(|turn| judge(&steps, turn) != Verdict::Works)
                        .map(|turn| seen.extend(turn))
                        .is_some()
            })
        }
    }
}

/// Whether the instruction before `ip` is a PAUSE: it takes so long that samples fall behind it.
fn is_behind_pause(code: &[u8], start: u64, ip: u64) -> bool {
    const PAUSE: [u8; 2] = [0xf3, 0x90];
    ip.checked_sub(start)
        .and_then(|o| code.get(..usize::try_from(o).ok()?))
        .is_some_and(|b| b.ends_with(&PAUSE))
}

/// Decodes what can be reached from `ip`, which becomes step 0, but not what lies behind steps that `go_on` denies.
fn follow(code: &[u8], start: u64, ip: u64, go_on: impl Fn(&Step) -> bool) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut seen = HashSet::from([ip]);
    let mut todo = VecDeque::from([ip]);
    let mut factory = InstructionInfoFactory::new();
    while let Some(at) = todo.pop_front() {
        let bytes = at.checked_sub(start).and_then(|o| code.get(usize::try_from(o).ok()?..));
        let Some(bytes) = bytes.filter(|b| !b.is_empty()) else { continue };
        let instruction = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode();
        if instruction.is_invalid() {
            continue;
        }
        let step = step(&instruction, &mut factory);
        for next in step.next.into_iter().flatten().filter(|_| go_on(&step)) {
            if seen.len() < INSTRUCTIONS_MAX && seen.insert(next) {
                todo.push_back(next);
            }
        }
        steps.push(step);
    }
    // Step 0 is where the sample was: if that could not be decoded, nothing was followed.
    steps
}

fn step(instruction: &iced_x86::Instruction, factory: &mut InstructionInfoFactory) -> Step {
    let mnemonic = instruction.mnemonic();
    let fall = Some(instruction.next_ip());
    let jump = || Some(instruction.near_branch_target());
    let mut effect = instruction.is_privileged() || instruction.is_string_instruction();
    let next = match instruction.flow_control() {
        FlowControl::Next => [fall, None],
        FlowControl::ConditionalBranch => [fall, jump()],
        FlowControl::UnconditionalBranch => [jump(), None],
        // Work in between, then on.
        FlowControl::Call | FlowControl::IndirectCall | FlowControl::Interrupt => {
            effect = true;
            [fall, None]
        }
        _ => [None, None],
    };
    // However often they are repeated, they leave the same value.
    let repeatable = match mnemonic {
        Mnemonic::Xchg => true,
        Mnemonic::Cmpxchg | Mnemonic::Cmpxchg8b | Mnemonic::Cmpxchg16b => instruction.has_lock_prefix(),
        Mnemonic::Or | Mnemonic::And | Mnemonic::Bts | Mnemonic::Btr => instruction.has_lock_prefix(),
        // The usual fence of older compilers.
        Mnemonic::Add => {
            instruction.has_lock_prefix() && is_immediate(instruction, 1) && instruction.immediate(1) == 0
        }
        _ => false,
    };
    let info = factory.info(instruction);
    let mut loads = false;
    for memory in info.used_memory() {
        match memory.access() {
            OpAccess::None | OpAccess::NoMemAccess => {}
            OpAccess::Read | OpAccess::CondRead => loads = true,
            _ if repeatable => loads = true,
            _ => effect = true,
        }
    }
    let address = |register: Register| {
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
            // Segments stay the same; the floating-point stack is nothing to wait with.
            effect |= !register.is_segment_register();
            continue;
        }
        let size = register.size();
        let (read, write) = match used.access() {
            OpAccess::Read | OpAccess::CondRead => (true, None),
            OpAccess::Write => (false, Some(true)),
            OpAccess::ReadWrite => (true, Some(true)),
            OpAccess::CondWrite | OpAccess::ReadCondWrite => (true, Some(false)),
            OpAccess::None | OpAccess::NoMemAccess => (false, None),
        };
        if read {
            reads.push((place, size, address(register)));
        }
        if let Some(all) = write {
            writes.push((place, size, all));
        }
    }
    let flags = |bits: u32| (0..32).map(|b| 1 << b).filter(move |b| bits & b != 0).map(Place::Flag);
    reads.extend(flags(instruction.rflags_read()).map(|p| (p, 1, false)));
    writes.extend(flags(instruction.rflags_modified()).map(|p| (p, 1, true)));
    let register_to = instruction.op0_kind() == OpKind::Register;
    Step {
        ip: instruction.ip(),
        next,
        conditional: instruction.flow_control() == FlowControl::ConditionalBranch,
        effect,
        pause: matches!(mnemonic, Mnemonic::Pause | Mnemonic::Tpause | Mnemonic::Umwait | Mnemonic::Mwaitx),
        counts: register_to
            && match mnemonic {
                Mnemonic::Inc | Mnemonic::Dec => true,
                Mnemonic::Add | Mnemonic::Sub => is_immediate(instruction, 1),
                Mnemonic::Mov => instruction.op1_kind() == OpKind::Register,
                Mnemonic::Lea => instruction.memory_index() == Register::None,
                _ => false,
            },
        compares: matches!(mnemonic, Mnemonic::Cmp | Mnemonic::Test),
        loads,
        reads,
        writes,
        result_is_memory: loads && matches!(mnemonic, Mnemonic::Xchg | Mnemonic::Cmpxchg),
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

/// The shortest way from a step back to itself over steps without effect, within `allowed`; in order, `from` first.
fn turn(steps: &[Step], from: usize, allowed: &HashSet<usize>) -> Option<Vec<usize>> {
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

fn position(steps: &[Step], ip: u64) -> Option<usize> {
    steps.iter().position(|s| s.ip == ip)
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// A value is carried over, or nothing is waited for.
    Works,
    /// Each turn is like the one before.
    Waits,
    /// Each turn is like the one before, but they are counted, in these places.
    Counts(Vec<Place>),
}

/// What going round this turn does.
fn judge(steps: &[Step], turn: &[usize]) -> Verdict {
    let turn: Vec<&Step> = turn.iter().map(|&i| &steps[i]).collect();
    if turn.iter().any(|s| s.pause) {
        return Verdict::Waits;
    }
    // For each step, the steps whose results it reads, and whether as part of an address.
    let uses: Vec<Vec<(usize, bool)>> = (0..turn.len()).map(|i| sources(&turn, i)).collect();
    // For each step, those that its own results are made of. What a failed atomic operation leaves in its register comes
    // from memory.
    let inputs: Vec<Vec<usize>> = uses
        .iter()
        .zip(&turn)
        .map(|(uses, step)| uses.iter().filter(|_| !step.result_is_memory).map(|&(from, _)| from).collect())
        .collect();

    let circles: Vec<usize> = (0..turn.len()).filter(|&i| is_on_circle(i, &inputs)).collect();
    if circles.iter().any(|&i| !turn[i].counts) {
        return Verdict::Works;
    }
    let mut varies: Vec<bool> = (0..turn.len()).map(|i| circles.contains(&i)).collect();
    let mut loaded: Vec<bool> = turn.iter().map(|s| s.loads).collect();
    spread(&mut varies, &inputs);
    spread(&mut loaded, &inputs);
    for (i, step) in turn.iter().enumerate() {
        let may = step.counts || step.compares || step.conditional;
        if uses[i].iter().any(|&(from, address)| varies[from] && (!may || (address && step.loads))) {
            return Verdict::Works;
        }
    }
    if !(0..turn.len()).any(|i| turn[i].conditional && loaded[i] && !varies[i]) {
        return Verdict::Works;
    }
    if circles.is_empty() {
        return Verdict::Waits;
    }
    let written = circles.iter().flat_map(|&i| &turn[i].writes).map(|w| w.0);
    Verdict::Counts(written.filter(|p| matches!(p, Place::Register(_))).collect())
}

/// The steps of the turn, going round, whose results step `i` reads.
fn sources(turn: &[&Step], i: usize) -> Vec<(usize, bool)> {
    let mut found = Vec::new();
    for &(place, size, address) in &turn[i].reads {
        for back in 1..=turn.len() {
            let from = (i + turn.len() - back) % turn.len();
            let Some(&(_, written, all)) = turn[from].writes.iter().find(|w| w.0 == place) else { continue };
            found.push((from, address));
            if all && written >= size {
                break;
            }
        }
    }
    found
}

/// Whether a step's result is made, directly or not, of its own.
fn is_on_circle(step: usize, inputs: &[Vec<usize>]) -> bool {
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

/// Marks every step whose result is made of a marked one's, until nothing changes.
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

/// Everything that the turn can pass through and come back with its counters going on: the loop around it.
///
/// Where a counter starts anew another loop begins, even if it leads back here: a wait that blocks after a thousand turns
/// and then waits again is two loops, and only the inner one is looked at.
fn loop_around(steps: &[Step], turn: &[usize], counters: &[Place]) -> HashSet<usize> {
    let starts_anew = |i: usize| {
        let step = &steps[i];
        let reads = |place| step.reads.iter().any(|r| r.0 == place);
        step.writes.iter().any(|&(place, _, all)| all && counters.contains(&place) && !reads(place))
    };
    let inside: HashSet<usize> = (0..steps.len()).filter(|i| turn.contains(i) || !starts_anew(*i)).collect();
    let ways: Vec<(usize, usize)> = inside
        .iter()
        .flat_map(|&i| successors(steps, i).map(move |next| (i, next)))
        .filter(|(_, next)| inside.contains(next))
        .collect();
    let reached = |ways: &[(usize, usize)]| {
        let mut seen: HashSet<usize> = turn.iter().copied().collect();
        let mut todo = turn.to_vec();
        while let Some(at) = todo.pop() {
            todo.extend(
                ways.iter().filter(|(from, _)| *from == at).map(|(_, to)| *to).filter(|to| seen.insert(*to)),
            );
        }
        seen
    };
    let back: Vec<(usize, usize)> = ways.iter().map(|&(from, to)| (to, from)).collect();
    reached(&ways).intersection(&reached(&back)).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::arch::asm;

    /// Assembles lines into the middle of a function that jumps over them, and gives their bytes and address. Labels may be
    /// 2 to 9.
    macro_rules! assembled {
        ($($line:literal),+ $(,)?) => {{
            let (start, end): (usize, usize);
            // SAFETY: loads two addresses, and jumps over the code between them, which never runs.
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
            // SAFETY: code lies there, which nobody writes.
            (unsafe { std::slice::from_raw_parts(start as *const u8, end - start) }, start as u64)
        }};
    }

    /// Every instruction, and whether a sample of it waits.
    fn verdicts((code, start): (&[u8], u64)) -> Vec<(u64, bool)> {
        let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
        let instructions = std::iter::from_fn(|| decoder.can_decode().then(|| decoder.decode()));
        instructions.map(|i| (i.ip() - start, waits(code, start, i.ip()))).collect()
    }

    /// All instructions wait that the code gets to again and again.
    #[track_caller]
    fn is_wait((code, start): (&[u8], u64)) {
        let on_loop = |offset: u64| {
            let mut steps = follow(code, start, start + offset, |_| true);
            steps.iter_mut().for_each(|s| s.effect = false);
            turn(&steps, 0, &(0..steps.len()).collect()).is_some()
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

    #[test]
    fn flag_spin_waits() {
        is_wait(assembled!("2:", "cmp dword ptr [rdi], 0", "je 2b"));
    }

    #[test]
    fn flag_spin_with_pause_waits() {
        is_wait(assembled!("jmp 3f", "2:", "pause", "3:", "mov eax, [rdi]", "test eax, eax", "je 2b"));
    }

    #[test]
    fn flag_spin_with_fence_waits() {
        is_wait(assembled!(
            "2:",
            "lock or qword ptr [rsp], 0",
            "mov eax, [rdi + 4*rsi - 4]",
            "test eax, eax",
            "je 2b"
        ));
    }

    #[test]
    fn flag_spin_on_two_flags_waits() {
        is_wait(assembled!(
            "2:",
            "mov eax, [rdi]",
            "test eax, eax",
            "jne 3f",
            "mov eax, [rsi]",
            "test eax, eax",
            "je 2b",
            "3:"
        ));
    }

    #[test]
    fn flag_spin_behind_a_pointer_waits() {
        is_wait(assembled!("2:", "mov rax, [rdi]", "mov eax, [rax + 8]", "test eax, eax", "je 2b"));
    }

    #[test]
    fn flag_spin_on_a_double_waits() {
        is_wait(assembled!(
            "pxor xmm1, xmm1",
            "2:",
            "movsd xmm0, [rdi]",
            "ucomisd xmm0, xmm1",
            "jp 3f",
            "je 2b",
            "3:"
        ));
    }

    #[test]
    fn ticket_lock_waits() {
        is_wait(assembled!("2:", "cmp [rdi], eax", "jne 2b"));
    }

    #[test]
    fn test_and_set_lock_waits() {
        is_wait(assembled!("2:", "mov eax, edx", "xchg eax, [rdi]", "test eax, eax", "jne 2b"));
    }

    #[test]
    fn bit_lock_waits() {
        is_wait(assembled!("2:", "lock bts qword ptr [rdi], 0", "jc 2b"));
    }

    #[test]
    fn compare_and_swap_lock_waits() {
        is_wait(assembled!("2:", "xor eax, eax", "lock cmpxchg [rdi], edx", "jne 2b"));
    }

    #[test]
    fn compare_and_swap_increment_that_fails_waits() {
        is_wait(assembled!(
            "mov eax, [rdi]",
            "2:",
            "lea edx, [rax + 1]",
            "lock cmpxchg [rdi], edx",
            "jne 2b"
        ));
    }

    #[test]
    fn libgomp_do_spin_waits() {
        is_wait(assembled!(
            "2:",
            "cmp [rdi], esi",
            "jne 3f",
            "pause",
            "add rax, 1",
            "cmp rax, rdx",
            "jb 2b",
            "3:"
        ));
    }

    #[test]
    fn counted_spin_without_pause_waits() {
        is_wait(assembled!("2:", "cmp [rdi], esi", "jne 3f", "inc rax", "cmp rax, rdx", "jb 2b", "3:"));
    }

    #[test]
    fn counted_spin_with_limit_in_memory_waits() {
        is_wait(assembled!("2:", "cmp [rdi], esi", "jne 3f", "inc rax", "cmp rax, [rsp + 8]", "jb 2b", "3:"));
    }

    #[test]
    fn spin_until_a_deadline_waits() {
        is_wait(assembled!(
            "2:",
            "mov eax, [rdi]",
            "test eax, eax",
            "jne 3f",
            "rdtsc",
            "shl rdx, 32",
            "or rax, rdx",
            "cmp rax, rsi",
            "jb 2b",
            "3:"
        ));
    }

    #[test]
    fn backoff_loop_with_pause_waits() {
        is_wait(assembled!("2:", "pause", "dec ecx", "jne 2b"));
    }

    #[test]
    fn timed_backoff_with_pause_waits() {
        is_wait(assembled!("2:", "pause", "rdtsc", "shl rdx, 32", "or rax, rdx", "cmp rax, rsi", "jb 2b"));
    }

    #[test]
    fn sum_computes() {
        is_work(assembled!("2:", "add rax, [rdi]", "add rdi, 8", "cmp rdi, rdx", "jne 2b"));
    }

    #[test]
    fn sum_of_one_volatile_place_computes() {
        is_work(assembled!("2:", "add rax, [rdi]", "dec rcx", "jne 2b"));
    }

    #[test]
    fn copy_computes() {
        is_work(assembled!(
            "2:",
            "mov al, [rsi + rcx]",
            "mov [rdi + rcx], al",
            "inc rcx",
            "cmp rcx, rdx",
            "jne 2b"
        ));
    }

    #[test]
    fn repeated_move_computes() {
        is_work(assembled!("rep movsb"));
    }

    #[test]
    fn scan_for_a_byte_computes() {
        is_work(assembled!("2:", "repne scasb", "jne 2b"));
    }

    #[test]
    fn fill_of_one_place_computes() {
        is_work(assembled!("2:", "mov [rdi], ecx", "inc ecx", "cmp ecx, edx", "jne 2b"));
    }

    #[test]
    fn triad_computes() {
        is_work(assembled!(
            "2:",
            "movsd xmm0, [rsi + rax]",
            "mulsd xmm0, xmm2",
            "addsd xmm0, [rdx + rax]",
            "movsd [rdi + rax], xmm0",
            "add rax, 8",
            "cmp rax, rcx",
            "jne 2b"
        ));
    }

    #[test]
    fn floating_point_product_computes() {
        is_work(assembled!("2:", "mulsd xmm0, [rdi]", "dec ecx", "jne 2b"));
    }

    #[test]
    fn x87_sum_computes() {
        is_work(assembled!("2:", "fadd qword ptr [rdi]", "fcomi st, st(1)", "jb 2b"));
    }

    #[test]
    fn integer_hash_computes() {
        is_work(assembled!(
            "2:",
            "mov rdx, rax",
            "shl rdx, 13",
            "xor rax, rdx",
            "mov rdx, rax",
            "shr rdx, 7",
            "xor rax, rdx",
            "dec rcx",
            "jne 2b"
        ));
    }

    #[test]
    fn random_numbers_with_constants_in_memory_compute() {
        is_work(assembled!("2:", "imul rax, [rdi]", "add rax, [rdi + 8]", "dec rcx", "jne 2b"));
    }

    #[test]
    fn pointer_chase_computes() {
        is_work(assembled!("2:", "mov rdi, [rdi]", "test rdi, rdi", "jne 2b"));
    }

    #[test]
    fn search_in_a_list_computes() {
        is_work(assembled!(
            "2:",
            "cmp [rdi + 8], esi",
            "je 3f",
            "mov rdi, [rdi]",
            "test rdi, rdi",
            "jne 2b",
            "3:"
        ));
    }

    #[test]
    fn string_length_computes() {
        is_work(assembled!("2:", "inc rax", "cmp byte ptr [rdi + rax], 0", "jne 2b"));
    }

    #[test]
    fn binary_search_computes() {
        is_work(assembled!(
            "2:",
            "lea rcx, [rax + rdx]",
            "shr rcx, 1",
            "cmp [rdi + 4*rcx], esi",
            "jge 3f",
            "lea rax, [rcx + 1]",
            "cmp rax, rdx",
            "jl 2b",
            "jmp 4f",
            "3:",
            "mov rdx, rcx",
            "cmp rax, rdx",
            "jl 2b",
            "4:"
        ));
    }

    #[test]
    fn trial_division_of_a_spilled_number_computes() {
        is_work(assembled!(
            "2:",
            "mov rax, [rsp + 8]",
            "xor edx, edx",
            "div rcx",
            "test rdx, rdx",
            "je 3f",
            "inc rcx",
            "cmp rcx, [rsp + 8]",
            "jb 2b",
            "3:"
        ));
    }

    #[test]
    fn search_for_a_square_in_memory_computes() {
        is_work(assembled!("2:", "inc rcx", "mov rax, rcx", "imul rax, rax", "cmp rax, [rdi]", "jb 2b"));
    }

    #[test]
    fn atomic_additions_compute() {
        is_work(assembled!("2:", "lock inc qword ptr [rdi]", "dec rcx", "jne 2b"));
    }

    #[test]
    fn atomic_tickets_compute() {
        is_work(assembled!("2:", "mov eax, 1", "lock xadd [rdi], eax", "cmp eax, 100", "jl 2b"));
    }

    #[test]
    fn exchange_of_a_growing_number_computes() {
        is_work(assembled!("2:", "inc ecx", "mov eax, ecx", "xchg eax, [rdi]", "test eax, eax", "jne 2b"));
    }

    #[test]
    fn clock_polled_without_pause_computes() {
        is_work(assembled!("2:", "rdtsc", "shl rdx, 32", "or rax, rdx", "cmp rax, rsi", "jb 2b"));
    }

    #[test]
    fn empty_counting_computes() {
        is_work(assembled!("2:", "dec rcx", "jne 2b"));
    }

    #[test]
    fn loop_of_system_calls_computes() {
        is_work(assembled!(
            "2:",
            "cmp dword ptr [rdi], 0",
            "jne 3f",
            "mov eax, 24",
            "syscall",
            "jmp 2b",
            "3:"
        ));
    }

    #[test]
    fn counted_work_that_is_switched_off_computes() {
        is_work(assembled!(
            "2:",
            "cmp dword ptr [rdi], 0",
            "je 3f",
            "mov [rsi + 8*rax], rax",
            "3:",
            "inc rax",
            "cmp rax, rdx",
            "jb 2b"
        ));
    }

    #[test]
    fn straight_code_computes() {
        is_work(assembled!("mov eax, [rdi]", "cmp eax, 1", "je 3f", "add eax, 2", "3:"));
    }

    #[test]
    fn spin_then_block_waits_in_the_inner_loop_only() {
        // gcc -O2: the loop is entered in its middle, and blocking leads back to the start of the count.
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
        // LLVM's OpenMP runtime asks a virtual function whether it is done.
        let code =
            assembled!("2:", "mov [rsp + 8], eax", "pause", "call [rcx + 32]", "test al, al", "jne 2b");
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
