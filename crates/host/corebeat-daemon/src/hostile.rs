//! Invalid input of a connection: tests of the reader, the calls and the answers, without the rest
//! of the daemon.

use crate::client::{Client, Gone, Served};
use crate::host::Host;
use crate::limit::{Pace, SEATS_PER_CLIENT_MAX};
use crate::peer::Peer;
use crate::session::Session;
use corebeat_machine::Topology;
use corebeat_wire::{MESSAGE_BYTES_MAX, host, service};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, memfd_create};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
    SocketType, recv, sendmsg, socketpair,
};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

const METHODS: [&str; 13] = [
    service::GET_INFO,
    service::GET_INTERFACE_DESCRIPTION,
    host::ATTACH,
    host::ATTACH,
    host::DETACH,
    host::SET_GOAL,
    host::LIST_GROUPS,
    host::INVADE,
    host::RETREAT,
    host::WATCH_CLAIMS,
    host::LIST_CLAIMS,
    host::STATUS,
    "io.corebeat.Host.None",
];
/// Field names with values, most of which are valid.
const FIELDS: [(&str, &[&str]); 16] = [
    ("group", &["1", "2", "3", "4294967295", "4294967296"]),
    ("owner", &["null", "0", "1", "-1"]),
    ("mode", &["null", "384", "388", "390", "511"]),
    ("role", &["\"producer\"", "\"consumer\"", "\"king\""]),
    ("goal", &["{\"rate_min\":1.5,\"rate_max\":3,\"window\":4,\"hold\":true}", "{}", "null"]),
    (
        "goal",
        &[
            "{\"rate_min\":9e999,\"rate_max\":-3,\"window\":0,\"hold\":1}",
            "{\"rate_min\":null,\"rate_max\":null,\"window\":4294967295,\"hold\":false}",
        ],
    ),
    ("interface", &["\"io.corebeat.Host\"", "\"\"", "\"\\u0000\""]),
    ("claim", &["null", "1", "2", "18446744073709551615"]),
    ("min", &["0", "1", "4294967295"]),
    ("max", &["1", "2", "64", "4294967295"]),
    ("numa", &["null", "\"scatter\"", "\"compact\""]),
    ("within", &["null", "[0,1]", "[]", "[8191]", "[8192]", "[4294967295]"]),
    ("to", &["null", "0", "1", "4294967295"]),
    ("cpus", &["null", "[0]", "[1,2,3]", "[9000]"]),
    ("more", &["true"]),
    (
        "nested",
        &["[[[[[[[[[[[[]]]]]]]]]]]]", "{\"a\":{\"b\":{\"c\":1e308}}}", "\"\\ud83d\\ude00\""],
    ),
];
/// Required fields of a method, so that some calls are valid.
const NEEDS: [(&str, &[usize]); 6] = [
    (host::ATTACH, &[0, 3]),
    (host::DETACH, &[0, 3]),
    (host::SET_GOAL, &[0, 4]),
    (host::INVADE, &[8, 9]),
    (host::RETREAT, &[7]),
    (service::GET_INTERFACE_DESCRIPTION, &[6]),
];

/// Random choices of inputs.
struct Random(fastrand::Rng);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0.usize(..end)
    }

    fn of<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn call(&mut self) -> String {
        let method = *self.of(&METHODS);
        let mut fields = String::new();
        let needed = NEEDS.iter().find(|n| n.0 == method).map_or(&[][..], |n| n.1);
        let surplus = if self.one_in(4) { 1 + self.below(3) } else { 0 };
        let picked: Vec<usize> =
            needed.iter().copied().chain((0..surplus).map(|_| self.below(FIELDS.len()))).collect();
        for field in picked {
            let (name, values) = FIELDS[field];
            let value = self.of(values);
            let comma = if fields.is_empty() { "" } else { "," };
            fields += &format!("{comma}\"{name}\":{value}");
        }
        let flags =
            *self.of(&["", "", "", ",\"oneway\":true", ",\"more\":true", ",\"upgrade\":true"]);
        format!("{{\"method\":\"{method}\",\"parameters\":{{{fields}}}{flags}}}")
    }

    /// Bytes that a connection sends at once: calls, parts of calls, calls with changed bytes,
    /// random bytes.
    fn input(&mut self) -> Vec<u8> {
        let mut bytes = self.call().into_bytes();
        bytes.push(0);
        if self.one_in(4) {
            for _ in 0..=self.below(4) {
                let at = self.below(bytes.len());
                bytes[at] = self.below(256) as u8;
            }
        }
        if self.one_in(8) {
            bytes.truncate(self.below(bytes.len()));
        }
        if self.one_in(64) {
            let count = self.below(4000);
            bytes.extend((0..count).map(|_| self.below(256) as u8));
        }
        if self.one_in(20_000) {
            bytes.resize(MESSAGE_BYTES_MAX, b'[');
        }
        bytes
    }
}

