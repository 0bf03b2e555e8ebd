"""Hooks that send fewer bytes: equal bits on all ranks, and nothing of a gradient is lost.

And what a hook of DDP raises when a rank dies, also that of tickets.
"""

import gc
import signal
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dmlcomm
from dmlcomm.hooks import QuantizeState, bf16_hook, quantize_hook
from dmlcomm.prio import HookState, comm_hook
from helpers import Ranks, report, run_ranks

pytestmark = pytest.mark.xdist_group("hooks")

BUCKET_MB = 0.004  # several buckets; the first one is of DDP's own size until they are rebuilt
STEPS = 6
CODES = ("int8", "fp8")
# The largest rounding of a code, in parts of the largest number of its block: half a step of int8;
# of fp8 half of 32 of 448.
ROUNDING = {"int8": 0.5 / 127, "fp8": 16 / 448}


class _Constant(nn.Module):
    """Its gradients are what it is given."""

    def __init__(self, gradients, dtype=torch.float32):
        super().__init__()
        self.gradients = gradients
        self.weights = nn.ParameterList(torch.zeros(len(each), dtype=dtype) for each in gradients)

    def forward(self):
        pairs = zip(self.weights, self.gradients, strict=True)
        return sum((weight * gradient).sum() for weight, gradient in pairs)


def _model(rank, dtype=torch.float32):
    """With gradients that are shorter and longer than a block."""
    generator = torch.Generator().manual_seed(rank)
    sizes = (3, 1500, 700, 2048, 1)
    return _Constant([torch.randn(size, generator=generator) for size in sizes], dtype)


def _hooked(model, codes, **options):
    """DDP with the hook of that name, and the hook's state."""
    ddp = DistributedDataParallel(model, bucket_cap_mb=BUCKET_MB)
    if codes == "bf16":
        ddp.register_comm_hook(None, bf16_hook)
        return ddp, None
    if codes == "tickets":
        ddp.register_comm_hook(HookState(ddp), comm_hook)
        return ddp, None
    state = QuantizeState(ddp, codes, **options)
    ddp.register_comm_hook(state, quantize_hook)
    return ddp, state


def _step(ddp, *inputs):
    ddp.zero_grad()
    ddp(*inputs).backward()


def _mean_of_ranks(tensor):
    total = tensor.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def _has_equal_bits(tensors):
    flat = torch.cat([tensor.detach().flatten() for tensor in tensors])
    gathered = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, flat)
    return all(torch.equal(other, flat) for other in gathered)


def _averaged(rank, n, codes):
    for name in codes:
        model = _model(rank)
        ddp, _ = _hooked(model, name)
        for step in range(3):
            _step(ddp)
            gradients = [weight.grad for weight in model.weights]
            assert _has_equal_bits(gradients)
            for averaged, own in zip(gradients, model.gradients, strict=True):
                # A rounding of each rank's part, one of the average, and what was left before.
                most = 2 * 2 * (ROUNDING[name] if name != "bf16" else 2.0**-8) * own.new_tensor(4.5)
                assert (averaged - _mean_of_ranks(own)).abs().max() < most, (name, step)
    return True


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_all_ranks_get_the_same_bits_of_nearly_the_average(n):
    assert run_ranks(_averaged, n, (*CODES, "bf16"), deadline_s=150) == [True] * n


def _summed(ddp, steps):
    """The averages of so many steps, added up, by parameter."""
    total = [torch.zeros_like(weight) for weight in ddp.module.weights]
    for _ in range(steps):
        _step(ddp)
        for added, weight in zip(total, ddp.module.weights, strict=True):
            added += weight.grad
    return total


def _errors(state):
    """What all ranks keep of each parameter: what the averages lack."""
    kept = state.state_dict()
    n = dist.get_world_size()
    return [n * _mean_of_ranks(kept[f"weights.{i}"]) for i in range(len(kept))]


def _assert_nothing_is_lost(model, total, steps, begun, ended):
    for added, own, before, after in zip(total, model.gradients, begun, ended, strict=True):
        assert after.abs().max() > 1e-4  # or there is nothing to find
        expected = steps * _mean_of_ranks(own) + before
        torch.testing.assert_close(added + after, expected, rtol=0, atol=steps * 2.0**-20)


def _kept(rank, n, codes):
    model = _model(rank)
    ddp, state = _hooked(model, codes)
    total = _summed(ddp, STEPS)
    _assert_nothing_is_lost(model, total, STEPS, [0.0] * len(total), _errors(state))
    return True


@pytest.mark.parametrize("codes", CODES)
def test_errors_are_what_the_averages_lack_also_when_buckets_are_rebuilt(codes):
    assert run_ranks(_kept, 3, codes, deadline_s=150) == [True] * 3


