//! The two BPF programs, assembled here without a BPF compiler, and the tables that they fill.

use super::FutexTime;
use crate::Error;
use crate::thread::{CONTENDED, CONTENDED_GOMP, FUTEX_LOCK_PI2, now_ns};
use std::collections::HashMap;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Number of threads that are counted; the kernel evicts those that blocked least recently.
const THREADS_MAX: u32 = 16_384;

/// Time at which a thread fell asleep in a futex call. The BPF programs use the same layout.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Asleep {
    /// Time on the monotonic clock; 0 if the thread is awake.
    since_ns: u64,
    /// Number of the thread, and [`LOCK`] if the call waits for a lock.
    tid: u64,
    /// Address of the last call that did not wait for a lock; 0 without one.
    parked_at: u64,
}

/// Bit beside the number of a thread for calls that wait for locks.
const LOCK: u64 = 1 << 32;

/// Attached programs, and their tables.
#[derive(Debug)]
pub(super) struct Counter {
    /// [`Asleep`] by the address of the kernel's task structure, which both programs receive.
    asleep: OwnedFd,
    /// Nanoseconds (u64) by thread number with [`LOCK`] (u64).
    blocked_ns: OwnedFd,
    /// Descriptors of the programs, which run as long as these are open.
    _links: [OwnedFd; 2],
}

impl Counter {
    pub(super) fn attach() -> Result<Self, Error> {
        let asleep = table(size_of::<u64>(), size_of::<Asleep>())?;
        let blocked_ns = table(size_of::<u64>(), size_of::<u64>())?;
        let links = [
            program(c"sched_switch", &falls_asleep(asleep.as_raw_fd()))?,
            program(c"sched_wakeup", &wakes_up(asleep.as_raw_fd(), blocked_ns.as_raw_fd()))?,
        ];
        Ok(Counter { asleep, blocked_ns, _links: links })
    }

    /// Returns the blocked time of each thread up to now, by thread number.
    pub(super) fn blocked_ns(&self) -> Result<HashMap<i32, FutexTime>, Error> {
        // In this order, a wait that ends meanwhile is missing this time; in the other order it
        // would count twice.
        let mut sum: HashMap<i32, FutexTime> = HashMap::new();
        let mut add = |tid: u64, ns: u64| {
            let time = sum.entry(tid as i32).or_default();
            *if tid & LOCK != 0 { &mut time.lock_ns } else { &mut time.park_ns } += ns;
        };
        for (tid, ns) in rows::<u64, u64>(&self.blocked_ns)? {
            add(tid, ns);
        }
        let asleep = rows::<u64, Asleep>(&self.asleep)?;
        let now_ns = now_ns();
        for (_, Asleep { since_ns, tid, .. }) in asleep {
            if since_ns != 0 {
                add(tid, now_ns.saturating_sub(since_ns));
            }
        }
        Ok(sum)
    }
}

/// Position of the key of a table on the stack, and of the value of a new row.
const KEY: i16 = -8;
const VALUE: i16 = -32;

/// Calls `bpf_map_lookup_elem` for the key at `key`.
fn lookup(table: i32, key: i16) -> [Instruction; 4] {
    use Instruction::*;
    [LoadTable(R1, table), Move(R2, R10), AddConstant(R2, key.into()), Call(MAP_LOOKUP_ELEM)]
}

/// Calls `bpf_map_update_elem` for the key at `key` and the value at [`VALUE`].
fn insert(table: i32, key: i16) -> [Instruction; 7] {
    use Instruction::*;
    [
        LoadTable(R1, table),
        Move(R2, R10),
        AddConstant(R2, key.into()),
        Move(R3, R10),
        AddConstant(R3, VALUE.into()),
        Constant(R4, 0),
        Call(MAP_UPDATE_ELEM),
    ]
}

