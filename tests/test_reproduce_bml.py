"""The BML paper's experiments: theory, computing times, tables."""

import pytest

from benchmarks.reproduce_bml import theory
from benchmarks.reproduce_bml.output import markdown, reductions
from benchmarks.reproduce_bml.paper import LENET5, PAPER_RATE_BPS, VGG19, bml, p2p, ring
from benchmarks.training.models import MODELS
from benchmarks.training.plan import plan


def test_layers_are_synchronised_each_for_itself():
    model = MODELS["vgg19"]()
    iteration = plan(model, 8, 1e12, 1.0, "layers")
    assert [b.elements for b in iteration.buckets] == [x.parameters for x in model.layers[::-1]]


@pytest.mark.parametrize("training", [LENET5, VGG19], ids=lambda training: training.model)
def test_computing_time_is_what_the_paper_implies(training):
    flops = theory.flops_of_paper(training)
    saved = [theory.reduction(training.model, b, flops, PAPER_RATE_BPS) for b in training.batches]
    assert saved[-1] == pytest.approx(training.reductions[0], abs=1e-6)
    assert saved == sorted(saved, reverse=True)
    assert saved[0] < 0.5
    in_lab = theory.flops_in_lab(training)
    scaled = theory.reduction(
        training.model, training.batches[1], in_lab, PAPER_RATE_BPS / 200, training.scale
    )
    assert scaled == pytest.approx(saved[1], rel=1e-3)


def test_tables_put_measured_beside_theory_and_paper():
    def record(network, batch, jct_s):
        shared = {"record": "jct", "model": "lenet5", "flops": 7e10, "compute_s": 0.1}
        return shared | {"network": network.name, "batch": batch, "jct_s": jct_s}

    networks = ((bml(3, 2), 600), (p2p(9), 1000), (ring(9), 900))
    records = [record(n, batch, jct_s) for n, jct_s in networks for batch in LENET5.batches]
    assert reductions(records, LENET5)[0]["saved"][p2p(9).name] == pytest.approx(0.4)
    lines = markdown(records).splitlines()
    assert lines[2].startswith("| 128 | 100 s | 600 s | 1000 s | 900 s | 40.0% | 33.3% |")
    assert lines[2].endswith("56.4% |")
