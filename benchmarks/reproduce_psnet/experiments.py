"""The experiments: each is what is run, and the columns and the figure that show it."""

from dataclasses import dataclass

from benchmarks.reproduce_psnet.cases import Case
from benchmarks.reproduce_psnet.columns import COLUMNS, Figure
from benchmarks.reproduce_psnet.measure import Run
from benchmarks.reproduce_psnet.networks import RATE_BPS, Network, fat_tree, psnet
from benchmarks.reproduce_psnet.paper import MODELS, PAPER_SPEEDUP, Model, share_of_paper


@dataclass(frozen=True)
class Experiment:
    """``columns``: names in `COLUMNS`, in their order."""

    title: str
    runs: tuple[Run, ...]
    columns: tuple[str, ...]
    figure: Figure

    def __post_init__(self) -> None:
        unknown = set(self.columns) - COLUMNS.keys()
        if unknown:
            raise ValueError(f"{self.title}: no column is called {sorted(unknown)}")


OURS, THEIRS = psnet(2, 2, 2), fat_tree(0, 2, 2, 2)


def _batch(model: Model, share: float, steps: int = 3, grouping: str = "whole") -> Case:
    """A batch of which computing is that share in `OURS`, without overlap."""
    case = Case(model.name, model.scale, steps=steps, grouping=grouping)
    transfer_s = 2 * OURS.transfer_s(case.model_bytes)
    return Case(model.name, model.scale, transfer_s * share / (1 - share), steps, grouping)


def _apart(model: Model) -> Case:
    return Case(model.name, model.scale, apart=True, steps=5)


def _at(networks: list[Network], steps: int = 3, grouping: str = "whole") -> tuple[Run, ...]:
    """Batches of both models on every network, half of which is computing in `OURS`."""
    cases = tuple(_batch(model, SHARE, steps, grouping) for model in MODELS)
    return tuple(Run(network, cases) for network in networks)


def _shares(model: Model) -> list[float]:
    return sorted([0.0, 0.25, 0.75, share_of_paper(PAPER_SPEEDUP[model.name])])


SHARE = 0.5
RATES_BPS = (RATE_BPS // 2, RATE_BPS, 2 * RATE_BPS)

# 4 workers; every tenth step one of them, another each time, computes three times as long.
STRAGGLING = tuple(
    Case(MODELS[1].name, 1 / 60, 0.5, 40, staleness=staleness, slow_every=slow_every)
    for staleness in (0, 3)
    for slow_every in (0, 10)
)

EXPERIMENTS = {
    "nics": Experiment(
        "Push and pull against the NICs of a server",
        tuple(
            Run(psnet(*deployment, rate_bps=rate_bps), (_apart(MODELS[0]),))
            for rate_bps in RATES_BPS[:2]
            for deployment in ((6,), (3, 3), (2, 2, 2))
        ),
        ("B_w", "NICs", "theory", "push", "push / theory", "pull", "pull / theory", "wrong"),
        Figure("nics", "NICs of a server", ("push_s", "pull_s"), ("transfer_theory_s",)),
    ),
    "transfer": Experiment(
        "Push and pull in PSNet and in the fat tree",
        tuple(Run(network, tuple(_apart(model) for model in MODELS)) for network in (OURS, THEIRS)),
        ("model", "network", "C", "theory", "push", "pull", "times PSNet", "in theory", "wrong"),
        Figure("network", "", ("push_s", "pull_s"), ("transfer_theory_s",)),
    ),
    "computing": Experiment(
        "Batch completion time against the share of computing",
        tuple(
            Run(network, tuple(_batch(m, share) for m in MODELS for share in _shares(m)))
            for network in (OURS, THEIRS)
        ),
        (
            *("model", "computing", "network", "BCT", "BCT_max", "times PSNet", "in theory"),
            *("paper", "wrong"),
        ),
        Figure("share", "share of computing in PSNet", ("times",), ("times_theory",), "× PSNet"),
    ),
    "bandwidth": Experiment(
        "Batch completion time against the bandwidth of a worker",
        tuple(
            run
            for rate_bps in RATES_BPS
            for run in _at(
                [psnet(2, 2, 2, rate_bps=rate_bps), fat_tree(0, 2, 2, 2, rate_bps=rate_bps)],
                grouping="buckets",
            )
        ),
        ("model", "network", "B_w", "BCT_min", "BCT", "BCT_max", "between", "wrong"),
        Figure("rate_bps", "B_w (b/s)", ("bct_s",), ("bct_min_s", "bct_max_s")),
    ),
    "k": Experiment(
        "Batch completion time against K, worker(1,1,4)",
        _at([psnet(1, 1, 4, k=k) for k in (1, 2, 3)]),
        ("model", "K", "BCT", "BCT_max", "BCT / BCT_max", "wrong"),
        Figure("k", "K", ("bct_s",), ("bct_max_s",)),
    ),
    "deployment": Experiment(
        "Batch completion time against the deployment of workers in PSNet",
        _at([psnet(*d) for d in ((2, 2, 2), (1, 2, 3), (1, 1, 4), (0, 1, 5), (0, 0, 6))]),
        ("model", "placement", "BCT", "BCT_max", "BCT / BCT_max", "wrong"),
        Figure("placement", "", ("bct_s",), ("bct_max_s",)),
    ),
    "reconfiguration": Experiment(
        "Workers are moved to an even deployment while the job runs",
        tuple(Run(psnet(1, 1, 4), (_batch(m, SHARE),) * 2, rebalances=True) for m in MODELS),
        ("model", "placement", "BCT", "BCT_max", "BCT / BCT_max", "longest step", "wrong"),
        Figure("placement", "", ("bct_s",), ("bct_max_s",)),
    ),
    "placement": Experiment(
        "Batch completion time against placement in the fat tree, r = 4",
        _at(
            [
                fat_tree(*d, r=4, rate_bps=4 * RATE_BPS)
                for d in ((0, 2, 2, 2), (1, 1, 2, 2), (1, 2, 1, 2), (2, 2, 2, 0))
            ],
        ),
        ("model", "placement", "C", "BCT", "BCT_max", "BCT_max with that C", "wrong"),
        Figure("placement", "", ("bct_s",), ("bct_max_s", "bct_max_routed_s")),
    ),
    "oversubscription": Experiment(
        "Batch completion time in PSNet and in fat trees with over-subscription",
        _at([OURS, *(fat_tree(0, 2, 2, 2, r=r) for r in (1, 2, 5))], steps=2),
        (
            *("model", "network", "C", "BCT", "BCT_max", "BCT_max with that C", "times PSNet"),
            *("in theory", "wrong"),
        ),
        Figure("network", "", ("bct_s",), ("bct_max_s", "bct_max_routed_s")),
    ),
    "staleness": Experiment(
        "Workers that are slow now and then: synchronous, and with bounded staleness",
        (Run(psnet(2, 2), STRAGGLING),),
        ("staleness", "slow", "BCT", "loss", "hidden", "wrong"),
        Figure("situation", "", ("bct_s",), ()),
    ),
}
