"""S-Net networks with boxes of this process."""

import contextlib
import gc
import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import traceback
import weakref

import pytest

import corebeat
from corebeat.net import Fault, Network

GREET = "net main { box greet ((name, <times>) -> (line)); } connect greet;"


def greet(name, times):
    for _ in range(times):
        yield {"line": f"hello {name}"}


def one_box(function, **options):
    return Network("net main { box f ((a) -> (b) | (<t>)); } connect f;", {"f": function}, **options)


def test_records_pass_a_network():
    outcome = Network(GREET, {"greet": greet}).run([{"name": "you", "<times>": 2, "id": 7}])
    assert outcome.records == [{"line": "hello you", "id": 7}] * 2
    assert (outcome.faults, outcome.fault_count, outcome.kept) == ([], 0, 0)


def test_network_runs_again_and_has_combinators():
    program = "net down { box step ((n) -> (n) | (done)); } connect step * {done};"
    network = Network(program, {"step": lambda n: {"n": n - 1} if n > 0 else {"done": "zero"}})
    for start in [0, 3, 50]:
        assert network.run([{"n": start}]).records == [{"done": "zero"}]
    assert network.run().records == network.run([]).records == []


def test_many_records_on_many_workers():
    program = "net main { box f ((a) -> (b)); } connect f !! <k>;"
    network = Network(program, {"f": lambda a: {"b": a * a}}, workers=4)
    records = [{"a": n, "<k>": n % 8} for n in range(500)]
    output = network.run(iter(records)).records
    assert [record["b"] for record in output] == [n * n for n in range(500)]


class Opaque:
    pass


@pytest.mark.parametrize(
    "value",
    ["text", "", "größe", "\ud800", 5, -(2**63), 2**200, True, None, 2.5, b"bytes", b"", [1, {}]],
)
def test_values_return_unchanged(value):
    seen = []

    def box(a):
        seen.append(a)
        return {"b": a}

    (record,) = one_box(box).run([{"a": value}]).records
    for found in [seen[0], record["b"]]:
        assert found == value and type(found) is type(value)


def test_objects_keep_their_identity():
    thing = Opaque()
    assert one_box(lambda a: {"b": a}).run([{"a": thing}]).records[0]["b"] is thing


def test_box_selects_a_variant_by_its_labels():
    network = one_box(lambda a: [{"b": a}, {"<t>": len(a)}])
    assert network.run([{"a": "xyz"}]).records == [{"b": "xyz"}, {"<t>": 3}]
    assert one_box(lambda a: None).run([{"a": 1}]).records == []


def test_exception_of_a_box_stops_the_network():
    def box(a):
        raise KeyError("gone\naway")

    with pytest.raises(corebeat.Error, match="at a fault: box f: KeyError: .*on_fault") as raised:
        one_box(box).run([{"a": 1}])
    assert isinstance(raised.value.__cause__, KeyError) and "\n" not in str(raised.value)


def test_cause_belongs_to_the_fault_of_the_message():
    both = threading.Barrier(2)

    def box(a):
        # Both boxes fail at one time, unless their tasks have started on one worker: then the
        # second fails after the first.
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(1)
        raise KeyError(a)

    program = "net main { box f ((a) -> (b)); } connect f ! <k>;"
    network = Network(program, {"f": box}, workers=2)
    with pytest.raises(corebeat.Error, match="KeyError") as raised:
        network.run([{"a": "one", "<k>": 0}, {"a": "two", "<k>": 1}])
    cause = raised.value.__cause__
    assert cause is None or f"KeyError: {cause}" in str(raised.value)


def test_network_may_continue_after_faults():
    network = one_box(lambda a: {"b": 10 // a}, on_fault="continue")
    outcome = network.run([{"a": a, "<n>": a} for a in [1, 0, 2]])
    assert [record["b"] for record in outcome.records] == [10, 5]
    assert outcome.fault_count == 1
    (fault,) = outcome.faults
    assert isinstance(fault, Fault) and fault.entity == "box f"
    assert fault.message.startswith("ZeroDivisionError")
    assert network.run([{"a": 5}]).records == [{"b": 2}]


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ({"c": 1}, r"the box output a record {c}, which it does not declare"),
        ({"<t>": 2**31}, "<t> is a tag, and 2147483648 is no integer of 32 bits"),
        ({"<t>": "x"}, "<t> is a tag, and 'x' is no integer"),
        (7, "returns dictionaries or None, not <class 'int'>"),
        ([7], "returns dictionaries or None"),
        ({7: 7}, "the key 7 of a record is no text"),
    ],
)
def test_wrong_outputs_are_faults(output, message):
    with pytest.raises(corebeat.Error, match=message):
        one_box(lambda a: output).run([{"a": 1}])


