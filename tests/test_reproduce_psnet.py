"""The PSNet paper's experiments: what is run, theory, tables. Nothing is measured."""

from pathlib import Path

import pytest

from benchmarks.reproduce_psnet import measure
from benchmarks.reproduce_psnet.cases import Case
from benchmarks.reproduce_psnet.columns import derived
from benchmarks.reproduce_psnet.experiments import EXPERIMENTS, STRAGGLING
from benchmarks.reproduce_psnet.networks import Network, fat_tree, psnet
from benchmarks.reproduce_psnet.output import draw, tables, write_tables
from benchmarks.reproduce_psnet.paper import MODELS, PAPER_SPEEDUP, share_of_paper
from dmlcomm.lab import Lab, build
from dmlcomm.topology import graph as topology
from dmlcomm.topology.shape import Shape


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_network_can_be_built(name):
    for run in EXPERIMENTS[name].runs:
        graph = build(run.network.topology, [Shape(run.network.rate_bps)])
        assert len(topology.hosts_of_role(graph, "worker")) == run.network.workers
        assert len(topology.hosts_of_role(graph, "server")) == run.network.servers


def test_fat_tree_takes_three_times_as_long_as_psnet():
    ours, theirs = psnet(2, 2, 2), fat_tree(0, 2, 2, 2)
    # 12 MB to 2 servers at 25 MB/s: 6 MB at 12.5 MB/s each, and at 25/6 MB/s.
    assert ours.transfer_s(12e6) == pytest.approx(0.48)
    assert theirs.transfer_s(12e6) == pytest.approx(1.44)
    assert theirs.transfer_s(12e6, flows=9) == pytest.approx(2.16)
    assert fat_tree(0, 2, 2, 2, r=5).transfer_s(12e6) == pytest.approx(7.2)


@pytest.mark.parametrize(
    ("deployment", "crossing", "flows"),
    [
        ((0, 2, 2, 2), [(12, 0), (0, 4), (0, 4), (0, 4)], 6),
        # Each server is reached by the 5 workers that are not at its edge.
        ((1, 1, 2, 2), [(5, 1), (5, 1), (0, 4), (0, 4)], 3),
    ],
)
def test_flows_above_the_edges(deployment, crossing, flows):
    network = fat_tree(*deployment)
    assert network.crossing == crossing
    assert network.flows_above == flows


def test_a_fat_tree_without_its_servers_is_refused():
    with pytest.raises(ValueError, match="no workers are servers"):
        Network((2, 2, 2), over_subscription=1.0)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_share_of_computing_is_what_the_paper_implies(model):
    speedup = PAPER_SPEEDUP[model.name]
    share = share_of_paper(speedup)
    case = Case(model.name, model.scale)
    transfer_s = 2 * psnet(2, 2, 2).transfer_s(case.model_bytes)
    compute_s = transfer_s * share / (1 - share)
    ours = psnet(2, 2, 2).phases(case.model_bytes, compute_s).bct_max_s
    theirs = fat_tree(0, 2, 2, 2).phases(case.model_bytes, compute_s).bct_max_s
    assert theirs / ours == pytest.approx(speedup)
    assert compute_s / ours == pytest.approx(share)


@pytest.mark.parametrize("grouping", ["whole", "buckets"])
def test_a_batch_computes_as_long_as_its_case_says(grouping):
    case = Case("resnet50", 1 / 16, compute_s=0.7, grouping=grouping)
    assert case.batch.compute_s == pytest.approx(0.7)
    assert case.batch.buckets[-1].ready_s == pytest.approx(0.7)
    assert case.model_bytes == pytest.approx(25_557_032 * 4 / 16, rel=1e-5)
    assert (len(case.batch.buckets) == 1) == (grouping == "whole")


def test_every_worker_is_slow_in_turn():
    case = STRAGGLING[1]
    slow = [(s, w) for s in range(40) for w in range(4) if case.stretch(w, 4, s) != 1.0]
    assert slow == [(9, 1), (19, 2), (29, 3), (39, 0)]
    assert case.stretch(1, 4, 9) == 3.0
    assert STRAGGLING[0].stretch(1, 4, 9) == 1.0
    assert Case("resnet50", 1 / 16).stretch(0, 4, 9) == 0.0


def test_workers_are_moved_to_an_even_deployment(lab_is_possible):
    with Lab("psnet:1,5,2@1,4") as lab:
        measure.rebalance(lab)
        workers = topology.hosts_of_role(lab.graph(), "worker")
        tors = [topology.links_of(lab.graph(), worker)[0].b.node for worker in workers]
    assert sorted(tors) == ["tor1", "tor1", "tor2", "tor2", "tor2"]
    assert tors[:4] == ["tor1", "tor2", "tor2", "tor2"]


