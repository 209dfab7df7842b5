"""Heartbeats and claims of several processes, with the daemon of the wheel."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest

import corebeat

CPUS = sorted(os.sched_getaffinity(0))
WAIT_S = 60


@contextlib.contextmanager
def running_daemon(socket, end=signal.SIGTERM):
    """A daemon, which a signal ends."""
    program = [corebeat.find_program(), "daemon", "--scope", "user", "--policy", "none"]
    arguments = [*program, "--socket", str(socket)]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as process:
        # The daemon reports its socket when it listens.
        line = process.stderr.readline()
        assert str(socket) in line, line
        try:
            yield
        finally:
            process.send_signal(end)
        _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == (0 if end == signal.SIGTERM else -end), errors


@pytest.fixture
def daemon(tmp_path):
    """The environment of programs that find a daemon."""
    socket = tmp_path / "socket"
    with running_daemon(socket):
        yield {**os.environ, "COREBEAT_SOCKET": str(socket)}


def python(code, environment, *arguments, stderr=None):
    """Starts a program that communicates by lines."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )


BEATS = """
import sys
from corebeat.heartbeat import Goal, Group
group = Group(int(sys.argv[1]))
group.goal = Goal(rate_min=10)
group.beat(5)
print("ready", flush=True)
input()
"""

READS = """
import sys
from corebeat.heartbeat import Group
group = Group(int(sys.argv[1]))
status = group.status()
while status.beats < 10:
    status = group.status()
print(status.beats, status.members, status.goal.rate_min)
"""


def test_processes_beat_for_one_group(daemon):
    number = str(os.getpid() * 100)
    with python(BEATS, daemon, number) as first, python(BEATS, daemon, number) as second:
        assert (first.stdout.readline(), second.stdout.readline()) == ("ready\n", "ready\n")
        with python(READS, daemon, number) as reader:
            assert reader.communicate(timeout=WAIT_S)[0] == "10 2 10.0\n"
        first.communicate("\n", timeout=WAIT_S), second.communicate("\n", timeout=WAIT_S)
    assert (first.returncode, second.returncode, reader.returncode) == (0, 0, 0)


CLAIMS = """
import sys, threading
from corebeat.claim import claim
changed = threading.Event()
with claim() as c:
    c.on_resize(lambda cpus: changed.set())
    print(len(c.cpus), flush=True)
    if sys.argv[1] == "waits":
        assert changed.wait(60)
        print(len(c.cpus), flush=True)
    input()
"""


@pytest.mark.skipif(len(CPUS) < 2, reason="programs share at least two CPUs")
def test_programs_share_the_cpus_of_the_host(daemon):
    with python(CLAIMS, daemon, "waits") as first:
        assert int(first.stdout.readline()) == len(CPUS)
        with python(CLAIMS, daemon, "") as second:
            second.stdout.readline()
            assert int(first.stdout.readline()) < len(CPUS)
            second.communicate("\n", timeout=WAIT_S)
        first.communicate("\n", timeout=WAIT_S)
    assert (first.returncode, second.returncode) == (0, 0)


EXECUTES = """
import corebeat, sys, threading
changed = threading.Event()
with corebeat.Executor() as executor:
    cpus = executor.claim.cpus
    executor.claim.on_resize(lambda _: changed.set())
    assert executor.submit(int).result() == 0
    print("ready", flush=True)
    for line in sys.stdin:
        while (executor.claim.cpus == cpus) != (line == "all\\n"):
            assert changed.wait(60)
            changed.clear()
        print(line, end="", flush=True)
"""


@pytest.mark.skipif(len(CPUS) < 2, reason="programs share at least two CPUs")
def test_executor_follows_a_daemon_that_starts_later_and_its_successor(tmp_path):
    socket = tmp_path / "socket"
    environment = {**os.environ, "COREBEAT_SOCKET": str(socket)}
    with python(EXECUTES, environment, stderr=subprocess.PIPE) as executor:

        def wait_until_claim_has(cpus):
            executor.stdin.write(cpus)
            executor.stdin.flush()
            assert executor.stdout.readline() == cpus

        assert executor.stdout.readline() == "ready\n"
        for _ in range(2):
            # The executor makes no call: its claim moves to the daemon by itself.
            with running_daemon(socket, end=signal.SIGKILL):
                with python(CLAIMS, environment, "") as other:
                    other.stdout.readline()
                    wait_until_claim_has("fewer\n")
                    other.communicate("\n", timeout=WAIT_S)
                wait_until_claim_has("all\n")
        _, errors = executor.communicate(timeout=WAIT_S)
    assert (executor.returncode, errors) == (0, "")
