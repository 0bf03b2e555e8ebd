"""The benchmarks of tickets: one quick run."""

import json

import pytest


@pytest.mark.usefixtures("lab_is_possible")
def test_quick_run_measures_steps_with_right_weights(tmp_path, run_python):
    file = tmp_path / "result.json"
    arguments = ("--quick", "--only", "preempt,steps,auto", "--json", str(file))
    run_python("-m", "benchmarks.prio", *arguments)
    environment, *rows = map(json.loads, file.read_text().splitlines())
    assert environment["environment"]["cores"] >= 1
    assert {row["experiment"] for row in rows} == {"preempt", "steps", "auto"}
    assert all(row["wrong"] == 0 for row in rows)
    # A burst of the shaper goes at once; computing alone takes most of a bound. The bounds of
    # "preempt" are times of single operations, and say nothing on a loaded machine.
    steps = [row for row in rows if row["experiment"] != "preempt"]
    assert all(row["ratio"] > 0.8 for row in steps if row["ratio"])


@pytest.mark.usefixtures("lab_is_possible")
def test_quick_run_measures_the_papers_layers_at_a_switch(tmp_path, run_python):
    file = tmp_path / "result.json"
    run_python("-m", "benchmarks.prio", "--quick", "--only", "switch", "--json", str(file))
    _, *rows = map(json.loads, file.read_text().splitlines())
    contestants = ("plain", "host", "connections", "network", "both")
    assert [row["case"] for row in rows] == [
        f"layer {layer}, {name}" for name in contestants for layer in range(3)
    ]
    assert all(row["wrong"] == 0 and row["seconds"] > 0 for row in rows)
