"""Reading and recording traces."""

import os
import subprocess
import sys
import threading
import time
import traceback

import pytest

import corebeat
from corebeat import trace


@pytest.fixture(scope="module")
def bank(tmp_path_factory):
    """A trace of a program in Rust, with its text form."""
    folder = tmp_path_factory.mktemp("demo") / "bank"
    program = corebeat.find_program()
    arguments = [program, "demo", "trace", "--transactions", "200", "-o", folder]
    subprocess.run(arguments, check=True, capture_output=True)
    (file,) = folder.glob("*.cbt")
    shown = subprocess.run([program, "trace", "cat", file], check=True, capture_output=True)
    return file, shown.stdout.decode().splitlines()


def test_events_are_those_of_the_program(bank):
    file, lines = bank
    opened = trace.open(file)
    events = list(opened)
    assert len(events) == len(lines) > 1000
    assert list(opened) == events, "a trace can be read again"
    for event, line in zip(events, lines):
        assert f" {event.kind}" in line and event.thread.name in line
    times = [event.time_ns for event in events]
    assert times == sorted(times) and times[0] >= opened.span_ns[0]
    assert opened.ending == trace.Ending("complete", 0, "complete")
    assert {event.kind for event in events} <= {kind.name for kind in opened.kinds()}
    assert {event.thread for event in events} <= set(opened.threads)
    assert opened.process.pid > 0 and repr(opened) == f"Trace({str(file)!r})"


def test_events_as_a_table(bank):
    file, lines = bank
    table = trace.open(file).to_pandas()
    assert len(table) == len(lines)
    assert list(table.columns[:6]) == ["time_ns", "bound_ns", "stream", "tid", "thread", "kind"]


def own(path):
    """The events of a trace, without those of the probes of other tests."""
    return [event for event in trace.open(path) if event.kind.startswith("python.")]


def test_recorded_events_are_read_back(tmp_path):
    plain, valued = trace.Mark("plain"), trace.Mark("größe")
    plain.emit()  # no trace is recorded
    begin = time.monotonic_ns()
    with trace.record(tmp_path / "{pid}.cbt") as recording:
        plain.emit()
        valued.emit(2.5)
        thread = threading.Thread(target=valued.emit, args=(-1,))
        thread.start()
        thread.join()
        assert recording.path == str(tmp_path / f"{os.getpid()}.cbt")
        summary = recording.finish()
    end = time.monotonic_ns()
    streams = {event.thread.stream for event in trace.open(recording.path)}
    assert (summary.threads, summary.lost) == (len(streams), 0) and recording.finish() is None
    events = own(recording.path)
    assert [(event.kind, event.fields) for event in events] == [
        ("python.event", {"name": "plain"}),
        ("python.value", {"name": "größe", "value": 2.5}),
        ("python.value", {"name": "größe", "value": -1.0}),
    ]
    assert all(begin <= e.time_ns + e.bound_ns and e.time_ns - e.bound_ns <= end for e in events)
    assert events[0].thread != events[2].thread and plain.name == "plain"


def test_one_trace_is_recorded_at_a_time(tmp_path):
    with trace.record(tmp_path / "a.cbt"):
        with pytest.raises(corebeat.Error, match="installed already"):
            trace.record(tmp_path / "b.cbt")
        with pytest.raises(corebeat.Error, match="being recorded in"):
            trace.record(tmp_path / "a.cbt")
    with trace.record(tmp_path / "a.cbt"):
        pass
    assert own(tmp_path / "a.cbt") == []


def test_forgotten_recording_ends(tmp_path):
    trace.record(tmp_path / "a.cbt")
    assert trace.open(tmp_path / "a.cbt").ending.state == "complete"


def test_child_of_fork_records_a_trace_of_its_own(tmp_path):
    mark = trace.Mark("m")
    with trace.record(tmp_path / "parent.cbt"):
        mark.emit(1)
        child = os.fork()
        if child == 0:
            try:
                mark.emit(2)
                with trace.record(tmp_path / "child.cbt"):
                    mark.emit(3)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        mark.emit(4)

    def values(name):
        return [event.fields["value"] for event in own(tmp_path / name)]

    assert (values("parent.cbt"), values("child.cbt")) == ([1, 4], [3])


def test_files_that_are_no_traces_are_errors(tmp_path):
    (tmp_path / "text").write_text("hello " * 100)
    with pytest.raises(corebeat.Error, match="not a Corebeat trace"):
        trace.open(tmp_path / "text")
    with pytest.raises(FileNotFoundError, match="cannot read the trace"):
        trace.open(tmp_path / "none")
    with pytest.raises(OSError):
        trace.open(tmp_path)
    with pytest.raises(FileNotFoundError):
        trace.record(tmp_path / "none" / "a.cbt")
    with pytest.raises(ValueError, match="at most 255"):
        trace.Mark("x" * 256)


def test_truncated_trace_is_read_to_its_last_packet(bank, tmp_path):
    whole = bank[0].read_bytes()
    (tmp_path / "cut.cbt").write_bytes(whole[: len(whole) - 10])
    cut = trace.open(tmp_path / "cut.cbt")
    assert cut.ending.state == "unfinished" and len(list(cut)) <= len(bank[1])
    assert "\n" not in cut.ending.text


def test_calls_of_probes():
    file = os.environ.get("COREBEAT_TEST_CALLS")
    assert file, "'cargo xtask ci --only python' records a trace with calls for this test"
    calls = trace.open(file).calls()
    names = {call.name.rsplit("::")[-1] for call in calls}
    assert {"serve", "total", "price"} <= names
    for number, call in enumerate(calls):
        assert call.begin_ns <= call.end_ns and call.outcome == "returned" and call.line > 0
        assert call.parent is None or call.parent < number
    table = trace.open(file).calls_to_pandas()
    assert len(table) == len(calls) and list(table.columns) == list(trace.Call._fields)


def test_trace_without_probes_has_no_calls(bank):
    assert trace.open(bank[0]).calls() == []
    assert trace.open(bank[0]).calls_to_pandas().empty


def test_tables_need_pandas(bank, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError):
        trace.open(bank[0]).to_pandas()
