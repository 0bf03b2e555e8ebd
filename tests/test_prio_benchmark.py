"""The benchmarks of tickets: one quick run."""

import json

import pytest

from benchmarks.prio.settings import DEMO, TINY, TRANSFORMER
from benchmarks.prio.steps_page import drawn_model
from benchmarks.prio.switch_page import table as switch_table
from dmlcomm.prio.switch import kernel
from helpers import run_ranks

W = (1, 2, 3)  # workers


def _quick_run(run_python, tmp_path, *experiments):
    file = tmp_path / "result.json"
    arguments = ("--quick", "--only", ",".join(experiments), "--json", str(file))
    run_python("-m", "benchmarks.prio", *arguments)
    environment, *rows = map(json.loads, file.read_text().splitlines())
    assert environment["environment"]["cores"] >= 1
    assert {row["experiment"] for row in rows} == set(experiments)
    assert all(row["wrong"] == 0 for row in rows)
    return rows


@pytest.mark.alone
@pytest.mark.usefixtures("lab_is_possible")
def test_quick_run_measures_steps_with_right_weights(tmp_path, run_python):
    rows = _quick_run(run_python, tmp_path, "steps")
    # A burst of the shaper goes at once; computing alone takes most of a bound.
    assert all(row["ratio"] > 0.8 for row in rows if row["ratio"])


@pytest.mark.usefixtures("lab_is_possible")
def test_quick_run_measures_urgent_operations_and_automatic_schedules(tmp_path, run_python):
    # The bounds are times of single operations, and say nothing on a loaded machine.
    _quick_run(run_python, tmp_path, "preempt", "tickets", "server", "auto")


@pytest.mark.usefixtures("lab_is_possible")
def test_page_of_steps_has_a_table_and_who_was_on_the_wire_when(tmp_path, run_python):
    page = tmp_path / "page.md"
    page.write_text("Before\n<!-- steps -->\nold\n<!-- end -->\nbehind\n")
    arguments = ("--quick", "--folder", str(tmp_path), "--page", str(page))
    run_python("-m", "benchmarks.prio.steps_page", *arguments)
    record = json.loads((tmp_path / "reproduction-steps.json").read_text())
    assert record["wrong"] == 0
    for name in ("ddp", "cross", "dear"):
        # Two steps, in each of which a host of two sends its half megabyte.
        line = record["timelines"][name]
        assert sum(num_bytes for _, _, num_bytes in line["wire"]) > 0.5e6
        assert sum(is_forward for is_forward, _, _ in line["computed"]) == 2 * 19
    tickets = {ticket for _, ticket, _ in record["timelines"]["cross"]["wire"]}
    assert {0, 1} < tickets
    text = page.read_text()
    assert "old" not in text
    assert "| flat:2,1, 200mbit | vgg19 |" in text
    assert (tmp_path / "reproduction-steps.png").stat().st_size > 0


def _compared(rank, n, model):
    from benchmarks.prio.steps_rank import Contestant, Options, wrong_weights

    names = ("ddp", "hook", "plain", "cross", "dear")
    options = Options(model, names, 1.0, 0.0, warm_up=1, trials=1, rounds=1, steps=1)
    contestants = {name: Contestant(name, options) for name in names}
    for contestant in contestants.values():
        for _ in range(3):
            contestant.step()
        contestant.flush()
    right = wrong_weights(contestants)
    # One that does not communicate, and one that misses a step.
    apart = Contestant("alone", options)
    apart.step()
    ahead = Contestant("cross", options)
    for _ in range(4):
        ahead.step()
    ahead.flush()
    ahead.steps += 1
    ddp = Contestant("ddp", options)
    return [right, wrong_weights({"ddp": ddp, "x": apart}), wrong_weights({"ddp": ddp, "x": ahead})]


@pytest.mark.parametrize(("model", "n"), [(TINY, 2), (TRANSFORMER, 2), (DEMO, 3)])
def test_weights_of_real_models_are_compared_with_those_of_ddp(model, n):
    for right, apart, ahead in run_ranks(_compared, n, model, deadline_s=150):
        assert right == 0
        assert apart > 0
        assert ahead > 0


def test_only_replays_are_drawn():
    assert drawn_model(("demo", "vgg19", "resnet50")) == "resnet50"
    assert drawn_model(("demo", "vgg19", "vgg16")) == "vgg19"
    assert drawn_model(("demo", "transformer")) is None


def test_the_papers_table_has_every_worker_and_layer():
    records = [
        {
            "contestant": name,
            "median_ms": [[factor * (10 * worker + layer) for layer in range(3)] for worker in W],
            "mean_ms": [factor * (20 + layer) for layer in range(3)],
        }
        for factor, name in enumerate(("connections", "plain", "host", "network", "both"), 1)
    ]
    lines = switch_table(records).splitlines()
    width = lines[0].count("|")
    assert all(line.count("|") == width for line in lines)
    assert lines[4] == (
        "| no tickets (`connections`) | 10 / 20 / 30 | 20 | 11 / 21 / 31 | 21 | 12 / 22 / 32 | 22 |"
    )
    both = "50 / 100 / 150 (+400% / +400% / +400%) | 100 (+400%) | 55 / 105 / 155"
    assert lines[-1].startswith(f"| both (`both`) | {both}")


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


@pytest.mark.skipif(kernel.why_not_permitted() is not None, reason="no eBPF here")
@pytest.mark.usefixtures("lab_is_possible")
def test_classifiers_of_a_switch_are_compared(tmp_path, run_python):
    file = tmp_path / "result.json"
    run_python("-m", "benchmarks.prio.classifiers", "--quick", "--json", str(file))
    _, without, ebpf, u32 = map(json.loads, file.read_text().splitlines())
    assert [r["contestant"] for r in (without, ebpf, u32)] == ["none", "ebpf", "u32"]
    assert "reaction_us" not in without
    assert all(record["send_ns"] > 0 and record["reaction_us"] > 0 for record in (ebpf, u32))