def test_a_phase_ends_with_its_last_worker():
    workers = [
        {"moments": [[10.0, 10.5, 11.0, 12.0], [20.0, 20.5, 21.0, 23.0]], "wrong": 0},
        {"moments": [[10.25, 10.5, 11.5, 12.5], [19.0, 20.5, 21.0, 22.0]], "wrong": 2},
    ]
    # From 10.0 to 12.5 and from there to 23.0.
    found = measure.merged(Case("resnet50", 1 / 16), workers)
    assert found == {"bct_s": 6.5, "steps_s": [2.5, 10.5], "wrong": 2}
    apart = Case("resnet50", 1 / 16, steps=2, apart=True)
    # Pushes take 0.5 s and 1.5 s, pulls 1.5 s and 2 s: medians.
    assert measure.merged(apart, workers) == {"push_s": 1.0, "pull_s": 1.75, "wrong": 2}


def record_of(name, network, case, **measured):
    return {"experiment": name} | measure.context(network, case, None) | measured


def records_of(name):
    """As if everything took 1.1 times what theory says, and slow steps more."""
    found = []
    for run in EXPERIMENTS[name].runs:
        for number, case in enumerate(run.cases):
            record = record_of(name, run.network_of(number), case, wrong=0)
            if case.apart:
                transfer_s = 1.1 * record["transfer_theory_s"]
                found.append(record | {"push_s": transfer_s, "pull_s": transfer_s})
            else:
                bct_s = record["bct_max_s"] * (1.2 if case.slow_every else 1.1)
                found.append(record | {"bct_s": bct_s, "steps_s": [bct_s]})
    return found


def test_ratios_are_those_to_psnet_with_the_same_batch():
    records = derived(records_of("computing"))
    theirs = [r for r in records if r["network"] != "PSNet"]
    assert len(theirs) == 8
    for record in theirs:
        # (3t + c)/(t + c) with c/(t + c) = share.
        expected = 3 - 2 * record["share"]
        assert record["times"] == pytest.approx(expected)
        assert record["times_theory"] == pytest.approx(expected)
    papers = [r for r in theirs if r["paper"]]
    assert sorted(r["paper"] for r in papers) == [1.89, 1.92]
    for record in papers:
        assert record["times_theory"] == pytest.approx(record["paper"])


def test_hidden_is_what_synchronous_workers_would_lose_more():
    batch_s = {(0, 0): 1.0, (0, 10): 1.4, (3, 0): 0.9, (3, 10): 1.0}
    records = [
        record_of("staleness", psnet(2, 2), case, bct_s=batch_s[case.staleness, case.slow_every])
        for case in STRAGGLING
    ]
    found = {(r["staleness"], r["slow_every"]): r for r in derived(records)}
    assert found[0, 10]["loss_s"] == pytest.approx(0.4)
    assert found[0, 10]["hidden"] == 0
    assert found[3, 10]["loss_s"] == pytest.approx(0.1)
    assert found[3, 10]["hidden"] == pytest.approx(0.75)
    assert found[3, 0]["hidden"] is None


def test_the_page_has_a_place_for_every_table():
    page = (Path(__file__).parents[1] / "docs/reproduction.md").read_text()
    marks = [line for line in page.splitlines() if line.startswith("<!-- psnet: ")]
    assert marks == [f"<!-- psnet: {name} -->" for name in EXPERIMENTS]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_tables_have_a_line_per_case(name):
    records = records_of(name)
    table = tables(records)[name].splitlines()
    assert len(table) == 2 + len(records)
    assert {line.count("|") for line in table} == {len(EXPERIMENTS[name].columns) + 1}


def test_tables_go_between_their_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- psnet: k -->\nold\n<!-- end -->\nafter\n")
    records = records_of("k")
    write_tables(page, records)
    expected = f"before\n<!-- psnet: k -->\n\n{tables(records)['k']}\n\n<!-- end -->\nafter\n"
    assert page.read_text() == expected
    with pytest.raises(ValueError, match="'nics': expected 1"):
        write_tables(page, records_of("nics"))


def test_every_experiment_has_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    found = list(draw([r for name in ("computing", "k") for r in records_of(name)], tmp_path))
    assert [path.name for path in found] == [
        "reproduction-psnet-computing.png",
        "reproduction-psnet-k.png",
    ]
    for path in found:
        assert path.read_bytes().startswith(b"\x89PNG")


def test_a_case_runs_on_the_parameter_server(lab_is_possible):
    cases = (Case("lenet5", 0.05, apart=True, steps=1), Case("lenet5", 0.05, 0.05, 1, "buckets"))
    found = list(measure.measure(measure.Run(psnet(1, 2), cases, rebalances=True)))
    assert [record["wrong"] for record in found] == [0, 0]
    assert found[0]["placement"] == "worker(1,2)"
    assert min(found[0]["push_s"], found[0]["pull_s"]) > 0
    assert found[1]["bct_s"] >= 0.05


def test_flows_above_the_edges_are_counted(lab_is_possible):
    (record,) = measure.measure(measure.Run(fat_tree(0, 2), (Case("lenet5", 0.05, steps=1),)))
    assert record["wrong"] == 0
    # Four flows over two uplinks, but for what else goes over them: at least half of them on one.
    assert 1.9 < record["flows"] <= 4
