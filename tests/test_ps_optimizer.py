"""DistributedOptimizer, rules and the DDP hook, beside torch's own."""

import math

import numpy as np
import pytest
import torch
import torch.distributed as dist

from dmlcomm import errors
from dmlcomm.ps import (
    Client,
    DistributedOptimizer,
    HookState,
    Server,
    ServerOptions,
    from_torch,
    ps_hook,
)
from helpers import eventually, run_ranks
from helpers.parameter_servers import checkpoint_of, run_workers, servers

SHAPES = [(17, 5), (1001,), (3, 2, 2), ()]
STEPS = 5

# torch's optimizer, and its options.
OPTIMIZERS = [
    (torch.optim.SGD, {"lr": 0.1}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    (torch.optim.Adam, {"lr": 0.01, "betas": (0.8, 0.99), "weight_decay": 0.01}),
    (torch.optim.AdamW, {"lr": 0.01, "eps": 1e-6}),
    (torch.optim.Adagrad, {"lr": 0.1, "lr_decay": 0.01, "initial_accumulator_value": 0.1}),
]


def parameters(dtypes=(torch.float32, torch.float64)):
    own = torch.Generator().manual_seed(0)  # workers are threads, and share torch's
    return [
        torch.nn.Parameter(torch.randn(s, dtype=d, generator=own)) for d in dtypes for s in SHAPES
    ]


def gradient(worker, step, parameter, index):
    generator = torch.Generator().manual_seed(1000 * worker + 100 * step + index)
    return torch.randn(parameter.shape, dtype=parameter.dtype, generator=generator)


def set_gradients(params, step, workers):
    for index, parameter in enumerate(params):
        gradients = [gradient(w, step, parameter, index) for w in workers]
        parameter.grad = sum(gradients) / len(gradients)


def assert_close(actual, expected, steps=STEPS):
    for mine, theirs in zip(actual, expected, strict=True):
        # Each step rounds a few times, and gradients of workers add up in another order.
        tolerance = 16 * steps * torch.finfo(theirs.dtype).eps
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)


def trained_by_torch(kind, options, workers, schedule=None):
    params = parameters()
    optimizer = kind(params, **options)
    scheduler = schedule(optimizer) if schedule else None
    for step in range(STEPS):
        set_gradients(params, step, workers)
        optimizer.step()
        if scheduler:
            scheduler.step()
    return [p.detach() for p in params]


def trained_by_servers(kind, options, schedule=None):
    def train(client):
        params = parameters()
        optimizer = from_torch(kind(params, **options), client)
        scheduler = schedule(optimizer) if schedule else None
        for step in range(STEPS):
            set_gradients(params, step, [client.worker])
            optimizer.step()
            if scheduler:
                scheduler.step()
        return [p.detach() for p in params]

    return train


@pytest.mark.parametrize(("kind", "options"), OPTIMIZERS)
@pytest.mark.parametrize("num_servers", [1, 2])
def test_servers_compute_what_torch_computes(kind, options, num_servers):
    expected = trained_by_torch(kind, options, workers=[0, 1])
    with servers(num_servers, workers=2) as addresses:
        results = run_workers(trained_by_servers(kind, options), 2, addresses)
    assert_close(results[0], expected)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def halve(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)


def test_learning_rate_schedulers_work():
    options = {"lr": 0.1, "momentum": 0.9}
    expected = trained_by_torch(torch.optim.SGD, options, [0], halve)
    with servers() as addresses:
        train = trained_by_servers(torch.optim.SGD, options, halve)
        assert_close(run_workers(train, 1, addresses)[0], expected)


def groups_of(params):
    return [{"params": params[:3], "lr": 0.5}, {"params": params[3:], "weight_decay": 0.1}]


def test_parameter_groups_have_their_own_options():
    expected = parameters()
    reference = torch.optim.SGD(groups_of(expected), lr=0.1)
    with servers(2) as addresses, Client(addresses) as client:
        params = parameters()
        optimizer = from_torch(torch.optim.SGD(groups_of(params), lr=0.1), client)
        for step in range(STEPS):
            set_gradients(params, step, [0])
            set_gradients(expected, step, [0])
            optimizer.step()
            reference.step()
        assert_close([p.detach() for p in params], [p.detach() for p in expected])
        with pytest.raises(ValueError, match="no more parameter groups"):
            optimizer.add_param_group({"params": parameters()})


def test_optimizer_is_used_as_any_other():
    with servers() as addresses, Client(addresses) as client:
        net = torch.nn.Linear(4, 1)
        optimizer = DistributedOptimizer(net.parameters(), client, lr=0.05, momentum=0.5)
        inputs = torch.randn(64, 4)
        targets = inputs @ torch.tensor([[1.0], [-2.0], [3.0], [0.5]])

        def loss_of():
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(net(inputs), targets)
            loss.backward()
            return loss

        first = optimizer.step(loss_of).item()
        for _ in range(60):
            last = optimizer.step(loss_of).item()
        assert last < first / 100
        assert optimizer.state_dict()["param_groups"][0]["lr"] == 0.05
        optimizer.load_state_dict(optimizer.state_dict())


