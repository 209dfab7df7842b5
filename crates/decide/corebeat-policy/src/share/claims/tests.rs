use super::*;
use corebeat_machine::{Cpu, Node, NodeId};
use proptest::prelude::*;
use std::collections::BTreeSet;

const ME: u64 = 1;
const YOU: u64 = 2;

/// Returns a machine with two CPUs for each core. The CPUs are assigned to nodes in turn or in
/// blocks.
fn machine(cpus: u32, nodes: u32, in_turn: bool) -> Topology {
    let node = |c: u32| NodeId(if in_turn { c % nodes } else { c * nodes / cpus });
    let all: Vec<Cpu> = (0..cpus)
        .map(|c| Cpu { id: CpuId(c), package: 0, core: c / 2, node: node(c), cache: 0 })
        .collect();
    let of = |n: u32| all.iter().filter(|c| c.node.0 == n).map(|c| c.id).collect();
    let distances = vec![10; nodes as usize];
    let nodes =
        (0..nodes).map(|n| Node { id: NodeId(n), cpus: of(n), distances: distances.clone() });
    Topology::new(all.clone(), nodes.collect()).unwrap()
}

fn set(text: &str) -> CpuSet {
    text.parse().unwrap()
}

/// Returns the cost of CPUs: the sum of squares, or the number of nodes.
fn cost(claims: &Claims, numa: Option<Numa>, cpus: &CpuSet) -> usize {
    let counts = claims.by_node(cpus.iter());
    match numa {
        None => 0,
        Some(Numa::Scatter) => counts.values().map(|n| n * n).sum(),
        Some(Numa::Compact) => counts.len(),
    }
}

#[test]
fn invade_takes_what_is_free_up_to_the_maximum() {
    let mut claims = Claims::new(Topology::flat(8));
    let (a, outcome) = claims.invade(None, ME, Ask::new(1, 4)).unwrap();
    assert_eq!(outcome, Outcome { changed: vec![(a, set("0-3"))], asked: vec![] });
    // One CPU stays free for programs without a claim.
    let (b, _) = claims.invade(None, YOU, Ask::new(1, 8)).unwrap();
    assert_eq!((claims.cpus(b), claims.unclaimed()), (set("4-6"), set("7")));
    assert_eq!(
        claims.list().map(|(id, owner, _)| (id, owner)).collect::<Vec<_>>(),
        [(a, ME), (b, YOU)]
    );
}

#[test]
fn invade_respects_the_numa_distribution() {
    let lie = |in_turn, count, numa| {
        let mut claims = Claims::new(machine(8, 2, in_turn));
        let (id, _) = claims.invade(None, ME, Ask { numa, ..Ask::new(1, count) }).unwrap();
        claims.cpus(id)
    };
    assert_eq!(lie(false, 4, Some(Numa::Scatter)), set("0-1,4-5"));
    assert_eq!(lie(true, 4, Some(Numa::Compact)), set("0,2,4,6"));
    assert_eq!(lie(true, 3, None), set("0-2"));
    let mut claims = Claims::new(machine(8, 2, false));
    let ask = Ask { within: Some(set("2-5")), prefer: set("5"), ..Ask::new(1, 2) };
    let (id, _) = claims.invade(None, ME, ask).unwrap();
    assert_eq!(claims.cpus(id), set("2,5"));
}

#[test]
fn invade_avoids_cores_of_other_claims() {
    let mut claims = Claims::new(machine(8, 1, false));
    claims.invade(None, ME, Ask::new(1, 1)).unwrap();
    let (id, _) = claims.invade(None, YOU, Ask::new(1, 2)).unwrap();
    assert_eq!(claims.cpus(id), set("2-3"));
}

#[test]
fn invade_without_free_cpus_shrinks_other_claims_to_their_parts() {
    let mut claims = Claims::new(Topology::flat(9));
    let (a, _) = claims.invade(None, ME, Ask::new(1, 8)).unwrap();
    let (b, outcome) = claims.invade(None, YOU, Ask::new(2, 8)).unwrap();
    assert_eq!(outcome.changed, [(b, CpuSet::new())], "the program does not wait");
    assert_eq!(outcome.asked, [(a, set("0-3"))]);
    // The claim returns some CPUs, and then its deadline passes.
    let outcome = claims.retreat(a, ME, Retreat::Cpus(set("7"))).unwrap();
    assert_eq!(outcome.changed, [(a, set("0-6")), (b, set("7"))]);
    assert_eq!(outcome.asked, [], "the request has not changed");
    let outcome = claims.deadline(a);
    assert_eq!(outcome.changed, [(a, set("0-3")), (b, set("4-7"))]);
    assert_eq!(claims.deadline(a), Outcome::default(), "a deadline takes effect once");
    // The claim was requested to shrink, so it may get the CPUs again.
    let outcome = claims.dead(YOU);
    assert_eq!(outcome.changed, [(a, set("0-7"))]);
}

