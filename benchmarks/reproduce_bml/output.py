"""Records as Markdown tables, for docs/reproduction.md, and as pictures."""

from collections.abc import Iterator
from pathlib import Path

from benchmarks.reproduce_bml.paper import (
    HOSTS,
    LENET5,
    PAPER_RATE_BPS,
    RATE_BPS,
    VGG19,
    Training,
    bml,
    p2p,
)
from benchmarks.reproduce_bml.theory import reduction

TRAININGS = {training.model: training for training in (LENET5, VGG19)}
BML, P2P = bml(3, 2).name, p2p(HOSTS).name
RATIO_OF_RATES = PAPER_RATE_BPS / RATE_BPS


def markdown(records: list[dict]) -> str:
    """All tables that the records fill."""
    tables = [_gst_table(records)] if _of_kind(records, "gst") else []
    tables += [_jct_table(records, TRAININGS[model]) for model in _models(records)]
    return "\n\n".join(tables)


def draw(records: list[dict], folder: Path) -> Iterator[Path]:
    """Writes a PNG per figure. Needs matplotlib."""
    if found := _of_kind(records, "gst"):
        yield _draw_gst(found, folder / "reproduction-gst.png")
    for model in _models(records):
        yield _draw_jct(records, model, folder / f"reproduction-{model}.png")


def reductions(records: list[dict], training: Training) -> list[dict]:
    """By sub-minibatch: the share of the job completion time that BML saves, measured against both
    ways to use one NIC, and in theory."""
    found = []
    for batch in training.batches:
        jct = {r["network"]: r for r in _of_model(records, training.model) if r["batch"] == batch}
        saved = {name: 1 - jct[BML]["jct_s"] / record["jct_s"] for name, record in jct.items()}
        flops = jct[BML]["flops"] * RATIO_OF_RATES
        in_theory = reduction(training.model, batch, flops, PAPER_RATE_BPS)
        found.append({"batch": batch, "jct": jct, "saved": saved, "theory": in_theory})
    return found


def _of_kind(records: list[dict], kind: str) -> list[dict]:
    return [record for record in records if record.get("record") == kind]


def _models(records: list[dict]) -> list[str]:
    """Those with BML and the P2P parameter server."""
    measured = {(r["model"], r["network"]) for r in _of_kind(records, "jct")}
    return [model for model in TRAININGS if {(model, BML), (model, P2P)} <= measured]


def _of_model(records: list[dict], model: str) -> list[dict]:
    return [record for record in _of_kind(records, "jct") if record["model"] == model]


def _gst_table(records: list[dict]) -> str:
    lines = ["| hosts | network | switches | switch ports | theory | measured | ratio | wrong |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for r in _of_kind(records, "gst"):
        lines.append(
            f"| {r['hosts']} | {r['network']} | {r['switches']} | {r['switch_ports']} |"
            f" {r['theory_s'] * 1000:.0f} ms | {r['seconds'] * 1000:.0f} ms |"
            f" {r['seconds'] / r['theory_s']:.3f} | {r['wrong']} |"
        )
    return "\n".join(lines)


def _jct_table(records: list[dict], training: Training) -> str:
    names = list(dict.fromkeys(r["network"] for r in _of_model(records, training.model)))
    header = ["sub-minibatch", "computing", *names]
    header += [f"saved against {name}" for name in names if name != BML]
    header += ["theory", "paper"]
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    for row in reductions(records, training):
        cells = [str(row["batch"]), f"{row['jct'][BML]['compute_s'] * 1000:.0f} s"]
        cells += [f"{row['jct'][name]['jct_s']:.0f} s" for name in names]
        cells += [f"{row['saved'][name]:.1%}" for name in names if name != BML]
        cells += [f"{row['theory']:.1%}", _of_paper(training, row["batch"])]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _of_paper(training: Training, batch: int) -> str:
    """The paper gives both ends, and says that larger sub-minibatches save less."""
    least, most = training.reductions
    ends = {training.batches[0]: most, training.batches[-1]: least}
    return f"{ends[batch]:.1%}" if batch in ends else "between"


def _draw_gst(records: list[dict], path: Path) -> Path:
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    names = list(dict.fromkeys(f"BCube({n},{k})" for n, k in (r["bcube"] for r in records)))
    kinds = list(dict.fromkeys(r["network"].partition(",")[0] for r in records))
    width = 0.8 / len(kinds)
    for i, kind in enumerate(kinds):
        of_kind = [r for r in records if r["network"].startswith(kind)]
        positions = [x + (i - (len(kinds) - 1) / 2) * width for x in range(len(of_kind))]
        label = kind if kind == "BML" else f"{kind}, one NIC"
        axes.bar(positions, [r["seconds"] * 1000 for r in of_kind], 0.9 * width, label=label)
        theory = [r["theory_s"] * 1000 for r in of_kind]
        half = 0.45 * width
        axes.hlines(
            theory, [p - half for p in positions], [p + half for p in positions], color="black"
        )
    axes.plot([], [], color="black", label="theory")
    axes.set_xticks(range(len(names)), names)
    axes.set_ylabel("gradient synchronisation time (ms)")
    figure.legend(loc="outside lower center", ncols=4)
    return _save(pyplot, figure, path)


def _draw_jct(records: list[dict], model: str, path: Path) -> Path:
    pyplot = _pyplot()
    training = TRAININGS[model]
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    networks = list(dict.fromkeys(r["network"] for r in _of_model(records, model)))
    width = 0.8 / len(networks)
    for i, network in enumerate(networks):
        of_network = [r for r in _of_model(records, model) if r["network"] == network]
        positions = [x + (i - (len(networks) - 1) / 2) * width for x in range(len(of_network))]
        axes.bar(positions, [r["jct_s"] for r in of_network], 0.9 * width, label=network)
    for x, row in enumerate(reductions(records, training)):
        highest = max(record["jct_s"] for record in row["jct"].values())
        axes.annotate(f"-{row['saved'][P2P]:.0%}", (x, highest), ha="center", va="bottom")
    axes.set_xticks(range(len(training.batches)), map(str, training.batches))
    axes.set(xlabel="sub-minibatch", ylabel="time of 1000 iterations (s)", title=model)
    axes.margins(y=0.1)
    figure.legend(loc="outside lower center", ncols=3)
    return _save(pyplot, figure, path)


def _pyplot():
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _save(pyplot, figure, path: Path) -> Path:
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path
