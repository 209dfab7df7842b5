"""Simulations, with the program of the wheel."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

import corebeat
from corebeat import _toml, sim
from test_run import unknown_fields

SCENARIOS = sorted((Path(__file__).parents[3] / "act/corebeat-sim/scenarios").glob("*.toml"))
SMALL = {
    "machine": {"packages": 2, "cores": 2},
    "programs": [
        {
            "name": "solver",
            "teams": [
                {
                    "threads": 8,
                    "steps": [
                        {"repeat": {"times": 20, "steps": [
                            {"compute": {"us": 900, "jitter": 0.2}},
                            {"barrier": "all"},
                            "beat",
                        ]}},
                    ],
                }
            ],
        },
        {"name": "other", "teams": [{"threads": 1, "steps": [{"compute": {"us": 4000.5}}]}]},
    ],
}


def test_result_of_a_scenario():
    result = sim.run(SMALL)
    assert (result.cpus, result.seed, result.applied, result.sets) == (4, 1, [], [])
    assert result.column("name") == ["solver", "other"]
    assert result.column("threads") == [8, 1] and result.programs[0].beats == 160
    assert 0.03 < result.time_s < 0.1 and result.programs[0].end_s == result.time_s
    assert sim.run(SMALL) == result, "equal runs have equal results"
    assert sim.run(SMALL, seed=2).fingerprint != result.fingerprint


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib reads the scenarios of the project")
@pytest.mark.parametrize("file", SCENARIOS, ids=lambda file: file.stem)
def test_written_scenario_is_the_same(file):
    import tomllib

    scenario = tomllib.loads(file.read_text())
    assert tomllib.loads(_toml.dumps(scenario)) == scenario


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib reads the scenarios of the project")
def test_dictionary_runs_as_its_file():
    import tomllib

    (file,) = (file for file in SCENARIOS if file.stem == "two")
    arguments = [corebeat.find_program(), "sim", "run", file, "--json", "--policy", "auto"]
    shown = json.loads(subprocess.run(arguments, check=True, capture_output=True).stdout)
    result = sim.run(tomllib.loads(file.read_text()), policies="auto")
    assert result.fingerprint == shown["fingerprint"]
    assert unknown_fields(sim.Result, shown) == []


def test_values_are_written_as_toml():
    table = {
        "a": True,
        "b": [1, 2.5, math.inf, -math.inf],
        "odd key": 'q"\\\x7f\n\u20ac',
        "none": None,
        "t": {"x": (1, "y")},
    }
    assert _toml.dumps(table) == (
        "a = true\nb = [1, 2.5, inf, -inf]\n"
        '"odd key" = "q\\"\\\\\\u007f\\n\u20ac"\nt = { x = [1, "y"] }\n'
    )
    numpy = pytest.importorskip("numpy")
    array = numpy.array([1, 2])
    assert _toml.dumps({"a": array, "n": array[0]}) == "a = [1, 2]\nn = 1\n"
    with pytest.raises(TypeError, match=r"a\[1\]\.b is a set"):
        _toml.dumps({"a": [0, {"b": set()}]})
    with pytest.raises(TypeError, match="key 1"):
        _toml.dumps({1: 2})


def test_mistakes_are_errors_in_one_line():
    wrong = [{"name": "p", "teams": [{"threads": 1, "steps": [{"compute": {"us": -5}}]}]}]
    with pytest.raises(corebeat.Error, match=r"^scenario.toml: program 'p', team 1") as raised:
        sim.run({"machine": {}, "programs": wrong})
    assert "\n" not in str(raised.value)
    with pytest.raises(corebeat.Error, match="unknown field"):
        sim.run({"nonsense": 1})
    with pytest.raises(ValueError, match="invalid value 'nonsense' for '--policy") as raised:
        sim.run(SMALL, policies="nonsense")
    assert "\n" not in str(raised.value)
    with pytest.raises(ValueError, match="cannot read"):
        sim.run(SMALL, policies="adapt", model="/no/such/model")


def test_study_of_a_parameter():
    def scenario(threads):
        team = {"threads": threads, "steps": [{"compute": {"us": 8000, "split": True}}]}
        return {"machine": {"cores": 4}, "programs": [{"name": "p", "teams": [team]}]}

    times = [result.time_s for result in sim.run_all(map(scenario, [1, 2, 4]), seed=3)]
    assert times[0] > 1.8 * times[1] > 3 * times[2]
    with pytest.raises(corebeat.Error):
        sim.run_all([scenario(1), {"nonsense": 1}, scenario(2)])


def test_search_for_a_thread_count():
    team = {
        "threads": 8,
        "tunable": True,
        "steps": [{"repeat": {"times": 4000, "shared": True, "steps": [{"compute": {"us": 500}}]}}],
    }
    scenario = {"machine": {"cores": 4}, "programs": [{"name": "p", "teams": [team]}]}
    found = sim.run(scenario, policies=["reinforcer"]).reinforcer
    assert (found.program, found.before.threads) == ("p", 8)
    assert found.best == found.after.threads and found.rows[0].threads == 1


def test_programs_as_a_table():
    table = sim.run(SMALL).to_pandas()
    assert list(table["name"]) == ["solver", "other"] and "wait_s" in table.columns
