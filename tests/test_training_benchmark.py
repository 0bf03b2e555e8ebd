"""The training benchmark: models, buckets, and one run in a lab."""

import json

import pytest

from benchmarks.training.models import MODELS
from benchmarks.training.plan import BUCKET_BYTES, FIRST_BUCKET_BYTES, plan


# Parameters and multiplications with a weight per image, as the papers and torchvision's
# documentation have them.
@pytest.mark.parametrize(
    ("name", "parameters", "giga_multiplications"),
    [
        ("lenet5", 3_274_634, 0.0139),
        ("vgg16", 138_357_544, 15.47),
        ("vgg19", 143_667_240, 19.63),
        ("resnet50", 25_557_032, 4.09),
    ],
)
def test_models_have_the_size_of_the_real_ones(name, parameters, giga_multiplications):
    model = MODELS[name]()
    assert model.parameters == parameters
    forward_flops = sum(layer.forward_flops for layer in model.layers)
    assert forward_flops / 2e9 == pytest.approx(giga_multiplications, rel=0.005)


@pytest.mark.parametrize("name", MODELS)
def test_buckets_hold_every_gradient_in_the_order_of_backward(name):
    model = MODELS[name]()
    iteration = plan(model, batch=32, flops=1e12, scale=1)
    assert sum(bucket.elements for bucket in iteration.buckets) == model.parameters
    ready = [bucket.ready_s for bucket in iteration.buckets]
    assert ready == sorted(ready)
    assert ready[-1] == pytest.approx(iteration.compute_s)
    assert iteration.compute_s == pytest.approx(3 * iteration.forward_s)
    sizes = [bucket.elements * 4 for bucket in iteration.buckets]
    limits = [FIRST_BUCKET_BYTES] + [BUCKET_BYTES] * (len(sizes) - 2)
    assert all(size >= limit for size, limit in zip(sizes, limits, strict=False))


def test_scale_is_that_of_gradients_and_of_computing():
    whole, half = (plan(MODELS["resnet50"](), 32, 1e12, scale) for scale in (1, 0.5))
    assert half.compute_s == pytest.approx(whole.compute_s / 2)
    assert half.gradient_bytes == pytest.approx(whole.gradient_bytes / 2, rel=1e-4)
    assert len(half.buckets) == len(whole.buckets)


@pytest.mark.usefixtures("lab_is_possible")
def test_training_is_replayed_with_right_sums_and_drawn(tmp_path, run_python):
    pytest.importorskip("matplotlib")
    arguments = ["--model", "lenet5", "--scale", "0.02", "--topology", "flat:2,1"]
    arguments += ["--iterations", "2", "--folder", str(tmp_path)]
    run_python("-m", "benchmarks.training", *arguments)
    lines = [json.loads(line) for line in (tmp_path / "training.json").read_text().splitlines()]
    results = lines[1:]
    assert [r["contestant"] for r in results] == [
        "dmlcomm, all NICs",
        "gloo, one NIC",
        "gloo, all NICs",
    ]
    for result in results:
        assert result["wrong"] == 0
        assert result["bct_s"] > 0.7 * result["bound_s"]  # a burst goes at once
        assert result["gradient_bytes"] == pytest.approx(0.02 * 3_274_634 * 4, rel=1e-3)
    assert (tmp_path / "lenet5.png").stat().st_size > 1000
