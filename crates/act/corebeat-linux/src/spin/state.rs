//! Knowledge about the registers, the flags and the frame of a thread at one place of a path.

use super::ring::{REGISTER_COUNT, STACK_POINTER};
use iced_x86::{ConditionCode, Instruction, Mnemonic, OpKind, Register};

/// Knowledge of the value of a register or of a place in the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Value {
    /// The lowest bytes are known.
    Constant {
        value: u64,
        bytes: usize,
    },
    /// An address at this distance from the stack pointer of the sample.
    Stack(i64),
    /// The value that this register had at the sample.
    Initial(usize),
    /// The value that the eight bytes at this distance had at the sample.
    Slot(i64),
    /// The eight bytes at this constant address.
    Loaded(u64),
    /// An entry of the jump table at this address.
    Entry(u64),
    /// A target of the jump table at this address.
    Target(u64),
    Unknown,
}

/// Distance from the stack pointer up to which the analysis follows addresses in the stack.
pub(super) const STACK_DISTANCE_MAX: u64 = 1 << 32;

/// Returns the address in the stack at a distance, unless it is too far away.
pub(super) fn stack(offset: i64) -> Value {
    if offset.unsigned_abs() < STACK_DISTANCE_MAX { Value::Stack(offset) } else { Value::Unknown }
}

pub(super) fn constant(value: u64) -> Value {
    Value::Constant { value, bytes: 8 }
}

/// The flags that branches of compilers use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Flags {
    zero: bool,
    sign: bool,
    carry: bool,
    overflow: bool,
}

/// Knowledge at one place of a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) registers: [Value; REGISTER_COUNT],
    pub(super) flags: Option<Flags>,
    /// Places that were written: distance, size in bytes, and value.
    pub(super) frame: Vec<(i64, usize, Value)>,
    /// Number of calls less the number of returns.
    pub(super) depth: i32,
}

/// Position of a register in the registers of a sample.
pub(super) fn index(register: Register) -> Option<usize> {
    Some(match register.full_register() {
        Register::RAX => 0,
        Register::RBX => 1,
        Register::RCX => 2,
        Register::RDX => 3,
        Register::RSI => 4,
        Register::RDI => 5,
        Register::RBP => 6,
        Register::RSP => STACK_POINTER,
        Register::R8 => 8,
        Register::R9 => 9,
        Register::R10 => 10,
        Register::R11 => 11,
        Register::R12 => 12,
        Register::R13 => 13,
        Register::R14 => 14,
        Register::R15 => 15,
        _ => return None,
    })
}

/// Positions of the registers that keep their values over calls: RBX, RBP, RSP, and R12 to R15.
pub(super) const PRESERVED: [usize; 7] = [1, 6, STACK_POINTER, 12, 13, 14, 15];
/// Positions of registers.
pub(super) const RAX: usize = 0;
pub(super) const RCX: usize = 2;
pub(super) const R11: usize = 11;
pub(super) const RBP: usize = 6;

pub(super) fn mask(bytes: usize) -> u64 {
    if bytes >= 8 { u64::MAX } else { (1 << (8 * bytes)) - 1 }
}

pub(super) fn is_high_byte(register: Register) -> bool {
    matches!(register, Register::AH | Register::BH | Register::CH | Register::DH)
}

impl State {
    pub(super) fn get(&self, register: Register) -> Value {
        let Some(value) = index(register).map(|i| self.registers[i]) else { return Value::Unknown };
        if is_high_byte(register) { Value::Unknown } else { part(value, register.size()) }
    }

    pub(super) fn set(&mut self, register: Register, value: Value) {
        let Some(i) = index(register) else { return };
        let old = self.registers[i];
        self.registers[i] = match (register.size(), value) {
            (8, value) => value,
            // A write of four bytes clears the others.
            (4, Value::Constant { value, bytes }) if bytes >= 4 => constant(value & mask(4)),
            (size, Value::Constant { value, bytes })
                if bytes >= size && !is_high_byte(register) =>
            {
                match old {
                    Value::Constant { value: old, bytes: 8 } => {
                        constant(old & !mask(size) | value & mask(size))
                    }
                    _ => Value::Constant { value: value & mask(size), bytes: size },
                }
            }
            _ => Value::Unknown,
        };
    }

    /// Returns the distance of the stack pointer from that of the sample.
    pub(super) fn stack_pointer(&self) -> Option<i64> {
        match self.registers[STACK_POINTER] {
            Value::Stack(offset) => Some(offset),
            _ => None,
        }
    }

    /// Returns the distance of an access to the stack, if its address is known.
    pub(super) fn offset(&self, base: Register, index: Register, displacement: u64) -> Option<i64> {
        match self.get(base) {
            Value::Stack(offset) if base.size() == 8 && index == Register::None => {
                let offset = offset.wrapping_add(displacement as i64);
                (offset.unsigned_abs() < STACK_DISTANCE_MAX).then_some(offset)
            }
            _ => None,
        }
    }

