"""The benchmark of hooks: one quick run."""

import json

import pytest

from benchmarks.row import Row


def _quick_run(run_python, tmp_path, experiment):
    file = tmp_path / "result.json"
    run_python("-m", "benchmarks.hooks", "--quick", "--only", experiment, "--json", str(file))
    _, *rows = map(json.loads, file.read_text().splitlines())
    assert all(row["experiment"] == experiment and row["wrong"] == 0 for row in rows)
    return rows


@pytest.mark.alone
@pytest.mark.usefixtures("lab_is_possible")
def test_quick_run_measures_right_averages(tmp_path, run_python):
    rows = _quick_run(run_python, tmp_path, "communication")
    seconds = {row["case"].split()[-1]: row for row in rows}
    assert list(seconds) == ["none", "bf16", "int8", "fp8"]
    # A burst of the shaper goes at once.
    assert all(row["seconds"] > 0.7 * row["bound_s"] for row in seconds.values())


def test_quick_run_measures_accuracy(tmp_path, run_python):
    pytest.importorskip("sklearn", reason="the demo's data comes with scikit-learn")
    plain, int8 = _quick_run(run_python, tmp_path, "accuracy")
    assert plain["points_lost"] == 0
    assert abs(int8["points_lost"]) < 20  # one epoch


def test_lost_accuracy_misses_a_bar():
    row = Row("accuracy", "int8", 1.0, peer="DDP", points_lost=0.6, most_points_lost=0.5)
    assert row.missed() == ["accuracy, int8: 0.60 points less than DDP, at most 0.5"]
    assert not Row("accuracy", "int8", 1.0, points_lost=-0.6, most_points_lost=0.5).missed()