def test_wrong_inputs_are_exceptions():
    network = one_box(lambda a: {"b": a})
    with pytest.raises(ValueError, match="<t> is a tag"):
        network.run([{"a": 1, "<t>": None}])
    with pytest.raises(TypeError, match="an input record is a dictionary, not <class 'int'>"):
        network.run([7])
    with pytest.raises(TypeError):
        network.stream(7)
    with pytest.raises(corebeat.Error, match="no part takes|takes no|network stopped"):
        network.run([{"z": 1}])


def test_mistakes_in_programs_name_their_place():
    with pytest.raises(ValueError, match=r"^line 1, column \d+: ") as raised:
        Network("net main connect [] ..")
    assert "\n" not in str(raised.value)
    with pytest.raises(ValueError, match="line 2, column"):
        Network("net main\nconnect nothing;")
    with pytest.raises(corebeat.Error, match="box greet has no function"):
        Network(GREET)
    with pytest.raises(TypeError, match="pass a function"):
        Network(GREET, {"greet": 7})
    with pytest.raises(ValueError, match="no box 'great' for the function: its boxes are greet"):
        Network(GREET, {"greet": greet, "great": greet})
    for wrong in [{"workers": 0}, {"workers": 10**6}, {"on_fault": "explode"}]:
        with pytest.raises(ValueError, match="use "):
            Network(GREET, {"greet": greet}, **wrong)


def test_functions_of_boxes_of_other_nets_are_accepted():
    program = """
        box halve ((n) -> (n));
        net outer { box twice ((n) -> (n)); } connect twice;
        net main { box square ((n) -> (n)); } connect square;
    """
    one = {"square": lambda n: {"n": n * n}}
    network = Network(program, {**one, "twice": print, "halve": print})
    assert network.run([{"n": 3}]).records == [{"n": 9}]


def test_deep_recursion_has_the_stack_of_a_thread():
    def box(a):
        nested = [a]
        for _ in range(400):
            nested = [nested]
        return {"b": json.dumps(nested)}

    (record,) = one_box(box).run([{"a": 1}]).records
    assert record["b"] == "[" * 401 + "1" + "]" * 401

    def endless(a):
        return endless(a)

    with pytest.raises(corebeat.Error, match="RecursionError"):
        one_box(endless).run([{"a": 1}])


def test_network_of_methods_is_collected_with_its_object():
    class Holder:
        def __init__(self):
            self.network = one_box(self.box)

        def box(self, a):
            return {"b": a}

    holder = Holder()
    assert holder.network.run([{"a": 1}]).records == [{"b": 1}]
    gone = weakref.ref(holder)
    del holder
    gc.collect()
    assert gone() is None


def test_functions_that_wait_run_at_the_same_time():
    def box(a):
        try:
            both.wait(1)
        except threading.BrokenBarrierError:
            return {"b": False}
        return {"b": True}

    program = "net main { box f ((a) -> (b)); } connect f ! <k>;"
    network = Network(program, {"f": box}, workers=2)
    # A task stays on the worker where it has started, so that a function may block the task that
    # passes the next record to the other one. This is rare.
    for _ in range(20):
        both = threading.Barrier(2)
        outcome = network.run([{"a": 1, "<k>": 0}, {"a": 2, "<k>": 1}])
        if [record["b"] for record in outcome.records] == [True, True]:
            return
    pytest.fail("no two functions ran at the same time")


def test_threads_keep_their_locals():
    local = threading.local()

    def box(a):
        local.calls = getattr(local, "calls", 0) + 1
        return {"b": local.calls}

    network = one_box(box, workers=1)
    for calls in [1, 2, 3]:
        assert network.run([{"a": None}]).records == [{"b": calls}]