#[test]
fn request_is_withdrawn_when_no_claim_lacks_cpus() {
    let mut claims = Claims::new(Topology::flat(9));
    let (a, _) = claims.invade(None, ME, Ask::new(1, 8)).unwrap();
    let (b, _) = claims.invade(None, YOU, Ask::new(2, 8)).unwrap();
    let outcome = claims.end(b, YOU).unwrap();
    assert_eq!(outcome, Outcome { changed: vec![], asked: vec![(a, set("0-7"))] });
    assert_eq!(claims.deadline(a), Outcome::default());
}

#[test]
fn voluntary_retreat_lasts_until_the_next_invade() {
    let mut claims = Claims::new(Topology::flat(4));
    let (a, _) = claims.invade(None, ME, Ask::new(1, 3)).unwrap();
    assert_eq!(claims.retreat(a, ME, Retreat::To(1)).unwrap().changed, [(a, set("0"))]);
    assert_eq!(
        claims.retreat(a, ME, Retreat::To(0)).unwrap(),
        Outcome::default(),
        "the last CPU stays"
    );
    let (b, _) = claims.invade(None, YOU, Ask::new(1, 1)).unwrap();
    claims.end(b, YOU).unwrap();
    assert_eq!(claims.cpus(a), set("0"));
    claims.invade(Some(a), ME, Ask::new(1, 2)).unwrap();
    assert_eq!(claims.cpus(a), set("0-1"));
}

#[test]
fn new_request_for_other_cpus_moves_the_claim() {
    let mut claims = Claims::new(Topology::flat(4));
    let (a, _) = claims.invade(None, ME, Ask::new(1, 2)).unwrap();
    claims.invade(Some(a), ME, Ask { within: Some(set("2-3")), ..Ask::new(1, 2) }).unwrap();
    assert_eq!(claims.cpus(a), set("2-3"));
}

#[test]
fn invalid_requests_are_refused_and_change_nothing() {
    let mut claims = Claims::new(Topology::flat(2));
    assert!(matches!(claims.invade(None, ME, Ask::new(0, 0)), Err(ClaimError::Range { .. })));
    assert!(matches!(claims.invade(None, ME, Ask::new(2, 1)), Err(ClaimError::Range { .. })));
    let far = Ask { within: Some(set("7")), ..Ask::new(1, 1) };
    assert!(matches!(claims.invade(None, ME, far), Err(ClaimError::Elsewhere { .. })));
    let (a, _) = claims.invade(None, ME, Ask::new(1, 1)).unwrap();
    assert_eq!(claims.end(a, YOU), Err(ClaimError::NoSuchClaim(a.0)), "the claim of another owner");
    assert_eq!(claims.retreat(ClaimId(9), ME, Retreat::To(1)), Err(ClaimError::NoSuchClaim(9)));
    let limit = |owner, claims: &mut Claims| loop {
        match claims.invade(None, owner, Ask::new(1, 1)) {
            Ok(_) => {}
            Err(ClaimError::TooMany { limit, .. }) => return limit,
            Err(other) => panic!("{other}"),
        }
    };
    assert_eq!(limit(ME, &mut claims), CLAIMS_PER_OWNER_MAX);
    assert_eq!(claims.owners().count(), CLAIMS_PER_OWNER_MAX);
    let others = YOU..;
    assert!(others.map(|owner| limit(owner, &mut claims)).any(|limit| limit == CLAIMS_MAX));
    assert_eq!(claims.owners().count(), CLAIMS_MAX);
}

fn any_machine() -> impl Strategy<Value = Topology> {
    (1u32..5, 1u32..3, any::<bool>())
        .prop_map(|(cpus, nodes, in_turn)| machine(cpus, nodes.min(cpus), in_turn))
}

fn any_cpus() -> impl Strategy<Value = CpuSet> {
    proptest::collection::vec(0u32..4, 0..4).prop_map(|cpus| cpus.into_iter().map(CpuId).collect())
}

fn any_ask() -> impl Strategy<Value = Ask> {
    let numa = prop_oneof![Just(None), Just(Some(Numa::Scatter)), Just(Some(Numa::Compact))];
    // All machines have CPU 0.
    let within = proptest::option::of(any_cpus())
        .prop_map(|w| w.map(|w| w.iter().chain([CpuId(0)]).collect()));
    (0u32..4, 0u32..4, numa, within, any_cpus()).prop_map(|(min, more, numa, within, prefer)| Ask {
        min,
        max: (min + more).max(1),
        numa,
        within,
        prefer,
    })
}