/// sched_switch(bool preempt, struct task_struct *prev, *next, unsigned prev_state), where prev is
/// the caller.
fn falls_asleep(asleep: i32) -> Vec<u64> {
    use Instruction::*;
    let find = [
        Move(R6, R1),
        // Only threads that go to sleep (TASK_INTERRUPTIBLE), not preempted threads.
        Load(R2, R6, 0),
        JumpUnless(R2, 0, "out"),
        Load(R2, R6, 24),
        AndConstant(R2, 1),
        JumpIf(R2, 0, "out"),
        // Number of the present system call: struct pt_regs, orig_ax.
        Call(GET_CURRENT_TASK_BTF),
        Move(R1, R0),
        Call(TASK_PT_REGS),
        Load(R2, R6, 8),
        Store(R10, KEY, R2),
        Load(R2, R0, 120),
        // Address, and whether the call waits for a lock.
        Load(R6, R0, 112),
        Constant(R9, 0),
        JumpIf(R2, libc::SYS_futex_waitv as i32, "found"),
        JumpIf(R2, SYS_FUTEX_WAIT, "found"),
        JumpUnless(R2, libc::SYS_futex as i32, "out"),
    ];
    // The distinction of `waits_for_lock`: operation, expected value, and timeout.
    let kind = [
        Load(R2, R0, 104),
        AndConstant(R2, !libc::FUTEX_PRIVATE_FLAG),
        Load(R3, R0, 96),
        Load(R4, R0, 56),
        JumpIfLow(R2, libc::FUTEX_LOCK_PI, "lock"),
        JumpIfLow(R2, FUTEX_LOCK_PI2, "lock"),
        JumpUnless(R4, 0, "found"),
        JumpIfLow(R2, libc::FUTEX_WAIT_BITSET, "bitset"),
        JumpIfLow(R2, libc::FUTEX_WAIT, "wait"),
        Jump("found"),
        Label("wait"),
        JumpIfLow(R3, CONTENDED_GOMP, "lock"),
        Label("bitset"),
        JumpIfLow(R3, CONTENDED, "lock"),
        Jump("found"),
        Label("lock"),
        Constant(R9, 1),
        Label("found"),
    ];
    let store = [
        Move(R7, R0),
        Call(KTIME_GET_NS),
        Move(R8, R0),
        Call(GET_CURRENT_PID_TGID),
        ShiftLeft(R0, 32),
        ShiftRight(R0, 32),
        JumpIf(R7, 0, "new"),
        // A call at the address of the last other call is not for a lock either.
        JumpIf(R9, 0, "park"),
        Load(R2, R7, 16),
        JumpUnlessSame(R2, R6, "store"),
        Constant(R9, 0),
        Label("park"),
        Store(R7, 16, R6),
        Label("store"),
        ShiftLeft(R9, 32),
        Add(R0, R9),
        Store(R7, 8, R0),
        Store(R7, 0, R8),
        Jump("out"),
        Label("new"),
        JumpIf(R9, 0, "insert"),
        Constant(R6, 0),
        Label("insert"),
        ShiftLeft(R9, 32),
        Add(R0, R9),
        Store(R10, VALUE, R8),
        Store(R10, VALUE + 8, R0),
        Store(R10, VALUE + 16, R6),
    ];
    let (row, add) = (lookup(asleep, KEY), insert(asleep, KEY));
    assemble(&[&find[..], &kind, &row, &store, &add, &OUT].concat())
}

/// sched_wakeup(struct task_struct *p). Runs after the switch of the same sleep: both hold the lock
/// of the run queue.
fn wakes_up(asleep: i32, blocked_ns: i32) -> Vec<u64> {
    use Instruction::*;
    /// Position of the thread number with its kind, the key of the second table.
    const TID: i16 = -16;
    let find = [Load(R2, R1, 0), Store(R10, KEY, R2)];
    let since = [
        JumpIf(R0, 0, "out"),
        Move(R6, R0),
        Load(R7, R6, 0),
        JumpIf(R7, 0, "out"),
        Constant(R2, 0),
        Store(R6, 0, R2),
        Load(R2, R6, 8),
        Store(R10, TID, R2),
        Call(KTIME_GET_NS),
        Move(R8, R0),
        Subtract(R8, R7),
    ];
    let add = [
        JumpIf(R0, 0, "new"),
        AtomicAdd(R0, 0, R8),
        Jump("out"),
        Label("new"),
        Store(R10, VALUE, R8),
    ];
    let (row, sum) = (lookup(asleep, KEY), lookup(blocked_ns, TID));
    assemble(&[&find[..], &row, &since, &sum, &add, &insert(blocked_ns, TID), &OUT].concat())
}

/// End of both programs.
const OUT: [Instruction; 3] =
    [Instruction::Label("out"), Instruction::Constant(R0, 0), Instruction::Exit];

/// Number of `futex_wait`, which libc does not define yet.
const SYS_FUTEX_WAIT: i32 = 455;

// enum bpf_func_id: stable numbers.
const MAP_LOOKUP_ELEM: i32 = 1;
const MAP_UPDATE_ELEM: i32 = 2;
const KTIME_GET_NS: i32 = 5;
const GET_CURRENT_PID_TGID: i32 = 14;
const GET_CURRENT_TASK_BTF: i32 = 158;
const TASK_PT_REGS: i32 = 175;