def test_network_does_not_block_the_end_of_python():
    code = """
import threading
from corebeat.net import Network
begun = threading.Event()
def f(a):
    begun.set()
    threading.Event().wait(None if a else 0)
    return {"b": a}
networks = [Network("net main { box f ((a) -> (b)); } connect f;", {"f": f}) for _ in range(2)]
networks[0].run([{"a": 0}])
begun.clear()
threading.Thread(target=networks[1].run, args=([{"a": 1}],), daemon=True).start()
begun.wait()
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, b"", b"")


def test_network_runs_on_one_thread_at_a_time():
    def box(a):
        with pytest.raises(corebeat.Error, match="runs already"):
            network.run([{"a": 1}])
        return {"b": a}

    network = one_box(box)
    assert network.run([{"a": 1}]).records == [{"b": 1}]


def test_interrupt_ends_a_run():
    program = "net main { box f ((a) -> (a) | (b)); } connect f * {b};"

    def again(a):
        if a == 0:
            signal.raise_signal(signal.SIGINT)
        return {"a": a + 1}  # without end

    network = Network(program, {"f": again})
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            network.run([{"a": 0}])


def test_child_of_fork_creates_networks_of_its_own():
    network = one_box(lambda a: {"b": a})
    assert network.run([{"a": 1}]).records == [{"b": 1}]
    child = os.fork()
    if child == 0:
        try:
            with pytest.raises(corebeat.Error, match="belongs to the parent process"):
                network.run([{"a": 1}])
            assert one_box(lambda a: {"b": a}).run([{"a": 1}]).records == [{"b": 1}]
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_outputs_arrive_while_the_input_waits():
    seen = queue.SimpleQueue()

    def records():
        for n in range(100):
            yield {"a": n}
            assert seen.get(timeout=60) == n

    with one_box(lambda a: {"b": a}).stream(records()) as stream:
        for record in stream:
            seen.put(record["b"])
    assert (stream.faults, stream.fault_count, stream.kept) == ([], 0, 0)
    assert next(stream, None) is None


def test_input_without_end_waits_for_the_caller_and_is_closed():
    requested = 0
    closed = threading.Event()

    def records():
        nonlocal requested
        try:
            for requested in itertools.count():
                yield {"a": requested}
        finally:
            closed.set()

    network = one_box(lambda a: {"b": a})
    with network.stream(records()) as stream:
        for n in range(2000):
            assert next(stream) == {"b": n}
            # Three streams of 64 records, and those in between.
            assert requested < n + 300
    assert list(stream) == []
    assert closed.wait(60)
    stream.close()
    assert network.run([{"a": 1}]).records == [{"b": 1}]


def test_box_without_end_waits_for_the_caller_and_is_closed():
    closed = threading.Event()

    def forever(a):
        try:
            for n in itertools.count():
                yield {"b": n}
        finally:
            closed.set()

    network = one_box(forever, workers=1)
    for n, record in enumerate(network.stream([{"a": 0}])):
        assert record == {"b": n}
        if n == 1000:
            break
    # The stream is deleted with the loop: another run begins after the end of the first one.
    assert network.run().records == []
    assert closed.wait(60)


def test_many_records_of_a_box_need_the_thread_of_the_next_box():
    program = """
    net main { box many ((<n>) -> (<k>)); box f ((<k>) -> (b)); } connect many .. f;
    """

    def many(n):
        return ({"<k>": k} for k in range(n))

    network = Network(program, {"many": many, "f": lambda k: {"b": k}}, workers=1)
    assert network.run([{"<n>": 5000}]).records == [{"b": k} for k in range(5000)]


def test_records_before_an_exception_of_a_box_are_output():
    def box(a):
        yield {"b": a}
        raise KeyError("late")

    stream = one_box(box).stream([{"a": 1}])
    assert next(stream) == {"b": 1}
    with pytest.raises(corebeat.Error, match="at a fault: box f: KeyError") as raised:
        next(stream)
    assert isinstance(raised.value.__cause__, KeyError)
    assert list(stream) == [] and stream.fault_count == 1


def test_exception_of_the_input_reaches_the_caller():
    late = KeyError("late")

    def records():
        yield {"a": 1}
        raise late

    network = one_box(lambda a: {"b": a})
    with network.stream(records()) as stream:
        assert next(stream) == {"b": 1}
        with pytest.raises(KeyError) as raised:
            next(stream)
        assert raised.value is late and list(stream) == []
    with pytest.raises(KeyError):
        network.run(records())
    with pytest.raises(ValueError, match="<t> is a tag"), network.stream([{"<t>": ""}]) as stream:
        next(stream)


def test_closed_stream_calls_no_function():
    begun, waits = threading.Event(), threading.Event()
    calls = []

    def box(a):
        calls.append(a)
        begun.set()
        assert waits.wait(60)
        return {"b": a}

    network = one_box(box, workers=1)
    stream = network.stream({"a": n} for n in range(100))
    assert begun.wait(60)
    with pytest.raises(corebeat.Error, match="runs already.* or close its stream"):
        network.stream()
    closer = threading.Thread(target=stream.close)
    closer.start()
    assert next(stream, None) is None, "the other thread has stopped the network"
    waits.set()
    closer.join()
    assert calls == [0] and next(stream, None) is None


def test_fault_stops_a_network_although_its_input_waits():
    goes_on = threading.Event()

    def records():
        yield {"a": 0}
        assert goes_on.wait(60)

    def box(a):
        raise KeyError(a)

    with pytest.raises(corebeat.Error, match="KeyError"), one_box(box).stream(records()) as stream:
        next(stream)
    goes_on.set()


def test_child_of_fork_has_no_stream():
    network = one_box(lambda a: {"b": a})
    stream = network.stream({"a": n} for n in itertools.count())
    assert next(stream) == {"b": 0}
    child = os.fork()
    if child == 0:
        try:
            with pytest.raises(corebeat.Error, match="belongs to the parent process"):
                next(stream)
            stream.close()
            del stream
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert next(stream) == {"b": 1}
    stream.close()


def test_network_is_drawn():
    network = Network(GREET, {"greet": greet})
    assert network.svg().startswith("<svg") and "greet" in network.svg()
    assert network._repr_svg_() == network.svg() and network.warnings == []
