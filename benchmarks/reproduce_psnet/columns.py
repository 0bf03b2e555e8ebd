"""What is derived from records of an experiment, and how tables and figures show it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.reproduce_psnet.paper import PAPER_SPEEDUP, share_of_paper

NOTHING = "–"


@dataclass(frozen=True)
class Figure:
    """Fields of records: ``x``, those that were ``measured`` and those of ``theory``."""

    x: str
    label: str
    measured: tuple[str, ...]
    theory: tuple[str, ...]
    unit: str = "s"


def derived(records: Sequence[dict]) -> list[dict]:
    """The records of one experiment, with what they say of each other."""
    return [
        r
        | _beside_psnet(r, records)
        | _hidden(r, records)
        | {"situation": f"s = {r['staleness']}, slow {_slow(r)}"}
        for r in records
    ]


def _beside_psnet(record: dict, records: Sequence[dict]) -> dict:
    """``share`` of computing in PSNet, and how many times what PSNet takes this one takes.

    None where PSNet was not measured with the same batch at the same rate.
    """
    same = ("model", "compute_s", "rate_bps", "staleness", "slow_every")
    ours = [
        other
        for other in records
        if other["network"] == "PSNet" and all(other[key] == record[key] for key in same)
    ]
    if len(ours) != 1:
        return {"share": None, "times": None, "times_theory": None, "paper": None}
    share = record["compute_s"] / ours[0]["bct_max_s"]
    paper = PAPER_SPEEDUP[record["model"]]
    is_papers = record is not ours[0] and abs(share - share_of_paper(paper)) < 1e-6
    return {
        "share": share,
        "times": _whole_s(record) / _whole_s(ours[0]),
        "times_theory": record["bct_max_s"] / ours[0]["bct_max_s"],
        "paper": paper if is_papers else None,
    }


def _whole_s(record: dict) -> float:
    return record["push_s"] + record["pull_s"] if record["apart"] else record["bct_s"]


def _hidden(record: dict, records: Sequence[dict]) -> dict:
    """``loss_s``: what slow steps add to a batch at the same staleness; ``hidden``: the share of
    what they add when all are synchronous that is not there."""
    if not record["slow_every"]:
        return {"loss_s": None, "hidden": None}

    def loss_s(staleness: int) -> float:
        batch_s = {r["slow_every"]: r["bct_s"] for r in records if r["staleness"] == staleness}
        return float(batch_s[record["slow_every"]] - batch_s[0])

    synchronous_s = loss_s(0)
    found_s = loss_s(record["staleness"])
    return {"loss_s": found_s, "hidden": 1 - found_s / synchronous_s}


def _milliseconds(key: str) -> Callable[[dict], str]:
    return lambda r: NOTHING if r[key] is None else f"{r[key] * 1000:.0f} ms"


def _times(key: str) -> Callable[[dict], str]:
    return lambda r: NOTHING if r[key] is None else f"{r[key]:.2f}×"


def _percent(key: str) -> Callable[[dict], str]:
    return lambda r: NOTHING if r[key] is None else f"{r[key]:.0%}"


def _plain(key: str) -> Callable[[dict], str]:
    return lambda r: f"{r[key]}"


def _slow(r: dict) -> str:
    return f"every {r['slow_every']}th step" if r["slow_every"] else "never"


def _between(r: dict) -> str:
    """0 %: all overlaps; 100 %: nothing does."""
    return f"{(r['bct_s'] - r['bct_min_s']) / (r['bct_max_s'] - r['bct_min_s']):.0%}"


COLUMNS: dict[str, Callable[[dict], str]] = {
    "model": _plain("model"),
    "network": _plain("network"),
    "placement": _plain("placement"),
    "NICs": _plain("nics"),
    "K": lambda r: f"{r['k']:g}",
    "B_w": lambda r: f"{r['rate_bps'] / 1e6:g} Mb/s",
    "computing": _percent("share"),
    "theory": _milliseconds("transfer_theory_s"),
    "push": _milliseconds("push_s"),
    "pull": _milliseconds("pull_s"),
    "push / theory": lambda r: f"{r['push_s'] / r['transfer_theory_s']:.3f}",
    "pull / theory": lambda r: f"{r['pull_s'] / r['transfer_theory_s']:.3f}",
    "BCT": _milliseconds("bct_s"),
    "longest step": lambda r: f"{max(r['steps_s']) * 1000:.0f} ms",
    "BCT_min": _milliseconds("bct_min_s"),
    "BCT_max": _milliseconds("bct_max_s"),
    "BCT / BCT_max": lambda r: f"{r['bct_s'] / r['bct_max_s']:.3f}",
    "between": _between,
    "C": lambda r: NOTHING if r["flows"] is None else f"{r['flows']:.1f}",
    "BCT_max with that C": _milliseconds("bct_max_routed_s"),
    "times PSNet": _times("times"),
    "in theory": _times("times_theory"),
    "paper": _times("paper"),
    "staleness": _plain("staleness"),
    "slow": _slow,
    "loss": _milliseconds("loss_s"),
    "hidden": _percent("hidden"),
    "wrong": _plain("wrong"),
}
