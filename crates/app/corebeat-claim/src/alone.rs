//! The arbiter of a process for itself, where no daemon runs.

use crate::arbiter::{event, ring};
use crate::{Ask, Error, Retreat};
use corebeat_machine::CpuId;
use corebeat_policy::claims::{ClaimId, Claims, Outcome};
use rustix::fd::OwnedFd;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// All claims of this process. They have one owner: it is the process that is alone.
static HOUSE: Mutex<Option<House>> = Mutex::new(None);
const OWNER: u64 = 0;

struct House {
    claims: Claims,
    /// How claims are told of that, and of CPUs that they were given.
    bells: BTreeMap<ClaimId, Arc<OwnedFd>>,
}

impl House {
    /// Tells all but who has asked, who sees at once.
    fn follow(&mut self, asks: ClaimId, outcome: Outcome) {
        let Outcome { changed, asked } = outcome;
        let others = changed.iter().filter(|(id, _)| *id != asks);
        others.chain(&asked).filter_map(|(id, _)| self.bells.get(id)).for_each(|bell| ring(bell));
    }

    fn cpus(&self, id: ClaimId) -> Vec<CpuId> {
        self.claims.cpus(id).iter().collect()
    }
}

/// With the house, which is built when it is first entered.
fn enter<T>(f: impl FnOnce(&mut House) -> T) -> T {
    let mut house: MutexGuard<'_, Option<House>> = HOUSE.lock().unwrap_or_else(PoisonError::into_inner);
    f(house.get_or_insert_with(|| {
        let mut claims = Claims::new(corebeat_linux::topology());
        // Nobody else is asked here, so there is nobody to leave one for.
        claims.unclaimed_min = 0;
        House { claims, bells: BTreeMap::new() }
    }))
}

/// One of them.
#[derive(Debug)]
pub(crate) struct Alone {
    /// Whose it is: a child of fork has its own copy of the house, perhaps with a locked door.
    pid: u32,
    id: ClaimId,
    bell: Arc<OwnedFd>,
}

impl Alone {
    pub(crate) fn begin(ask: &Ask) -> Result<(Alone, Vec<CpuId>), Error> {
        let bell = Arc::new(event().map_err(|e| Error::system("make a claim", e))?);
        enter(|house| {
            let (id, outcome) = house.claims.invade(None, OWNER, ask.clone())?;
            house.follow(id, outcome);
            house.bells.insert(id, bell.clone());
            Ok((Alone { pid: std::process::id(), id, bell }, house.cpus(id)))
        })
    }

    pub(crate) fn invade(&mut self, ask: &Ask) -> Result<Vec<CpuId>, Error> {
        enter(|house| {
            let (_, outcome) = house.claims.invade(Some(self.id), OWNER, ask.clone())?;
            house.follow(self.id, outcome);
            Ok(house.cpus(self.id))
        })
    }

    pub(crate) fn retreat(&mut self, what: Retreat) -> Result<Vec<CpuId>, Error> {
        enter(|house| {
            let outcome = house.claims.retreat(self.id, OWNER, what)?;
            house.follow(self.id, outcome);
            Ok(house.cpus(self.id))
        })
    }

    pub(crate) fn heed(&mut self) -> Result<Vec<CpuId>, Error> {
        // Quiet again. Nothing is to be read where nobody has rung.
        let _ = rustix::io::read(&*self.bell, &mut [0u8; 8]);
        enter(|house| {
            if let Some(keep) = house.claims.keep(self.id) {
                let back = house.claims.cpus(self.id).iter().filter(|&cpu| !keep.contains(cpu)).collect();
                let outcome = house.claims.retreat(self.id, OWNER, Retreat::Cpus(back))?;
                house.follow(self.id, outcome);
            }
            Ok(house.cpus(self.id))
        })
    }
}

impl AsFd for Alone {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            return;
        }
        enter(|house| {
            house.bells.remove(&self.id);
            if let Ok(outcome) = house.claims.end(self.id, OWNER) {
                house.follow(self.id, outcome);
            }
        });
    }
}