/// Registers: R0 holds results, R1 to R5 arguments; calls preserve R6 to R9; R10 is the end of a
/// stack of 512 bytes.
#[derive(Debug, Clone, Copy)]
struct Register(u8);
const R0: Register = Register(0);
const R1: Register = Register(1);
const R2: Register = Register(2);
const R3: Register = Register(3);
const R4: Register = Register(4);
const R6: Register = Register(6);
const R7: Register = Register(7);
const R8: Register = Register(8);
const R9: Register = Register(9);
const R10: Register = Register(10);

/// Instructions of the programs, on 64 bits. The first register is the destination, or the address
/// of a store.
#[derive(Debug, Clone, Copy)]
enum Instruction {
    Move(Register, Register),
    Constant(Register, i32),
    AddConstant(Register, i32),
    AndConstant(Register, i32),
    ShiftLeft(Register, i32),
    ShiftRight(Register, i32),
    Add(Register, Register),
    Subtract(Register, Register),
    /// Load from the address in the second register plus an offset.
    Load(Register, Register, i16),
    /// Store to the address in the first register plus an offset.
    Store(Register, i16, Register),
    AtomicAdd(Register, i16, Register),
    /// Load the address of a table, by its descriptor.
    LoadTable(Register, i32),
    Jump(&'static str),
    /// Jump if the register equals the constant.
    JumpIf(Register, i32, &'static str),
    JumpUnless(Register, i32, &'static str),
    /// Jump if the low 32 bits of the register equal the constant.
    JumpIfLow(Register, i32, &'static str),
    /// Jump unless the registers are equal.
    JumpUnlessSame(Register, Register, &'static str),
    Call(i32),
    Label(&'static str),
    Exit,
}

impl Instruction {
    /// Returns the number of words.
    fn words(self) -> usize {
        match self {
            Instruction::Label(_) => 0,
            Instruction::LoadTable(..) => 2,
            _ => 1,
        }
    }
}

/// Encodes a program (RFC 9669: BPF Instruction Set Architecture, 2024). Labels are local to the
/// program.
fn assemble(program: &[Instruction]) -> Vec<u64> {
    use Instruction::*;
    let place = |label: &str| -> usize {
        program
            .iter()
            .take_while(|i| !matches!(i, Label(l) if *l == label))
            .map(|i| i.words())
            .sum()
    };
    // u8 opcode; u4 destination, u4 source; i16 offset; i32 immediate
    let word = |opcode: u8, to: Register, from: Register, offset: i16, immediate: i32| {
        let bytes = [opcode, from.0 << 4 | to.0];
        u64::from(u16::from_ne_bytes(bytes))
            | u64::from(offset as u16) << 16
            | u64::from(immediate as u32) << 32
    };
    let mut words = Vec::new();
    for &instruction in program {
        let behind = words.len() + 1;
        let to = |label: &str| (place(label) - behind) as i16;
        let one = match instruction {
            Label(_) => continue,
            LoadTable(r, descriptor) => {
                // The second word is the upper half of a constant; the source marks the descriptor
                // of a table.
                const PSEUDO_MAP_FD: Register = Register(1);
                words.push(word(0x18, r, PSEUDO_MAP_FD, 0, descriptor));
                0
            }
            Move(r, from) => word(0xbf, r, from, 0, 0),
            Constant(r, value) => word(0xb7, r, R0, 0, value),
            AddConstant(r, value) => word(0x07, r, R0, 0, value),
            AndConstant(r, value) => word(0x57, r, R0, 0, value),
            ShiftLeft(r, bits) => word(0x67, r, R0, 0, bits),
            ShiftRight(r, bits) => word(0x77, r, R0, 0, bits),
            Add(r, from) => word(0x0f, r, from, 0, 0),
            Subtract(r, from) => word(0x1f, r, from, 0, 0),
            Load(r, address, offset) => word(0x79, r, address, offset, 0),
            Store(address, offset, r) => word(0x7b, address, r, offset, 0),
            AtomicAdd(address, offset, r) => word(0xdb, address, r, offset, 0),
            Jump(label) => word(0x05, R0, R0, to(label), 0),
            JumpIf(r, value, label) => word(0x15, r, R0, to(label), value),
            JumpUnless(r, value, label) => word(0x55, r, R0, to(label), value),
            JumpIfLow(r, value, label) => word(0x16, r, R0, to(label), value),
            JumpUnlessSame(r, from, label) => word(0x5d, r, from, to(label), 0),
            Call(function) => word(0x85, R0, R0, 0, function),
            Exit => word(0x95, R0, R0, 0, 0),
        };
        words.push(one);
    }
    words
}

/// Calls bpf(2) with the arguments of a command: the start of `union bpf_attr`, which may be
/// shorter than in the kernel.
///
/// # Safety
/// The addresses in `attr` must be valid for the command.
unsafe fn bpf<T>(command: i32, attr: &mut T) -> io::Result<i64> {
    // SAFETY: `attr` lives through the call and has the given size.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attr, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn owned(descriptor: i64) -> OwnedFd {
    // SAFETY: callers pass descriptors that the kernel has just opened.
    unsafe { OwnedFd::from_raw_fd(descriptor as i32) }
}

/// Creates a table that evicts the least recently used rows.
fn table(key_bytes: usize, value_bytes: usize) -> Result<OwnedFd, Error> {
    const MAP_CREATE: i32 = 0;
    const LRU_HASH: u32 = 9;
    #[repr(C)]
    struct Attr {
        kind: u32,
        key_bytes: u32,
        value_bytes: u32,
        rows_max: u32,
    }
    let mut attr = Attr {
        kind: LRU_HASH,
        key_bytes: key_bytes as u32,
        value_bytes: value_bytes as u32,
        rows_max: THREADS_MAX,
    };
    // SAFETY: no addresses.
    unsafe { bpf(MAP_CREATE, &mut attr) }.map(owned).map_err(explain)
}

/// Loads a program and attaches it to a tracepoint as long as the result is open.
fn program(tracepoint: &CStr, code: &[u64]) -> Result<OwnedFd, Error> {
    const PROG_LOAD: i32 = 5;
    const RAW_TRACEPOINT_OPEN: i32 = 17;
    const RAW_TRACEPOINT: u32 = 17;
    #[repr(C)]
    struct Load {
        kind: u32,
        words: u32,
        code: u64,
        license: u64,
    }
    #[repr(C)]
    struct Open {
        name: u64,
        program: u32,
        _padding: u32,
    }
    // Some functions of the kernel require a program under the GPL, or under a dual licence.
    let mut load = Load {
        kind: RAW_TRACEPOINT,
        words: code.len() as u32,
        code: code.as_ptr() as u64,
        license: c"Dual MIT/GPL".as_ptr() as u64,
    };
    // SAFETY: `code` has this number of words, the licence ends with a zero, and both live through
    // the call.
    let program = unsafe { bpf(PROG_LOAD, &mut load) }.map(owned).map_err(explain)?;
    let mut open =
        Open { name: tracepoint.as_ptr() as u64, program: program.as_raw_fd() as u32, _padding: 0 };
    // SAFETY: the name ends with a zero and lives through the call.
    unsafe { bpf(RAW_TRACEPOINT_OPEN, &mut open) }.map(owned).map_err(explain)
}

/// Returns all rows of a table whose keys and values are plain numbers.
fn rows<K: Copy + Default, V: Copy + Default>(table: &OwnedFd) -> Result<Vec<(K, V)>, Error> {
    const MAP_LOOKUP_BATCH: i32 = 24;
    #[repr(C)]
    struct Attr {
        after: u64,
        next: u64,
        keys: u64,
        values: u64,
        rows: u32,
        table: u32,
        row_flags: u64,
        flags: u64,
    }
    let mut keys = vec![K::default(); THREADS_MAX as usize];
    let mut values = vec![V::default(); THREADS_MAX as usize];
    let mut next = 0u64;
    let mut attr = Attr {
        after: 0,
        next: &raw mut next as u64,
        keys: keys.as_mut_ptr() as u64,
        values: values.as_mut_ptr() as u64,
        rows: THREADS_MAX,
        table: table.as_raw_fd() as u32,
        row_flags: 0,
        flags: 0,
    };
    // SAFETY: the buffers hold as many keys and values as the table can have and live through the
    // call. The types of the caller have the sizes of the table, and any bits are valid for u32,
    // u64 and Asleep.
    match unsafe { bpf(MAP_LOOKUP_BATCH, &mut attr) } {
        // These were the last rows.
        Err(e) if e.raw_os_error() != Some(libc::ENOENT) => {
            Err(Error::Refused { what: "read exact lock times (bpf)".into(), source: e })
        }
        _ => Ok(keys.into_iter().zip(values).take(attr.rows as usize).collect()),
    }
}

fn explain(source: io::Error) -> Error {
    let missing =
        |how: &str| Error::Unsupported { what: "exact lock time (BPF)".into(), how: how.into() };
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            missing("run as root, or grant CAP_BPF and CAP_PERFMON; lock time is sampled instead")
        }
        Some(libc::EINVAL | libc::ENOSYS | libc::ENOENT) => missing(
            "it requires Linux 5.18 or later with CONFIG_BPF_SYSCALL and CONFIG_DEBUG_INFO_BTF",
        ),
        _ => Error::Refused { what: "count lock time in the kernel (bpf)".into(), source },
    }
}
