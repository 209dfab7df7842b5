"""`corebeat.run` and `corebeat.tune`, with the program of the wheel."""

import dataclasses
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import corebeat
from corebeat import _program, _run


def unknown_fields(kind, value, path="report"):
    """The fields of JSON that the dataclass lacks."""
    if isinstance(value, list):
        return [
            field
            for item in value
            for field in unknown_fields(kind, item, path)
        ]
    if value is None or not dataclasses.is_dataclass(kind):
        return []
    if hasattr(kind, "_of_json"):
        return []
    hints = _program.typing.get_type_hints(kind)
    found = [f"{path}.{name}" for name in value if name not in hints]
    for name in value:
        if name in hints:
            arguments = _program.typing.get_args(hints[name])
            inner = next((a for a in arguments if dataclasses.is_dataclass(a)), hints[name])
            found += unknown_fields(inner, value[name], f"{path}.{name}")
    return found


def test_program_of_the_wheel_is_used():
    program = Path(corebeat.find_program())
    assert program.parent == Path(sysconfig.get_path("scripts"))
    shown = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout.startswith("corebeat ")


def test_wheel_has_its_licenses_and_a_description():
    package = importlib.metadata.distribution("corebeat")
    assert {"LICENSE-MIT", "LICENSE-APACHE"} <= {Path(file).name for file in package.files}
    assert "# Corebeat for Python" in package.read_text("METADATA")