    pub(super) fn store(&mut self, offset: i64, size: usize, value: Value) {
        let end = offset.saturating_add(size as i64);
        self.frame.retain(|&(at, bytes, _)| end <= at || at.saturating_add(bytes as i64) <= offset);
        self.frame.push((offset, size, value));
    }

    /// Returns the written value at a place. `None` if nothing was written there.
    pub(super) fn stored(&self, offset: i64, size: usize) -> Option<Value> {
        let end = offset.saturating_add(size as i64);
        let &(at, bytes, value) = self
            .frame
            .iter()
            .find(|&&(at, bytes, _)| at < end && offset < at.saturating_add(bytes as i64))?;
        Some(if at == offset && size <= bytes { part(value, size) } else { Value::Unknown })
    }
}

/// Returns the lowest bytes of a value.
pub(super) fn part(value: Value, size: usize) -> Value {
    match value {
        Value::Constant { value, bytes } if bytes >= size => {
            Value::Constant { value: value & mask(size), bytes: size }
        }
        Value::Constant { .. } => Value::Unknown,
        _ if size == 8 => value,
        _ => Value::Unknown,
    }
}

/// Returns the size of the first operand.
pub(super) fn operand_bytes(instruction: &Instruction) -> usize {
    match instruction.op_count() {
        0 => 8,
        _ if instruction.op0_kind() == OpKind::Register => instruction.op0_register().size(),
        _ if instruction.op0_kind() == OpKind::Memory => instruction.memory_size().size(),
        _ => 8,
    }
    .clamp(1, 8)
}

pub(super) fn extend(value: u64, bytes: usize) -> u64 {
    let unused = 64 - 8 * bytes.clamp(1, 8) as u32;
    ((value << unused) as i64 >> unused) as u64
}

/// Returns the flags after an instruction, if its operands are known.
pub(super) fn flags(instruction: &Instruction, state: &State) -> Option<Flags> {
    let size = operand_bytes(instruction);
    let operand = |i: u32| match instruction.op_kind(i) {
        OpKind::Register => match state.get(instruction.op_register(i)) {
            Value::Constant { value, .. } => Some(value & mask(size)),
            _ => None,
        },
        OpKind::Memory => {
            let place = state.offset(
                instruction.memory_base(),
                instruction.memory_index(),
                instruction.memory_displacement64(),
            );
            match state.stored(place?, instruction.memory_size().size()) {
                Some(Value::Constant { value, .. }) => Some(value & mask(size)),
                _ => None,
            }
        }
        _ => instruction.try_immediate(i).ok().map(|value| value & mask(size)),
    };
    if instruction.op_count() != 2 {
        return None;
    }
    let sign = |value: u64| value >> (8 * size - 1) & 1 == 1;
    let mnemonic = instruction.mnemonic();
    let is_same = instruction.op0_kind() == OpKind::Register
        && instruction.op1_kind() == OpKind::Register
        && instruction.op0_register() == instruction.op1_register();
    if is_same && matches!(mnemonic, Mnemonic::Xor | Mnemonic::Sub | Mnemonic::Cmp) {
        return Some(Flags { zero: true, sign: false, carry: false, overflow: false });
    }
    let logic = |value: u64| {
        Some(Flags { zero: value == 0, sign: sign(value), carry: false, overflow: false })
    };
    let (a, b) = match mnemonic {
        Mnemonic::Cmp
        | Mnemonic::Sub
        | Mnemonic::Test
        | Mnemonic::And
        | Mnemonic::Or
        | Mnemonic::Xor => (operand(0)?, operand(1)?),
        _ => return None,
    };
    match mnemonic {
        Mnemonic::Test | Mnemonic::And => logic(a & b),
        Mnemonic::Or => logic(a | b),
        Mnemonic::Xor => logic(a ^ b),
        _ => {
            let difference = a.wrapping_sub(b) & mask(size);
            Some(Flags {
                zero: difference == 0,
                sign: sign(difference),
                carry: a < b,
                overflow: sign((a ^ b) & (a ^ difference)),
            })
        }
    }
}

/// Returns whether a condition holds. `None` for the parity flag and for no condition.
pub(super) fn holds(code: ConditionCode, f: Flags) -> Option<bool> {
    Some(match code {
        ConditionCode::o => f.overflow,
        ConditionCode::no => !f.overflow,
        ConditionCode::b => f.carry,
        ConditionCode::ae => !f.carry,
        ConditionCode::e => f.zero,
        ConditionCode::ne => !f.zero,
        ConditionCode::be => f.carry || f.zero,
        ConditionCode::a => !f.carry && !f.zero,
        ConditionCode::s => f.sign,
        ConditionCode::ns => !f.sign,
        ConditionCode::l => f.sign != f.overflow,
        ConditionCode::ge => f.sign == f.overflow,
        ConditionCode::le => f.zero || f.sign != f.overflow,
        ConditionCode::g => !f.zero && f.sign == f.overflow,
        _ => return None,
    })
}