@pytest.mark.parametrize("lr", [-0.5, math.inf, -math.inf, math.nan])
def test_wrong_learning_rate_is_an_error_and_harms_nobody(lr):
    ones = np.ones((2, 1), np.float32)
    with servers() as addresses, Client(addresses) as client:
        client.init("w", 0 * ones, rule="sgd", lr=1.0)
        client.init("table", 0 * ones, rule="sgd", lr=1.0, tables=True)
        for call in (
            lambda: client.push("w", ones, lr=lr),
            lambda: client.push_async("w", ones, lr=lr),
            lambda: client.push_pull("w", ones, lr=lr),
            lambda: client.push_rows("table", [0, 1], ones, lr=lr),
        ):
            with pytest.raises(ValueError, match=f"learning rate {lr}: expected a finite number"):
                call()
        client.push("w", ones)
        client.clock()
        assert client.pull("w").tolist() == [[-1], [-1]]
        assert client.pull_rows("table", [0, 1]).tolist() == [[0], [0]]


@pytest.mark.parametrize("lr", [-0.5, math.inf, math.nan])
def test_wrong_learning_rate_of_a_group_is_an_error_before_any_is_pushed(lr):
    params = [torch.zeros(3, requires_grad=True) for _ in range(2)]
    with servers() as address, Client(address) as client:
        groups = [{"params": [p]} for p in params]
        optimizer = DistributedOptimizer(groups, client, lr=1.0)
        for p in params:
            p.grad = torch.ones(3)
        optimizer.param_groups[1]["lr"] = lr
        with pytest.raises(ValueError, match=f"learning rate {lr}"):
            optimizer.step()
        optimizer.param_groups[1]["lr"] = 0.5
        optimizer.step()
        assert [p.tolist() for p in params] == [[-1] * 3, [-0.5] * 3]


def test_parameter_without_gradient_stays():
    with servers() as addresses, Client(addresses) as client:
        params = parameters()
        before = [p.detach().clone() for p in params]
        optimizer = DistributedOptimizer(params, client, lr=0.1)
        params[0].grad = torch.ones_like(params[0])
        optimizer.step()
        assert not torch.equal(params[0], before[0])
        assert all(torch.equal(p, b) for p, b in zip(params[1:], before[1:], strict=True))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda p: torch.optim.RMSprop(p), "RMSprop: expected one of"),
        (lambda p: torch.optim.Adam(p, amsgrad=True), "amsgrad"),
        (lambda p: torch.optim.SGD(p, lr=0.1, maximize=True), "maximize"),
    ],
)
def test_what_servers_cannot_do_is_refused(make, reason):
    with pytest.raises(ValueError, match=reason):
        from_torch(make(parameters()), client=None)


def test_rows_of_an_embedding_learn_as_with_torch():
    """Sparse SGD of torch touches the rows that were looked up; duplicates add up."""
    rows, lr = [3, 0, 3, 9], 0.5
    torch.manual_seed(0)
    table = torch.nn.Embedding(10, 4, sparse=True)
    begin = table.weight.detach().clone()
    reference = torch.optim.SGD(table.parameters(), lr=lr)
    weight = torch.randn(4, 4)
    (table(torch.tensor(rows)) * weight).sum().backward()
    sparse = table.weight.grad
    reference.step()
    with servers(3) as addresses, Client(addresses) as client:
        client.init("embedding", begin.clone(), rule="sgd", lr=lr, tables=True)
        client.push_rows("embedding", sparse._indices()[0], sparse._values())
        client.clock()
        pulled = client.pull_rows("embedding", torch.arange(10))
    assert_close([pulled], [table.weight.detach()], steps=1)


def scaled_sign(weights, gradient, state, step):
    """Keeps how often it was called per range, so that state and step are tested, too."""
    state["calls"] = state.get("calls", 0) + 1
    assert state["calls"] == step
    weights -= 0.5 * step * np.sign(gradient)


def test_rule_of_the_user():
    with servers(2, rule=scaled_sign) as addresses, Client(addresses) as client:
        client.init("w", np.zeros(100_003, np.float32), rule="python")
        client.push_pull("w", np.full(100_003, 3.0, np.float32))
        weights = client.push_pull("w", np.full(100_003, -3.0, np.float32))
        assert set(weights.tolist()) == {0.5}


def with_momentum(weights, gradient, state, step):
    """SGD, lr 0.5, momentum 0.5; the second array is replaced, and not changed in place."""
    state["velocity"] *= 0.5
    state["velocity"] += gradient
    state["largest"] = np.maximum(state["largest"], np.abs(gradient))
    state["calls"] = state.get("calls", 0) + 1
    weights -= 0.5 * state["velocity"] + (state["largest"] if step == 3 else 0)