#[derive(Debug, Clone)]
enum Event {
    Invade(Ask),
    InvadeAnew(usize, Ask),
    To(usize, u32),
    Cpus(usize, CpuSet),
    Deadline(usize),
    End(usize),
    Dead(u64),
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => any_ask().prop_map(Event::Invade),
        1 => (0usize..5, any_ask()).prop_map(|(i, ask)| Event::InvadeAnew(i, ask)),
        1 => (0usize..5, 0u32..4).prop_map(|(i, n)| Event::To(i, n)),
        1 => (0usize..5, any_cpus()).prop_map(|(i, cpus)| Event::Cpus(i, cpus)),
        3 => (0usize..5).prop_map(Event::Deadline),
        1 => (0usize..5).prop_map(Event::End),
        1 => (0u64..2).prop_map(Event::Dead),
    ]
}

/// Returns all distributions of free CPUs: for each CPU the claim that gets it, if any.
fn ways(free: &[CpuId], asks: &[&Ask]) -> Vec<Vec<Option<usize>>> {
    let Some((&cpu, rest)) = free.split_first() else { return vec![vec![]] };
    let takers: Vec<Option<usize>> = std::iter::once(None)
        .chain((0..asks.len()).filter(|&i| asks[i].allows(cpu)).map(Some))
        .collect();
    let ways = ways(rest, asks);
    let with = |taker: &Option<usize>| {
        ways.iter().map(|w| [&[*taker], w.as_slice()].concat()).collect::<Vec<_>>()
    };
    takers.iter().flat_map(with).collect()
}