/// Descriptors of several kinds: valid regions, empty and too small memory, sockets.
fn descriptors() -> Vec<OwnedFd> {
    let memory = |bytes: u64, seals: SealFlags| {
        let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        fallocate(&fd, FallocateFlags::empty(), 0, bytes).unwrap();
        rustix::io::pwrite(
            &fd,
            b"CBHBREG1".map(|b| b).iter().rev().copied().collect::<Vec<_>>().as_slice(),
            0,
        )
        .unwrap();
        fcntl_add_seals(&fd, seals).unwrap();
        fd
    };
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    let (a, b) = pair();
    vec![
        memory(64 << 10, seals),
        memory(64 << 10, seals),
        memory(64 << 10, SealFlags::SHRINK),
        memory(8, seals),
        a,
        b,
    ]
}

fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap()
}

fn send(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
    // Data beyond the buffer is lost, which is a further kind of input.
    let _ = sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
}

/// Reads the answers, in some of the cases.
fn drain(socket: &OwnedFd) {
    let mut bytes = [0; 4096];
    while recv(socket, &mut bytes, RecvFlags::DONTWAIT).is_ok_and(|(count, _)| count > 0) {}
}

/// Ten million inputs in `cargo xtask soak`, else a few thousand.
#[test]
fn garbage_is_answered_or_dropped() {
    let inputs = if std::env::var_os("COREBEAT_SOAK").is_some() { 10_000_000 } else { 20_000 };
    let seed = std::env::var("COREBEAT_SEED").map_or(2012, |seed| seed.parse().expect("a number"));
    println!("again: COREBEAT_SEED={seed} cargo test -p corebeat-daemon --lib garbage_is_answered");
    let mut random = Random(fastrand::Rng::with_seed(seed));
    let mut host = Host::new(Topology::flat(4));
    let files = descriptors();
    let connect = || {
        let (near, far) = pair();
        let peer = Peer::of(near.as_fd()).unwrap();
        let who = corebeat_heartbeat::Peer { uid: peer.uid, pid: peer.pid.cast_unsigned() };
        let session = Session::new(who);
        (Client::new(near, peer, session), far)
    };
    let (mut served, mut left, mut dropped) = (Served::default(), 0u64, 0u64);
    let mut connections: Vec<_> = (0..3).map(|_| connect()).collect();
    let mut now_ns = 0;
    for _ in 0..inputs {
        now_ns += random.below(10_000_000) as u64;
        let at = random.below(connections.len());
        let bytes = random.input();
        let count = if random.one_in(3) { random.below(3) } else { 0 };
        let fds: Vec<_> = (0..count).map(|_| random.of(&files).as_fd()).collect();
        let (client, far) = &mut connections[at];
        send(far, &bytes, &fds);
        if !random.one_in(16) {
            drain(far);
        }
        let mut result = client.serve(&mut host, &mut Pace::default(), true, now_ns, &mut served);
        host.arbiter.tick(now_ns);
        for (_, change) in host.arbiter.take_changes() {
            if client.session.watches_claims && result.is_ok() {
                result = client.report(change);
            }
        }
        assert!(client.session.seats.len() <= SEATS_PER_CLIENT_MAX);
        assert!(host.arbiter.count() <= corebeat_policy::claims::CLAIMS_PER_OWNER_MAX);
        if random.one_in(64) {
            host.registry.sample(now_ns);
        }
        let leaves = random.one_in(500);
        if result.is_err() || leaves {
            match result {
                Err(Gone::Dropped(_)) => dropped += 1,
                _ => left += 1,
            }
            let (mut client, _) = std::mem::replace(&mut connections[at], connect());
            let others = connections.iter().map(|(other, _)| &other.session);
            host.leave(&mut client.session, others, now_ns);
        }
    }
    while let Some((mut client, _)) = connections.pop() {
        let others = connections.iter().map(|(other, _)| &other.session);
        host.leave(&mut client.session, others, now_ns);
    }
    assert!(host.registry.is_empty());
    assert_eq!(host.arbiter.count(), 0);
    println!("{inputs} inputs: {served:?}, {left} left, {dropped} dropped");
    assert!(
        served.answered * 20 > inputs && served.refused * 20 > inputs && dropped > 0,
        "the inputs are of all kinds"
    );
}
