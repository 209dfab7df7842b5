"""Probes on functions and blocks in Python."""

import asyncio
import contextlib
import inspect
import os
import pickle
import subprocess
import sys
import threading
import time
import traceback
import types

import pytest

import corebeat
from corebeat import trace
from corebeat.probe import Probe, probe, switch


@contextlib.contextmanager
def recorded(path, pattern=f"{__name__}.*"):
    switch(pattern)
    try:
        with trace.record(path):
            yield
    finally:
        switch(pattern, False)


def summary(path):
    """Function, caller and outcome of each call."""
    calls = trace.open(path).calls()
    return [(call.name.rpartition(".")[2], call.parent, call.outcome) for call in calls]


@probe
def price(article):
    with probe("look up"):
        return len(article)


@probe
def total(articles):
    return sum(map(price, articles))


@probe
def depth(n):
    return 0 if n == 0 else 1 + depth(n - 1)


class Shop:
    @probe
    def sell(self, article, *, count=1):
        """Sells an article."""
        return price(article) * count

    @staticmethod
    @probe
    def tax(cents):
        return cents // 5

    @property
    @probe
    def name(self):
        return "shop"

    @probe
    @classmethod
    def open(cls, article):
        return cls().sell(article)

    @probe
    @staticmethod
    def close():
        return "closed"


@types.coroutine
def pause():
    return (yield "paused")


@probe
async def inner(n):
    await pause()
    return n


@probe
async def outer(n):
    return await inner(n) + await inner(n)


@probe
def numbers(count):
    try:
        for n in range(count):
            n += (yield price("x" * n)) or 0
    except ValueError:
        yield "handled"
    return count


def test_calls_have_names_callers_and_times(tmp_path):
    begin = time.monotonic_ns()
    with recorded(tmp_path / "a.cbt"):
        assert total(["tea", "sugar"]) == 8
    end = time.monotonic_ns()
    opened = trace.open(tmp_path / "a.cbt")
    calls = opened.calls()
    names = [call.name.removeprefix(f"{__name__}.") for call in calls]
    assert names == ["total", "price", "look up", "price", "look up"]
    assert [call.parent for call in calls] == [None, 0, 1, 0, 3]
    assert {call.outcome for call in calls} == {"returned"}
    for call in calls:
        parent = calls[call.parent] if call.parent is not None else call
        assert parent.begin_ns <= call.begin_ns <= call.end_ns <= parent.end_ns
        assert call.file == __file__ and call.tid == threading.get_native_id()
    assert begin <= calls[0].end_ns and calls[0].begin_ns <= end
    lines = inspect.getsourcelines(price.__wrapped__)[1]
    assert calls[1].line == lines and calls[2].line == lines + 2
    assert len({call.run for call in calls}) == 1