proptest! {
    /// With up to 4 CPUs and 3 claims in any state, the number of met dues and of claimed CPUs is
    /// that of the best distribution. If only one claim grows, no other CPUs cost less.
    #[test]
    fn hand_out_is_the_best_of_all_ways(
        topology in any_machine(),
        asks in proptest::collection::vec(any_ask(), 1..4),
        holders in proptest::collection::vec(proptest::option::of(0usize..3), 4),
    ) {
        let mut claims = Claims::new(topology);
        for (i, ask) in asks.iter().enumerate() {
            let claim = Claim { owner: ME, ask: ask.clone(), keep: None };
            claims.claims.insert(ClaimId(i as u64), claim);
        }
        let all: Vec<CpuId> = claims.topology.cpus().iter().map(|c| c.id).collect();
        for (&cpu, holder) in all.iter().zip(holders) {
            let holder = holder.filter(|&i| i < asks.len() && asks[i].allows(cpu));
            let Some(i) = holder else { continue };
            let id = ClaimId(i as u64);
            let is_open = claims.holders.len() < claims.claimable();
            if is_open && claims.cpus(id).len() < asks[i].max as usize {
                claims.holders.insert(cpu, id);
            }
        }
        let ids: Vec<ClaimId> = claims.claims.keys().copied().collect();
        let asks: Vec<&Ask> = asks.iter().collect();
        let parts = claims.fair_parts();
        let free: Vec<CpuId> = claims.unclaimed().iter().collect();
        let budget = claims.claimable() - claims.holders.len();
        let have = |way: &[Option<usize>], i: usize| -> CpuSet {
            let taken = free.iter().zip(way).filter(|(_, taker)| **taker == Some(i));
            let new = taken.map(|(&cpu, _)| cpu);
            claims.cpus(ids[i]).iter().chain(new).collect()
        };
        let is_way = |way: &Vec<Option<usize>>| {
            way.iter().flatten().count() <= budget
                && (0..ids.len()).all(|i| have(way, i).len() <= asks[i].max as usize)
        };
        let score = |way: &[Option<usize>]| {
            let due = |i: usize| parts[&ids[i]].min(asks[i].min as usize);
            let met = (0..ids.len()).filter(|&i| have(way, i).len() >= due(i)).count();
            (met, way.iter().flatten().count())
        };
        let given: BTreeMap<CpuId, ClaimId> = claims.hand_out(&parts).into_iter().collect();
        let taker = |cpu| given.get(cpu).map(|id| id.0 as usize);
        let ours: Vec<Option<usize>> = free.iter().map(taker).collect();
        let ways: Vec<_> = ways(&free, &asks).into_iter().filter(is_way).collect();
        prop_assert!(ways.contains(&ours), "{:?}", ours);
        prop_assert_eq!(score(&ours), ways.iter().map(|w| score(w)).max().unwrap());
        let growing: BTreeSet<usize> = ours.iter().flatten().copied().collect();
        if let (1, Some(&i)) = (growing.len(), growing.first()) {
            let count = score(&ours).1;
            let alone = |w: &&Vec<Option<usize>>| {
                w.iter().flatten().all(|&j| j == i) && score(w).1 == count
            };
            let costs = ways.iter().filter(alone).map(|w| cost(&claims, asks[i].numa, &have(w, i)));
            let least = costs.min();
            prop_assert_eq!(Some(cost(&claims, asks[i].numa, &have(&ours, i))), least);
        }
    }

    #[test]
    fn events_in_any_order_keep_the_rules(
        topology in any_machine(),
        events in proptest::collection::vec(any_event(), 1..25),
        unclaimed_min in 0usize..3,
    ) {
        let mut claims = Claims { unclaimed_min, ..Claims::new(topology) };
        let mut ids: Vec<(ClaimId, u64)> = Vec::new();
        let play = |
            events: &[Event],
            claims: &mut Claims,
            ids: &mut Vec<(ClaimId, u64)>,
        | -> Result<Vec<Outcome>, TestCaseError> {
            let mut outcomes = Vec::new();
            for (turn, event) in events.iter().enumerate() {
                let before = claims.clone();
                let of = |i: &usize| ids.get(*i).copied().unwrap_or((ClaimId(0), 0));
                let outcome = match event {
                    Event::Invade(ask) => {
                        let owner = turn as u64 % 2;
                        claims.invade(None, owner, ask.clone()).map(|(id, outcome)| {
                            ids.push((id, owner));
                            outcome
                        })
                    }
                    Event::InvadeAnew(i, ask) => {
                        let (id, owner) = of(i);
                        claims.invade(Some(id), owner, ask.clone()).map(|o| o.1)
                    }
                    Event::To(i, n) => claims.retreat(of(i).0, of(i).1, Retreat::To(*n)),
                    Event::Cpus(i, cpus) => {
                        claims.retreat(of(i).0, of(i).1, Retreat::Cpus(cpus.clone()))
                    }
                    Event::Deadline(i) => Ok(claims.deadline(of(i).0)),
                    Event::End(i) => claims.end(of(i).0, of(i).1),
                    Event::Dead(owner) => Ok(claims.dead(*owner)),
                };
                prop_assert!(claims.holders.len() <= claims.claimable());
                for (&id, claim) in &claims.claims {
                    let cpus = claims.cpus(id);
                    prop_assert!(cpus.len() <= claim.ask.max as usize, "{:?} has {}", claim, cpus);
                    let is_allowed = cpus.iter().all(|c| claim.ask.allows(c));
                    prop_assert!(cpus.len() == 1 || is_allowed, "{:?} has {}", claim, cpus);
                    let had_none = before.cpus(id).is_empty();
                    prop_assert!(!cpus.is_empty() || had_none, "{:?} lost its last CPU", claim);
                    if let Some(keep) = &claim.keep {
                        prop_assert!(!keep.is_empty() && keep.len() < cpus.len());
                        prop_assert!(keep.iter().all(|c| cpus.contains(c)));
                    }
                    let changed = |o: &Outcome| o.changed.iter().find(|(c, _)| *c == id).cloned();
                    match outcome.as_ref().ok().and_then(changed) {
                        Some((_, reported)) => prop_assert_eq!(&reported, &cpus),
                        None => prop_assert_eq!(&before.cpus(id), &cpus),
                    }
                }
                outcomes.push(outcome.unwrap_or_default());
            }
            Ok(outcomes)
        };
        let again = (claims.clone(), ids.clone());
        let first = play(&events, &mut claims, &mut ids)?;
        let (mut claims_again, mut ids_again) = again;
        let second = play(&events, &mut claims_again, &mut ids_again)?;
        prop_assert_eq!(&first, &second, "the arbiter is deterministic");

        // After all requests are fulfilled, there are no requests.
        let mut rounds = 0;
        let asked = |claims: &Claims| {
            claims.claims.iter().find(|(_, c)| c.keep.is_some()).map(|(&id, _)| id)
        };
        while let Some(id) = asked(&claims) {
            claims.deadline(id);
            rounds += 1;
            prop_assert!(rounds <= 100, "the requests do not end");
        }
        // Without constraints each claim then has its fair part.
        if claims.claims.values().all(|c| c.ask.within.is_none()) {
            let parts = claims.fair_parts();
            let holders = parts.keys().filter(|&&id| claims.count(id) > 0).count();
            if holders == parts.len() {
                for (&id, &part) in &parts {
                    prop_assert!(claims.count(id) >= part, "{:?} of {}", claims.cpus(id), part);
                }
            }
        }
    }
}
