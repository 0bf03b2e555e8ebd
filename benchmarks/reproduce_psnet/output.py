"""Records as tables in the page, and as pictures."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.reproduce_psnet.columns import COLUMNS, Figure, derived
from benchmarks.reproduce_psnet.experiments import EXPERIMENTS, Experiment

SERIES = ("PSNet", "fat tree")


def tables(records: Sequence[dict]) -> dict[str, str]:
    """By experiment that was measured, its table in Markdown."""
    return {name: _table(EXPERIMENTS[name], found) for name, found in _by_experiment(records)}


def write_tables(page: Path, records: Sequence[dict]) -> None:
    """Puts each table between its marks, ``<!-- psnet: name -->`` and ``<!-- end -->``.

    Raises ValueError where the page has no marks for a table: what was measured would be lost.
    """
    text = page.read_text()
    for name, table in tables(records).items():
        pattern = rf"(<!-- psnet: {name} -->\n).*?(<!-- end -->)"
        text, found = re.subn(pattern, rf"\g<1>\n{table}\n\n\g<2>", text, flags=re.DOTALL)
        if found != 1:
            raise ValueError(f"{page} has {found} places for the table {name!r}: expected 1")
    page.write_text(text)


def draw(records: Sequence[dict], folder: Path) -> Iterator[Path]:
    """Writes a PNG per experiment. Needs matplotlib."""
    for name, found in _by_experiment(records):
        yield _draw(EXPERIMENTS[name], found, folder / f"reproduction-psnet-{name}.png")


def _by_experiment(records: Sequence[dict]) -> Iterator[tuple[str, list[dict]]]:
    for name in EXPERIMENTS:
        found = [r for r in records if r["experiment"] == name and "environment" not in r]
        if found:
            yield name, _in_order(derived(found))


def _in_order(records: list[dict]) -> list[dict]:
    """Model by model, and where computing varies batch by batch."""
    return sorted(records, key=lambda r: (-r["model"].startswith("vgg"), r["share"] or 0))


def _table(experiment: Experiment, records: Sequence[dict]) -> str:
    header = f"| {' | '.join(experiment.columns)} |"
    lines = [header, "|---" * len(experiment.columns) + "|"]
    for record in records:
        cells = [COLUMNS[column](record) for column in experiment.columns]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _draw(experiment: Experiment, records: Sequence[dict], path: Path) -> Path:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    models = list(dict.fromkeys(record["model"] for record in records))
    size = (5 * len(models), 3.8)
    figure, rows = pyplot.subplots(
        1, len(models), figsize=size, layout="constrained", squeeze=False
    )
    for axes, model in zip(rows[0], models, strict=True):
        _draw_model(axes, experiment.figure, [r for r in records if r["model"] == model])
        axes.set_title(model)
    handles, labels = rows[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize="small")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


def _draw_model(axes, figure: Figure, records: Sequence[dict]) -> None:
    """Lines where x is a quantity, with theory dashed; else points, with theory as crosses."""
    is_quantity = all(isinstance(record[figure.x], int | float) for record in records)
    groups = _series(records, figure.x) if is_quantity else {"": records}
    for series, found in groups.items():
        xs = [record[figure.x] for record in found]
        for key in figure.measured:
            label = f"{series} {_name(key)}".strip()
            style = "o-" if is_quantity else "o"
            axes.plot(xs, [record[key] for record in found], style, label=label)
        for key in figure.theory:
            label = f"{series} {_name(key)}".strip()
            style = "--" if is_quantity else "x"
            axes.plot(xs, [record[key] for record in found], style, label=label)
    papers = [r for r in records if r["paper"]]
    if papers and "times" in figure.measured:
        xs, ys = [r["share"] for r in papers], [r["paper"] for r in papers]
        axes.plot(xs, ys, "k*", markersize=12, label="paper")
    if is_quantity:
        axes.set_xticks(sorted({record[figure.x] for record in records}))
        axes.xaxis.set_major_formatter("{x:.3g}")
    else:
        axes.tick_params(axis="x", rotation=20)
    axes.set(xlabel=figure.label, ylabel=figure.unit)
    axes.set_ylim(bottom=0)


def _series(records: Sequence[dict], x: str) -> dict[str, list[dict]]:
    """By kind of network, and where one has several rates beside each other by rate."""
    series = {}
    for kind in SERIES:
        of_kind = [r for r in records if r["network"].startswith(kind)]
        rates = sorted({r["rate_bps"] for r in of_kind})
        if len(rates) < 2 or x == "rate_bps":
            series[kind] = of_kind
            continue
        for rate in rates:
            series[f"{kind}, {rate / 1e6:g} Mb/s"] = [r for r in of_kind if r["rate_bps"] == rate]
    return {name: found for name, found in series.items() if found}


def _name(key: str) -> str:
    """A field's name in a legend."""
    names = {
        "transfer_theory_s": "theory",
        "bct_s": "measured",
        "bct_min_s": "BCT_min",
        "bct_max_s": "BCT_max",
        "bct_max_routed_s": "BCT_max with C as routed",
        "times": "measured",
        "times_theory": "theory",
    }
    return names.get(key, key.removesuffix("_s"))