def test_missing_program_is_one_line(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    with pytest.raises(corebeat.Error, match="install the wheel") as raised:
        corebeat.run(["true"])
    assert "\n" not in str(raised.value)


def test_report_of_a_run(tmp_path):
    (tmp_path / "in").write_text("x")
    code = "print(open('in').read()); raise SystemExit(3)"
    with open(tmp_path / "out", "w") as out:
        report = corebeat.run([sys.executable, "-c", code], policy="none", cwd=tmp_path, stdout=out)
    assert (tmp_path / "out").read_text() == "x\n"
    assert report.ended == _run.Ended("exit", 3)
    assert (report.policy, report.slice_ms) == ("none", None)
    assert report.command[0] == sys.executable and report.programs[0].command == report.command
    assert report.wall_s > 0 and report.cpu_user_s > 0 and report.threads_seen >= 0
    assert isinstance(report.shares, _run.Shares) and report.cpus >= 1


def test_signal_of_a_program_is_its_end():
    report = corebeat.run(["sh", "-c", "kill -TERM $$"], policy="none")
    assert report.ended == _run.Ended("signal", 15)


def test_several_programs_have_entries_and_separators_stay_arguments():
    report = corebeat.run([["echo", "--"], ["true"]], policy="none", stdout=subprocess.DEVNULL)
    assert [program.command for program in report.programs] == [["echo", "--"], ["true"]]
    assert report.command == ["echo", "--", "--", "true"]


def test_dataclasses_have_all_fields_of_the_report(tmp_path):
    file = tmp_path / "report.json"
    arguments = ["run", "--report", "json", "--report-file", str(file), "--", "true"]
    subprocess.run([corebeat.find_program(), *arguments], check=True)
    assert unknown_fields(corebeat.Report, json.loads(file.read_text())) == []


@pytest.mark.parametrize("command", ["true", [], [[]], [["true"], []]])
def test_invalid_command_is_a_value_error(command):
    with pytest.raises(ValueError, match="the command is"):
        corebeat.run(command)
    with pytest.raises(ValueError, match="the command is"):
        corebeat.tune(command)


def test_command_is_no_text_for_a_shell():
    for call in [corebeat.run, corebeat.tune]:
        with pytest.raises(ValueError, match="no text for a shell"):
            call(["true"], shell=True)


def test_command_may_be_bytes(tmp_path):
    (tmp_path / "a").write_text("")
    report = corebeat.run([b"test", b"-f", os.fsencode(tmp_path / "a")], policy="none")
    assert report.ended == _run.Ended("exit", 0)
    pair = corebeat.run([[b"true"], ["false"]], policy="none")
    assert [program.ended.number for program in pair.programs] == [0, 1]


def test_failure_of_corebeat_is_an_error():
    with pytest.raises(corebeat.Error, match="exit status 2 and without a report"):
        corebeat.run(["true"], policy="no-such-policy", stderr=subprocess.DEVNULL)
    with pytest.raises(corebeat.Error, match="exit status 2"):
        corebeat.tune(["true"], stderr=subprocess.DEVNULL)  # takes no thread count
    with pytest.raises(ValueError, match="leave stdout out"):
        corebeat.tune(["true", "{threads}"], stdout=subprocess.DEVNULL)


def test_program_that_does_not_exist_is_an_error():
    with pytest.raises(corebeat.Error, match="exit status 127"):
        corebeat.run(["/no/such/program"], stderr=subprocess.DEVNULL)


@pytest.fixture
def interrupted(monkeypatch):
    """The first wait for a program ends by `KeyboardInterrupt`, after the program's first line."""
    communicate = subprocess.Popen.communicate
    interrupts = [KeyboardInterrupt]

    def wait(self, *arguments):
        if not interrupts:
            return communicate(self, *arguments)
        if self.stdout:
            self.stdout.readline()
        raise interrupts.pop()

    monkeypatch.setattr(subprocess.Popen, "communicate", wait)
    return interrupts


def test_interrupted_run_ends_its_program(interrupted):
    with pytest.raises(KeyboardInterrupt):
        corebeat.run(["sleep", "1000"], policy="none")
    assert interrupted == []


def test_interrupted_program_may_fill_its_pipe(interrupted, monkeypatch):
    code = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print("ready", flush=True)
signal.sigwait([signal.SIGTERM])
print("x" * 1_000_000)
"""
    monkeypatch.setattr(_program, "find_program", lambda: sys.executable)
    with pytest.raises(KeyboardInterrupt):
        _program.execute(["-c", code], stdout=subprocess.PIPE)
    assert interrupted == []


def test_output_is_not_discarded():
    for pipe in [{"stdout": subprocess.PIPE}, {"stderr": subprocess.PIPE}]:
        with pytest.raises(ValueError, match="pass a file"):
            corebeat.run(["true"], **pipe)
    for wrong in [{"stderr": subprocess.PIPE}, {"stderr": subprocess.STDOUT}]:
        with pytest.raises(ValueError, match="a file"):
            corebeat.tune(["true", "{threads}"], **wrong)
    for call in [corebeat.run, corebeat.tune]:
        for wrong in [{"text": True}, {"encoding": "utf-8"}]:
            with pytest.raises(ValueError, match="does not return output.* leave it out"):
                call(["true", "{threads}"], **wrong)


def test_lacking_field_names_the_remedy():
    with pytest.raises(corebeat.Error, match="lacks 'policy': use the program and the package"):
        _program.build(_run.Inaction, {"why": "x"})


@pytest.fixture(scope="module")
def tuned():
    arguments = ["tune", "--json", "--search-only", "--max", "2", "--window", "20"]
    program = ["--", "sh", "-c", "sleep 0.1", "{threads}"]
    found = subprocess.run(
        [corebeat.find_program(), *arguments, *program], capture_output=True, check=True
    )
    return json.loads(found.stdout)


def test_dataclasses_have_all_fields_of_a_search(tuned):
    assert unknown_fields(corebeat.Tuned, tuned) == []


def test_tune_returns_the_search_and_the_run():
    tuned = corebeat.tune(
        [corebeat.find_program(), "workload", "swaption", "-s", "0.02", "-t", "{threads}"],
        max_threads=2,
        min_threads=1,
        step=1,
        policy="none",
        options=["--window", "20"],
        stderr=subprocess.DEVNULL,
    )
    assert tuned.rows[0].threads == 1 and tuned.reason
    assert tuned.best in (1, 2) and tuned.run.ended == _run.Ended("exit", 0)
    (best,) = (row for row in tuned.rows if row.threads == tuned.best)
    assert isinstance(best.trial.ran, _run.Profile) and best.trial.failed is None
    table = tuned.to_pandas()
    assert list(table["threads"]) == [row.threads for row in tuned.rows]
    assert {"cpu_util", "failed"} <= set(table.columns) and "trial" not in table.columns


def test_report_as_a_table():
    report = corebeat.run([["true"], ["false"]], policy="none")
    table = report.to_pandas()
    assert list(table["command"]) == ["true", "false"]
    assert list(table["ended_number"]) == [0, 1]
    assert {"wall_s", "shares_user", "counters_migrations"} <= set(table.columns)


def test_table_without_pandas_is_an_import_error(monkeypatch):
    report = corebeat.run(["true"], policy="none")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pandas"):
        report.to_pandas()
