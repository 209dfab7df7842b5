//! The two programs in the kernel, written by hand (no compiler for BPF is needed), and the tables that they fill.

use crate::Error;
use crate::thread::now_ns;
use std::collections::HashMap;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// At most so many threads are counted; those that blocked least recently make room.
const THREADS_MAX: u32 = 16_384;

/// When a thread fell asleep in a futex call. The layout is shared with the programs.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Asleep {
    /// On the monotonic clock; 0 if it is awake.
    since_ns: u64,
    tid: u64,
}

/// Programs at work, and their tables.
#[derive(Debug)]
pub(super) struct Counter {
    /// By the address of the kernel's description of the thread, which both programs know: [`Asleep`].
    asleep: OwnedFd,
    /// By thread number, u32: nanoseconds, u64.
    blocked_ns: OwnedFd,
    /// The programs run for as long as these are open.
    _links: [OwnedFd; 2],
}

impl Counter {
    pub(super) fn attach() -> Result<Self, Error> {
        let asleep = table(size_of::<u64>(), size_of::<Asleep>())?;
        let blocked_ns = table(size_of::<u32>(), size_of::<u64>())?;
        let links = [
            program(c"sched_switch", &falls_asleep(asleep.as_raw_fd()))?,
            program(c"sched_wakeup", &wakes_up(asleep.as_raw_fd(), blocked_ns.as_raw_fd()))?,
        ];
        Ok(Counter { asleep, blocked_ns, _links: links })
    }

    /// What each thread was blocked, by thread number, up to now.
    pub(super) fn blocked_ns(&self) -> Result<HashMap<i32, u64>, Error> {
        // In this order a wait that ends meanwhile is missed for now; in the other it would be counted twice.
        let mut sum: HashMap<i32, u64> =
            rows::<u32, u64>(&self.blocked_ns)?.into_iter().map(|(tid, ns)| (tid as i32, ns)).collect();
        let asleep = rows::<u64, Asleep>(&self.asleep)?;
        let now_ns = now_ns();
        for (_, Asleep { since_ns, tid }) in asleep {
            if since_ns != 0 {
                *sum.entry(tid as i32).or_default() += now_ns.saturating_sub(since_ns);
            }
        }
        Ok(sum)
    }
}

/// sched_switch(bool preempt, struct task_struct *prev, *next, unsigned prev_state), where prev is the caller.
fn falls_asleep(asleep: i32) -> Vec<u64> {
    use Instruction::*;
    assemble(&[
        Move(R6, R1),
        // Only who goes to sleep of its own will (TASK_INTERRUPTIBLE), not who is preempted.
        Load(R2, R6, 0),
        JumpUnless(R2, 0, "out"),
        Load(R2, R6, 24),
        AndConstant(R2, 1),
        JumpIf(R2, 0, "out"),
        // The number of the system call that it is in: struct pt_regs, orig_ax.
        Call(GET_CURRENT_TASK_BTF),
        Move(R1, R0),
        Call(TASK_PT_REGS),
        Load(R2, R0, 120),
        JumpIf(R2, libc::SYS_futex as i32, "futex"),
        JumpIf(R2, libc::SYS_futex_waitv as i32, "futex"),
        JumpUnless(R2, SYS_FUTEX_WAIT, "out"),
        Label("futex"),
        Load(R2, R6, 8),
        Store(R10, -8, R2),
        LoadTable(R1, asleep),
        Move(R2, R10),
        AddConstant(R2, -8),
        Call(MAP_LOOKUP_ELEM),
        Move(R7, R0),
        Call(KTIME_GET_NS),
        Move(R8, R0),
        Call(GET_CURRENT_PID_TGID),
        ShiftLeft(R0, 32),
        ShiftRight(R0, 32),
        JumpIf(R7, 0, "new"),
        Store(R7, 8, R0),
        Store(R7, 0, R8),
        Jump("out"),
        Label("new"),
        Store(R10, -24, R8),
        Store(R10, -16, R0),
        LoadTable(R1, asleep),
        Move(R2, R10),
        AddConstant(R2, -8),
        Move(R3, R10),
        AddConstant(R3, -24),
        Constant(R4, 0),
        Call(MAP_UPDATE_ELEM),
        Label("out"),
        Constant(R0, 0),
        Exit,
    ])
}

/// sched_wakeup(struct task_struct *p). The kernel calls it after the switch that it ends: both hold the lock of the
/// CPU's queue.
fn wakes_up(asleep: i32, blocked_ns: i32) -> Vec<u64> {
    use Instruction::*;
    assemble(&[
        Load(R2, R1, 0),
        Store(R10, -8, R2),
        LoadTable(R1, asleep),
        Move(R2, R10),
        AddConstant(R2, -8),
        Call(MAP_LOOKUP_ELEM),
        JumpIf(R0, 0, "out"),
        Move(R6, R0),
        Load(R7, R6, 0),
        JumpIf(R7, 0, "out"),
        Constant(R2, 0),
        Store(R6, 0, R2),
        Load(R2, R6, 8),
        Store(R10, -16, R2),
        Call(KTIME_GET_NS),
        Move(R8, R0),
        Subtract(R8, R7),
        LoadTable(R1, blocked_ns),
        Move(R2, R10),
        AddConstant(R2, -16),
        Call(MAP_LOOKUP_ELEM),
        JumpIf(R0, 0, "new"),
        AtomicAdd(R0, 0, R8),
        Jump("out"),
        Label("new"),
        Store(R10, -24, R8),
        LoadTable(R1, blocked_ns),
        Move(R2, R10),
        AddConstant(R2, -16),
        Move(R3, R10),
        AddConstant(R3, -24),
        Constant(R4, 0),
        Call(MAP_UPDATE_ELEM),
        Label("out"),
        Constant(R0, 0),
        Exit,
    ])
}

