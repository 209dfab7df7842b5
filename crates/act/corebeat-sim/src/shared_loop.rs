//! A loop whose iterations a team shares.

use std::collections::VecDeque;

/// The iterations that are left, by round: a team may execute the loop several times, and its
/// threads need not be in the same round.
#[derive(Debug)]
pub(crate) struct SharedLoop {
    times: u64,
    /// The round of each thread of the team, from 1.
    entered: Vec<u64>,
    /// Iterations left in the rounds from `first` on. Earlier rounds are complete.
    left: VecDeque<u64>,
    first: u64,
}

impl SharedLoop {
    pub(crate) fn new(times: u64) -> Self {
        SharedLoop { times, entered: vec![], left: VecDeque::new(), first: 1 }
    }

    /// Sets the number of threads of the team.
    pub(crate) fn set_members(&mut self, members: usize) {
        self.entered = vec![0; members];
    }

    /// A thread enters the loop once more.
    pub(crate) fn begin(&mut self, member: usize) {
        self.entered[member] += 1;
        while self.first + (self.left.len() as u64) <= self.entered[member] {
            self.left.push_back(self.times);
        }
    }

    /// The first `members` threads enter a parallel region: they continue in the round of the
    /// first thread.
    pub(crate) fn join(&mut self, members: usize) {
        let first = self.entered[0];
        self.entered[..members].fill(first);
    }

    /// Takes an iteration of the thread's round. Returns whether one was left.
    pub(crate) fn take(&mut self, member: usize) -> bool {
        let round =
            self.entered[member].checked_sub(self.first).and_then(|r| usize::try_from(r).ok());
        let taken = match round.and_then(|r| self.left.get_mut(r)) {
            Some(left) if *left > 0 => {
                *left -= 1;
                true
            }
            _ => false,
        };
        while self.left.front() == Some(&0) {
            self.left.pop_front();
            self.first += 1;
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iterations_of_each_round_are_shared_separately() {
        let mut shared = SharedLoop::new(3);
        shared.set_members(2);
        shared.begin(0);
        assert!(shared.take(0) && shared.take(0));
        shared.begin(1);
        assert!(shared.take(1));
        assert!(!shared.take(0), "all three iterations are taken");
        shared.begin(0);
        assert!(shared.take(0));
        assert!(!shared.take(1), "the thread is still in the first round");
        shared.begin(1);
        assert!(shared.take(1) && shared.take(1) && !shared.take(1) && !shared.take(0));
    }
}
