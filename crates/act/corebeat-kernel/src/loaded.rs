//! The scheduler in the kernel: its object, its tables and its programs.

use crate::Error;
use crate::group::{GroupState, Request};
use crate::object::{self, missing};
use crate::state::{Counter, NO_GROUP};
use corebeat_machine::Turns;
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, ProgramInput};
use std::ffi::OsStr;
use std::sync::{Mutex, PoisonError};

/// The compiled scheduler (`bpf/corebeat.bpf.c`).
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/corebeat.bpf.o"));

/// Name of the functions of the scheduler in the object.
const OPERATIONS: &str = "corebeat";

/// Flag of a scheduler that schedules only threads of its policy (`SCX_OPS_SWITCH_PARTIAL`).
const SWITCH_PARTIAL: u8 = 8;

/// A view of the groups in the kernel, for tests and measurements.
#[derive(Debug)]
pub struct Groups(MapHandle);

impl Groups {
    /// Returns the state of a group. `None` if the kernel has no group of this number.
    pub fn read(&self, group: u32) -> Option<GroupState> {
        let bytes = self.0.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).ok()??;
        GroupState::read(&bytes, group)
    }
}

/// The loaded scheduler. The kernel unloads it when the link is closed.
pub(crate) struct Loaded {
    _link: Link,
    members: MapHandle,
    groups: MapHandle,
    accounts: MapHandle,
    owners: MapHandle,
    end: MapHandle,
    /// For its programs, one call at a time.
    object: Mutex<Object>,
}

impl Loaded {
    /// Loads the scheduler, for all threads of the host or for those of its policy.
    pub(crate) fn load(all: bool) -> Result<Loaded, Error> {
        object::explained(|| Loaded::attach(all), Error::Load)
    }

    fn attach(all: bool) -> libbpf_rs::Result<Loaded> {
        let mut open = ObjectBuilder::default().open_memory(OBJECT)?;
        if all {
            let mut operations = open.maps_mut().find(|map| map.name() == OsStr::new(OPERATIONS));
            let value = operations.as_mut().and_then(|map| map.initial_value_mut());
            // The first byte of `flags`, the first field.
            let flags = value.and_then(<[u8]>::first_mut).ok_or_else(|| missing(OPERATIONS))?;
            *flags &= !SWITCH_PARTIAL;
        }
        let mut object = open.load()?;
        // Since Linux 7.1 other programs than those of the scheduler must be associated with it.
        // Older kernels have no such call and need none.
        let operations = object.maps().find(|map| map.name() == OsStr::new(OPERATIONS));
        for program in object.progs_mut() {
            let is_call = ["set_group", "set_owners"].iter().any(|name| program.name() == *name);
            if let Some(operations) = operations.as_ref().filter(|_| is_call) {
                let _ = program.assoc_struct_ops(operations);
            }
        }
        let handle = |name: &str| {
            let map = object.maps().find(|map| map.name() == OsStr::new(name));
            MapHandle::try_from(&map.ok_or_else(|| missing(name))?)
        };
        let (members, groups) = (handle("members")?, handle(".data.groups")?);
        let (accounts, owners, end) =
            (handle("accounts")?, handle("owners")?, handle(".data.end")?);
        let mut operations = object.maps_mut().find(|map| map.name() == OsStr::new(OPERATIONS));
        let link = operations.as_mut().ok_or_else(|| missing(OPERATIONS))?.attach_struct_ops()?;
        Ok(Loaded {
            _link: link,
            members,
            groups,
            accounts,
            owners,
            end,
            object: Mutex::new(object),
        })
    }

    /// Runs a program of the object once.
    fn call(&self, name: &str, context: &mut [u8]) -> Result<(), Error> {
        let object = self.object.lock().unwrap_or_else(PoisonError::into_inner);
        let program = object.progs_mut().find(|program| program.name() == OsStr::new(name));
        let program = program.ok_or_else(|| request(missing(name)))?;
        let context_in = (!context.is_empty()).then_some(context);
        let output = program.test_run(ProgramInput { context_in, ..ProgramInput::default() });
        match output.map_err(request)?.return_value {
            0 => Ok(()),
            code => Err(Error::Request(format!("{name} returned {code}"))),
        }
    }

    /// Sets the settings of a group.
    pub(crate) fn set_group(&self, group: u32, settings: Request) -> Result<(), Error> {
        self.call("set_group", &mut settings.bytes(group))
    }

    /// Assigns a thread to a group, from the moment on at which it enters the class of the
    /// scheduler or wakes up.
    /// `generation` is the number of programs that had the group before.
    pub(crate) fn add_member(&self, tid: u32, group: u32, generation: u32) -> Result<(), Error> {
        let member = [group.to_ne_bytes(), generation.to_ne_bytes()].concat();
        self.members.update(&tid.to_ne_bytes(), &member, MapFlags::ANY).map_err(request)
    }

    /// Returns a view of the groups.
    pub(crate) fn groups(&self) -> Result<Groups, Error> {
        let copy = MapHandle::try_from(&self.groups).map_err(request)?;
        Ok(Groups(copy))
    }

    /// Returns the runnable threads of each group.
    pub(crate) fn counters(&self) -> Result<Vec<Counter>, Error> {
        let bytes = self.groups.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).map_err(request)?;
        Ok(Counter::read(&bytes.unwrap_or_default()))
    }

    /// Sets the groups that own CPUs.
    pub(crate) fn set_owners(
        &self,
        owners: impl Iterator<Item = (u32, Option<u32>)>,
    ) -> Result<(), Error> {
        for (cpu, owner) in owners {
            let owner = owner.unwrap_or(NO_GROUP).to_ne_bytes();
            self.owners.update(&cpu.to_ne_bytes(), &owner, MapFlags::ANY).map_err(request)?;
        }
        self.call("set_owners", &mut [])
    }

    /// Returns the turns of a group so far.
    pub(crate) fn turns(&self, group: u32) -> Option<Turns> {
        let bytes = self.accounts.lookup(&group.to_ne_bytes(), MapFlags::LOCK).ok()??;
        let number = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        Some(Turns { on_ns: number(16)?, together_ns: number(24)? })
    }

    /// Returns why the kernel has removed the scheduler, if it has.
    pub(crate) fn end(&self) -> Option<String> {
        let bytes = self.end.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).ok()??;
        let (kind, message) = bytes.split_at_checked(4)?;
        if kind == [0; 4] {
            return None;
        }
        let text = message.split(|byte| *byte == 0).next().unwrap_or_default();
        Some(String::from_utf8_lossy(text).into_owned())
    }
}

fn request(error: libbpf_rs::Error) -> Error {
    Error::Request(error.to_string())
}