/// `futex_wait`, which libc does not name yet.
const SYS_FUTEX_WAIT: i32 = 455;

// enum bpf_func_id: numbers that never change.
const MAP_LOOKUP_ELEM: i32 = 1;
const MAP_UPDATE_ELEM: i32 = 2;
const KTIME_GET_NS: i32 = 5;
const GET_CURRENT_PID_TGID: i32 = 14;
const GET_CURRENT_TASK_BTF: i32 = 158;
const TASK_PT_REGS: i32 = 175;

/// R0 holds results, R1 to R5 arguments, R6 to R9 outlive calls, R10 is the end of a stack of 512 bytes.
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
const R10: Register = Register(10);

/// What the programs are made of; all work on 64 bits. The first register is changed (or is the address written to).
#[derive(Debug, Clone, Copy)]
enum Instruction {
    Move(Register, Register),
    Constant(Register, i32),
    AddConstant(Register, i32),
    AndConstant(Register, i32),
    ShiftLeft(Register, i32),
    ShiftRight(Register, i32),
    Subtract(Register, Register),
    /// From the second register's address plus an offset.
    Load(Register, Register, i16),
    /// To the first register's address plus an offset.
    Store(Register, i16, Register),
    AtomicAdd(Register, i16, Register),
    /// A table, by its descriptor.
    LoadTable(Register, i32),
    Jump(&'static str),
    /// If the register equals the constant.
    JumpIf(Register, i32, &'static str),
    JumpUnless(Register, i32, &'static str),
    Call(i32),
    Label(&'static str),
    Exit,
}

impl Instruction {
    /// How many words it takes.
    fn words(self) -> usize {
        match self {
            Instruction::Label(_) => 0,
            Instruction::LoadTable(..) => 2,
            _ => 1,
        }
    }
}

/// Encodes (RFC 9669: BPF Instruction Set Architecture, 2024). Labels are those of this program.
fn assemble(program: &[Instruction]) -> Vec<u64> {
    use Instruction::*;
    let place = |label: &str| -> usize {
        program.iter().take_while(|i| !matches!(i, Label(l) if *l == label)).map(|i| i.words()).sum()
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
                // The second word is the upper half of a constant; the source says that it is a table's descriptor.
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
            Subtract(r, from) => word(0x1f, r, from, 0, 0),
            Load(r, address, offset) => word(0x79, r, address, offset, 0),
            Store(address, offset, r) => word(0x7b, address, r, offset, 0),
            AtomicAdd(address, offset, r) => word(0xdb, address, r, offset, 0),
            Jump(label) => word(0x05, R0, R0, to(label), 0),
            JumpIf(r, value, label) => word(0x15, r, R0, to(label), value),
            JumpUnless(r, value, label) => word(0x55, r, R0, to(label), value),
            Call(function) => word(0x85, R0, R0, 0, function),
            Exit => word(0x95, R0, R0, 0, 0),
        };
        words.push(one);
    }
    words
}

/// Calls bpf(2) with what a command takes: the beginning of `union bpf_attr`, which may be shorter than the kernel's.
///
/// # Safety
/// The addresses in `attr` are good for what the command does with them.
unsafe fn bpf<T>(command: i32, attr: &mut T) -> io::Result<i64> {
    // SAFETY: attr lives through the call, and has the size that is told.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attr, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn owned(descriptor: i64) -> OwnedFd {
    // SAFETY: called with descriptors that the kernel has just given us.
    unsafe { OwnedFd::from_raw_fd(descriptor as i32) }
}

/// A table whose least recently used rows make room for new ones.
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

/// Loads a program, and has it called at a tracepoint for as long as the result is open.
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
    // Some functions in the kernel are for programs under the GPL, or both licences, only.
    let mut load = Load {
        kind: RAW_TRACEPOINT,
        words: code.len() as u32,
        code: code.as_ptr() as u64,
        license: c"Dual MIT/GPL".as_ptr() as u64,
    };
    // SAFETY: code has that many words, the licence ends with a zero, and both live through the call.
    let program = unsafe { bpf(PROG_LOAD, &mut load) }.map(owned).map_err(explain)?;
    let mut open =
        Open { name: tracepoint.as_ptr() as u64, program: program.as_raw_fd() as u32, _padding: 0 };
    // SAFETY: the name ends with a zero, and lives through the call.
    unsafe { bpf(RAW_TRACEPOINT_OPEN, &mut open) }.map(owned).map_err(explain)
}

/// All rows of a table whose keys and values are plain numbers.
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
    // SAFETY: there is room for as many keys and values as the table may have, they live through the call, and the
    // caller's types have the sizes that the table was made with: u32, u64 and Asleep take any bits.
    match unsafe { bpf(MAP_LOOKUP_BATCH, &mut attr) } {
        // Nothing behind these.
        Err(e) if e.raw_os_error() != Some(libc::ENOENT) => {
            Err(Error::Refused { what: "read exact lock times (bpf)".into(), source: e })
        }
        _ => Ok(keys.into_iter().zip(values).take(attr.rows as usize).collect()),
    }
}

fn explain(source: io::Error) -> Error {
    let missing = |how: &str| Error::Missing { what: "exact lock time (BPF)".into(), how: how.into() };
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            missing("run as root, or give CAP_BPF and CAP_PERFMON; without it, lock time is sampled")
        }
        Some(libc::EINVAL | libc::ENOSYS | libc::ENOENT) => {
            missing("it wants Linux 5.18 or later with CONFIG_BPF_SYSCALL and CONFIG_DEBUG_INFO_BTF")
        }
        _ => Error::Refused { what: "count lock time in the kernel (bpf)".into(), source },
    }
}