def test_program_draws_the_calls(tmp_path):
    with recorded(tmp_path / "a.cbt"):
        total(["tea"])
    command = [corebeat.find_program(), "trace", "calls", tmp_path / "a.cbt"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "  test_probe.total\n" in shown and "      test_probe.look up\n" in shown
    command += ["--as", "sequence", "--format", "mermaid"]
    assert "total" in subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_depth_of_recursion(tmp_path):
    with recorded(tmp_path / "a.cbt"):
        assert depth(100) == 100
    found = summary(tmp_path / "a.cbt")
    assert found == [("depth", n - 1 if n else None, "returned") for n in range(101)]


def test_functions_stay_the_same(tmp_path):
    with recorded(tmp_path / "a.cbt"):
        assert Shop().sell("tea", count=2) == 6 and Shop.tax(10) == 2 and Shop().name == "shop"
    assert [call[0] for call in summary(tmp_path / "a.cbt")] == [
        "sell", "price", "look up", "tax", "name",
    ]
    assert Shop.sell.__doc__ == "Sells an article."
    assert list(inspect.signature(Shop.sell).parameters) == ["self", "article", "count"]
    assert pickle.loads(pickle.dumps(price)) is price
    assert inspect.iscoroutinefunction(outer) and inspect.isgeneratorfunction(numbers)


def test_methods_of_a_class_have_probes(tmp_path):
    with recorded(tmp_path / "a.cbt"):
        assert Shop.open("tea") == 3 and Shop().close() == "closed"
    assert [call[:2] for call in summary(tmp_path / "a.cbt")] == [
        ("open", None), ("sell", 0), ("price", 1), ("look up", 2), ("close", None),
    ]


def test_exceptions_end_calls(tmp_path):
    with recorded(tmp_path / "a.cbt"):
        with pytest.raises(TypeError):
            total([1])
        with probe("after"), contextlib.suppress(KeyError), probe("within"):
            raise KeyError
    failed = [(name, caller, "panicked") for name, caller in [("total", None), ("price", 0)]]
    assert summary(tmp_path / "a.cbt") == [
        *failed, ("look up", 1, "panicked"), ("after", None, "returned"), ("within", 3, "panicked"),
    ]


def test_interleaved_coroutines_are_separate(tmp_path):
    with recorded(tmp_path / "a.cbt"):
        running = {1: outer(1), 2: outer(2)}
        results = []
        while running:
            for n in list(running):
                try:
                    assert running[n].send(None) == "paused"
                except StopIteration as end:
                    results.append(end.value)
                    del running[n]
        assert results == [2, 4]
    assert summary(tmp_path / "a.cbt") == [
        (name, caller, "returned")
        for name, caller in [
            ("outer", None), ("inner", 0), ("outer", None),
            ("inner", 2), ("inner", 0), ("inner", 2),
        ]
    ]


def test_coroutines_of_asyncio(tmp_path):
    @probe
    async def sleeps():
        await asyncio.Event().wait()

    async def main():
        assert await asyncio.gather(*(asyncio.wait_for(idle(n), 60) for n in range(3))) == [0, 1, 2]
        task = asyncio.ensure_future(sleeps())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    @probe
    async def idle(n):
        await asyncio.sleep(0)
        return n

    with recorded(tmp_path / "a.cbt"):
        asyncio.run(main())
    found = summary(tmp_path / "a.cbt")
    assert found == [("idle", None, "returned")] * 3 + [("sleeps", None, "panicked")]


def test_steps_of_a_generator_are_one_call(tmp_path):
    with recorded(tmp_path / "a.cbt"):
        assert list(numbers(2)) == [0, 1]
        thrown = numbers(2)
        assert next(thrown) == 0 and thrown.throw(ValueError()) == "handled"
        thrown.close()
        ended = numbers(2)
        next(ended)
        with pytest.raises(KeyError):
            ended.throw(KeyError())
        closed = numbers(5)
        next(closed)
        del closed
        numbers(1)  # without a step
    found = summary(tmp_path / "a.cbt")
    outcomes = [outcome for name, _, outcome in found if name == "numbers"]
    assert outcomes == ["returned", "returned", "panicked", "returned"]
    callers = [caller for name, caller, _ in found if name == "price"]
    assert callers[:2] == [0, 0], "the caller is the generator"


def test_probe_that_is_off_records_nothing(tmp_path):
    assert not Probe(f"{__name__}.own", "", 0).is_on
    with trace.record(tmp_path / "a.cbt"):
        total(["tea"])
    assert summary(tmp_path / "a.cbt") == []


def test_call_that_is_switched_while_it_runs_is_complete(tmp_path):
    pattern = f"{__name__}.switched*"
    with recorded(tmp_path / "a.cbt", pattern):
        with probe("switched 1") as nothing, probe("switched 2"):
            switch(pattern, False)
            assert nothing is None
            with probe("switched 1"):
                switch(pattern)
        with probe("switched 2"):
            pass
    expected = [("switched 1", None), ("switched 2", 0), ("switched 2", None)]
    assert summary(tmp_path / "a.cbt") == [(*call, "returned") for call in expected]


def test_patterns_apply_to_later_probes():
    assert switch(f"{__name__}.later.*") == 0
    assert Probe(f"{__name__}.later.a", "", 0).is_on
    assert switch(f"{__name__}.later.*", False) == 1
    assert not Probe(f"{__name__}.later.b", "", 0).is_on
    for wrong in ["", "a\nb", "x" * 513]:
        with pytest.raises(ValueError, match="invalid pattern"):
            switch(wrong)


def test_a_place_has_one_probe():
    def block():
        return probe("place")

    assert block() is block() is not probe("place")
    assert repr(block()) == f"Probe('{__name__}.place')"


def test_blocks_that_end_in_another_order_are_enclosed(tmp_path):
    def block(label):
        with probe(label):
            yield

    with recorded(tmp_path / "a.cbt"):
        first, second = block("first"), block("second")
        next(first), next(second)
        list(first), list(second)
        with probe("third"):
            pass
    calls = trace.open(tmp_path / "a.cbt").calls()
    assert [(c.parent, c.outcome) for c in calls] == [
        (None, "returned"), (0, "returned"), (None, "returned"),
    ]
    assert calls[1].end_ns <= calls[0].end_ns <= calls[2].begin_ns


def test_threads_have_calls_of_their_own(tmp_path):
    both = threading.Barrier(2)

    @probe
    def meet():
        both.wait(60)
        price("tea")

    with recorded(tmp_path / "a.cbt"):
        threads = [threading.Thread(target=meet) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    calls = trace.open(tmp_path / "a.cbt").calls()
    callers = [calls[call.parent] for call in calls if call.name.endswith("price")]
    assert len({caller.tid for caller in callers}) == 2
    assert all(c.tid == calls[c.parent].tid for c in calls if c.parent is not None)


def test_child_of_fork_records_its_own_calls(tmp_path):
    with recorded(tmp_path / "parent.cbt"):
        with probe("parent"):
            child = os.fork()
            if child == 0:
                try:
                    with trace.record(tmp_path / "child.cbt"):
                        price("tea")
                    os._exit(0)
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert summary(tmp_path / "parent.cbt") == [("parent", None, "returned")]
    expected = [("price", None, "returned"), ("look up", 0, "returned")]
    assert summary(tmp_path / "child.cbt") == expected


def test_functions_that_cannot_have_probes_are_refused():
    async def both():
        yield

    with pytest.raises(TypeError, match="asynchronous generator .*both: write"):
        probe(both)
    with pytest.raises(TypeError, match="cannot replace a class: decorate Shop.__init__"):
        probe(Shop)
    for wrong in [3, None, property(len)]:
        with pytest.raises(TypeError, match="probe decorates functions, not"):
            probe(wrong)
    assert probe(len)([1]) == 1


def test_number_of_probes_has_a_limit():
    code = """
import corebeat
from corebeat.probe import Probe
try:
    for n in range(1 << 17):
        Probe("p", "", n)
except corebeat.Error as why:
    print(n, why)
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "the program has 65536 probes, the largest number: add one for each" in shown.stdout