def _with_small_numbers(rank, n, error_feedback):
    """The sum of steps' averages of numbers that are less than half a code of their neighbour."""
    gradient = torch.ones(256)
    gradient[0] = 1000
    ddp, _ = _hooked(_Constant([gradient]), "int8", error_feedback=error_feedback)
    (total,) = _summed(ddp, 40)
    return total[1:].tolist()


def test_small_numbers_come_later_and_not_at_all_without_error_feedback():
    for found in run_ranks(_with_small_numbers, 2, False):
        assert set(found) == {0.0}
    code = 1000 / 127
    for found in run_ranks(_with_small_numbers, 2, True):
        assert found == pytest.approx([40.0] * 255, abs=2 * code)


def _bytes_per_number(rank, n):
    """What a rank sends of each gradient, by hook."""
    found = {}
    for codes in ("bf16", *CODES):
        model = _Constant([torch.ones(100_000), torch.ones(100_000)])
        ddp, state = _hooked(model, codes)
        groups = [dist.group.WORLD] if state is None else [state.process_group, state.gathers]

        def sent(groups=groups):
            return sum(rail.bytes_sent for group in groups for rail in dmlcomm.rails(group))

        _step(ddp)
        before = sent()
        _step(ddp)
        found[codes] = (sent() - before) / sum(len(each) for each in model.gradients)
    return found


def test_hooks_send_as_many_bytes_as_they_say():
    for found in run_ranks(_bytes_per_number, 2, env={"DMLCOMM_TRANSPORT": "tcp"}):
        expected = {
            "bf16": 2,
            "int8": 1.016,
            "fp8": 1.016,
        }  # each of two ranks sends one half twice
        assert found == pytest.approx(expected, rel=0.02)


def _trained(rank, n, codes):
    """The losses of a small network, by the hook; None: without."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
    ddp = DistributedDataParallel(net, bucket_cap_mb=BUCKET_MB)
    if codes:
        ddp, state = _hooked(net, codes)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    truth, losses = torch.linspace(-0.3, 0.3, 16), []
    for step in range(60):
        x = torch.randn(64, 16, generator=torch.Generator().manual_seed(n * step + rank))
        loss = nn.functional.mse_loss(ddp(x).squeeze(1), x @ truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(_mean_of_ranks(loss.detach()).item())
    assert _has_equal_bits(net.parameters())
    if codes:  # nothing keeps the model alive
        freed = weakref.ref(ddp)
        del ddp, state
        gc.collect()
        assert freed() is None
    return losses


def _all_trained(rank, n):
    return {codes: _trained(rank, n, codes) for codes in (None, *CODES, "bf16")}


def test_training_goes_as_without_the_hook():
    for losses in run_ranks(_all_trained, 2, deadline_s=150):
        plain = losses.pop(None)
        assert plain[-1] < plain[0] / 10
        for found in losses.values():
            assert found[-1] == pytest.approx(plain[-1], rel=0.25)


def _restored(rank, n):
    model = _model(rank)
    ddp, state = _hooked(model, "int8")
    _summed(ddp, STEPS)
    begun, saved = _errors(state), state.state_dict()
    model = _model(rank)
    ddp, state = _hooked(model, "int8")
    state.load_state_dict(saved)
    _assert_nothing_is_lost(model, _summed(ddp, 2), 2, begun, _errors(state))
    with pytest.raises(ValueError, match=r"weights.0 has 1 elements .* the model has 3 elements"):
        state.load_state_dict({"weights.0": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"other has 1 elements .* no such parameter"):
        state.load_state_dict({"other": torch.zeros(1)})
    return True


def test_errors_go_on_from_a_checkpoint():
    assert run_ranks(_restored, 3, deadline_s=150) == [True] * 3


def _refused(rank, n):
    model = _model(rank, torch.float64)
    ddp, _ = _hooked(model, "int8")
    with pytest.raises(TypeError, match=r"expected float32 .* got torch.float64 on cpu in bucket"):
        _step(ddp)
    with pytest.raises(ValueError, match="expected one of fp8, int8, got 'int4'"):
        QuantizeState(ddp, "int4")
    return True


def test_what_cannot_be_quantized_is_refused():
    assert run_ranks(_refused, 2) == [True] * 2
    with pytest.raises(TypeError, match="expected DistributedDataParallel, got Linear"):
        QuantizeState(nn.Linear(1, 1))


def _until_error(rank, n, codes):
    ddp, _ = _hooked(_model(rank), codes)
    _step(ddp)
    report("running")
    try:
        while True:
            _step(ddp)
    except dmlcomm.CommError as error:
        return type(error).__name__, str(error)


@pytest.mark.parametrize("codes", ["int8", "bf16", "tickets"])
def test_survivors_name_the_dead_rank(codes):
    with Ranks(_until_error, 3, (codes,)) as ranks:
        ranks.wait_for("running")
        ranks.send_signal(1, signal.SIGKILL)
        for name, message in ranks.collect(only=[0, 2]):
            assert name == "PeerLostError"
            assert "rank 1" in message
