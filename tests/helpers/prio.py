"""A model, and its training with DDP and with `dmlcomm.DistributedOptimizer`, for comparison."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dmlcomm
from dmlcomm.prio.schedule_choice import STEPS as STEPS_OF_A_TURN
from dmlcomm.prio.schedule_choice import TURNS

GROUP_MB = 0.0005  # several groups
ONE_GROUP_MB = 25
DEFERRED = ("cross", "dear")
SCHEDULES = ("plain", *DEFERRED)
# Schedules and sizes of groups. The gradients of one plain group are not watched one by one.
KINDS = (*((schedule, GROUP_MB) for schedule in SCHEDULES), ("plain", ONE_GROUP_MB))
OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}
STEPS = 5
STEPS_OF_AUTO = 1 + len(TURNS) * STEPS_OF_A_TURN  # until it has decided


class _Model(nn.Module):
    """Reads parameters in an order of its own: registered last, read first; an attention that reads
    the weights of its inner module; a weight that two modules share; one that it reads itself; and
    a branch that is used when `branch` says so."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(8, 12)
        self.branch = nn.Linear(8, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.scale = nn.Parameter(torch.ones(8))
        self.first = nn.Embedding(12, 8)
        self.last.weight = self.first.weight

    def forward(self, tokens, branch=False):
        x = self.first(tokens)
        if branch:
            x = x + self.branch(x)
        x = x + self.attention(x, x, x, need_weights=False)[0] * self.scale
        return self.last(x)


def make_model():
    torch.manual_seed(1)
    return _Model()


def loss_of(model, rank, step, **options):
    generator = torch.Generator().manual_seed(100 * step + rank)
    tokens = torch.randint(0, 12, (4, 5), generator=generator, device="cpu")
    tokens = tokens.to(getattr(model, "module", model).scale.device)
    found = model(tokens, **options)
    return nn.functional.cross_entropy(found.flatten(0, 1), tokens.roll(1, 1).flatten())


def plain_step(model, optimizer, rank, step, **options):
    optimizer.zero_grad(set_to_none=step % 2 == 0)
    loss_of(model, rank, step, **options).backward()
    optimizer.step()


def trained_with_ddp(rank, make=OPTIMIZERS["SGD"], steps=STEPS, one_step=plain_step, prepare=None):
    """The weights that DDP gives. `prepare` makes what `one_step` is called with, too."""
    model = DistributedDataParallel(
        make_model(), bucket_cap_mb=GROUP_MB, find_unused_parameters=True
    )
    optimizer = make(model.parameters())
    more = prepare(optimizer) if prepare else ()
    for step in range(steps):
        one_step(model, optimizer, rank, step, *more)
    return model.module


def wrapped(model, make=OPTIMIZERS["SGD"], schedule="cross", **options):
    options = {"group_mb": GROUP_MB} | options
    optimizer = make(model.parameters())
    return dmlcomm.DistributedOptimizer(optimizer, model=model, schedule=schedule, **options)


def assert_equal_bits(model, expected, *what):
    for (name, ours), theirs in zip(as_they_are(model), as_they_are(expected), strict=True):
        assert torch.equal(ours, theirs[1]), (name, *what)


def as_they_are(model):
    """`named_parameters` of `model`, but no update is made for it."""
    return nn.Module.named_parameters(model)


def assert_as_ddp(rank, one_step=plain_step, theirs=None, prepare=None, make=OPTIMIZERS["SGD"]):
    """All schedules give DDP's bits. `theirs` is DDP's step, where it differs."""
    expected = trained_with_ddp(rank, make, one_step=theirs or one_step, prepare=prepare)
    for schedule, group_mb in KINDS:
        model = make_model()
        optimizer = wrapped(model, make, schedule, group_mb=group_mb)
        more = prepare(optimizer) if prepare else ()
        for step in range(STEPS):
            one_step(model, optimizer, rank, step, *more)
        optimizer.flush()
        assert_equal_bits(model, expected, schedule, group_mb)


def trained_with_auto(rank):
    """The schedule that is kept, after steps that give DDP's bits."""
    steps = STEPS_OF_AUTO + STEPS
    expected = trained_with_ddp(rank, steps=steps)
    model = make_model()
    optimizer = wrapped(model, schedule="auto")
    for step in range(steps):
        assert (optimizer.schedule == "auto") == (step < STEPS_OF_AUTO), step
        plain_step(model, optimizer, rank, step)
    optimizer.flush()
    assert_equal_bits(model, expected)
    return optimizer.schedule


def after_a_step(rank, schedule):
    """(model, optimizer) whose updates are not made yet, and a model with all of them."""
    pairs = []
    for _ in range(2):
        model = make_model()
        optimizer = wrapped(model, schedule=schedule)
        for step in range(3):
            plain_step(model, optimizer, rank, step)
        pairs.append((model, optimizer))
    pairs[1][1].flush()
    return *pairs[0], pairs[1][0]


def carry_out(rank, n, cases):
    for case in cases:
        case(rank)