with_momentum.state_arrays = ("velocity", "largest")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_arrays_of_a_rule_of_the_user_are_in_checkpoints(tmp_path, dtype):
    options = {"rule": with_momentum, "checkpoint": tmp_path, "checkpoint_every": 1}
    count = 100_003

    def init(client):
        return client.init("w", np.zeros(count, dtype), rule="python")

    with servers(2, **options) as addresses, Client(addresses, worker=0) as client:
        init(client)
        client.push_pull("w", np.full(count, 4, dtype))
        assert set(client.push_pull("w", np.full(count, 2, dtype)).tolist()) == {-4}  # v = 4, 4
        for address in addresses.split(","):
            eventually(lambda a=address: checkpoint_of(a).get("w") == 2, "a checkpoint")
    with servers(2, **options) as addresses, Client(addresses, worker=0) as client:
        assert set(init(client).tolist()) == {-4}
        # v = 2 + 1; the largest gradient was 4.
        assert set(client.push_pull("w", np.ones(count, dtype)).tolist()) == {-4 - 1.5 - 4}


def test_checkpoint_of_a_rule_with_other_arrays_is_refused(tmp_path):
    options = {"checkpoint": tmp_path, "checkpoint_every": 1}
    with servers(rule=with_momentum, **options) as address, Client(address) as client:
        client.init("w", np.zeros(5, np.float32), rule="python")
        client.push_pull("w", np.ones(5, np.float32))
        eventually(lambda: checkpoint_of(address).get("w") == 1, "a checkpoint")
    with pytest.raises(errors.PsCheckpointError, match=r"3 arrays.*expected 1.*--rule") as refused:
        Server(ServerOptions(rule=raises, **options))
    assert str(next(tmp_path.rglob("*.ckpt"))) in str(refused.value)


def raises(weights, gradient, state, step):
    raise ArithmeticError("no such thing")


def test_rule_that_raises_is_an_error_with_its_reason():
    with servers(rule=raises) as addresses, Client(addresses, timeout_s=20) as client:
        client.init("w", np.zeros(5, np.float32), rule="python")
        with pytest.raises(errors.PsError, match="no such thing"):
            client.push_pull("w", np.ones(5, np.float32))


def raises_in_its_second_update(weights, gradient, state, step):
    if step == 2:
        raise ArithmeticError("no such thing")
    weights += gradient


def test_checkpoint_has_no_clock_whose_update_has_failed(tmp_path):
    options = {
        "rule": raises_in_its_second_update,
        "checkpoint": tmp_path,
        "checkpoint_every": 1,
    }
    zeros, ones = np.zeros(100_003, np.float32), np.ones(100_003, np.float32)
    with servers(**options) as address:
        with Client(address, timeout_s=20) as client:
            client.init("w", zeros, rule="python")
            client.push_pull("w", ones)
            with pytest.raises(errors.PsError, match="no such thing"):
                client.push_pull("w", ones)
        eventually(lambda: checkpoint_of(address).get("w") == 1, "a checkpoint")
    with servers(**options) as address, Client(address, worker=0) as client:
        assert set(client.init("w", zeros, rule="python").tolist()) == {1.0}


def _train_with_ddp(rank, world_size, addresses):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(10, 300), torch.nn.ReLU(), torch.nn.Linear(300, 3))
    reference = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.005)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(10, 300), torch.nn.ReLU(), torch.nn.Linear(300, 3))
    ddp = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.005)
    torch.manual_seed(100 + rank)
    differences = []
    with Client(addresses, worker=rank) as client:
        ddp.register_comm_hook(HookState(client), ps_hook)
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (reference, ddp)]
        for _ in range(4):
            inputs = torch.randn(8, 10)
            for model, optimizer in zip((reference, ddp), optimizers, strict=True):
                optimizer.zero_grad()
                model(inputs).square().mean().backward()
                optimizer.step()
            pairs = zip(reference.parameters(), ddp.parameters(), strict=True)
            differences.append(max((a - b).abs().max().item() for a, b in pairs))
    dist.barrier()
    return max(differences)


class Bucket:
    """What a hook gets of DDP."""

    def __init__(self, gradients):
        self.gradients = gradients

    def buffer(self):
        return self.gradients

    def index(self):
        return 0


@pytest.mark.parametrize(
    ("dtype", "wire"), [(torch.float32, ""), (torch.float32, "bf16"), (torch.float64, "bf16")]
)
def test_hook_does_not_average_without_a_worker(dtype, wire):
    buckets = [Bucket(torch.full((1001,), value, dtype=dtype)) for value in (1.0, 2.0)]
    with servers(2, workers=2) as address, Client(address, worker=0) as client:
        state = HookState(client, wire=wire)
        with Client(address, worker=1) as other:
            states = (state, HookState(other, wire=wire))
            futures = [ps_hook(*pair) for pair in zip(states, buckets, strict=True)]
            assert all(set(future.wait().tolist()) == {1.5} for future in futures)
        with pytest.raises(errors.PeerLostError, match="not all 2 workers"):
            ps_hook(state, buckets[0]).wait()


def test_hook_averages_as_ddp_does():
    with servers(2, workers=2) as addresses:
        differences = run_ranks(_train_with_ddp, 2, addresses, backend="gloo")
    assert max(differences) <= 16 * torch.finfo(torch.float32).eps
