"""Results of the training benchmark as a table and as a picture."""

from pathlib import Path

from rich.table import Table


def table(results: list[dict]) -> Table:
    """One row per backend; the bound is that of all NICs."""
    first = results[0]
    title = (
        f"{first['model']}: {first['gradient_bytes'] / 1e6:.1f} MB of gradients"
        f" ({first['scale']:g} of the model's), {first['workers']} workers, {first['nics']} NICs of"
        f" {first['rate_bps'] / 1e6:g} Mb/s, {first['topology']}"
    )
    found = Table(title=title, title_justify="left")
    found.add_column("backend")
    for column in ("computing", "BCT", "not hidden", "bound", "BCT / bound", "JCT", "#wrong"):
        found.add_column(column, justify="right")
    for result in results:
        found.add_row(
            result["contestant"],
            *(f"{seconds * 1000:.1f} ms" for seconds in (result["compute_s"], result["bct_s"])),
            f"{not_hidden_s(result) * 1000:.1f} ms",
            f"{result['bound_s'] * 1000:.1f} ms",
            f"{result['bct_s'] / result['bound_s']:.2f}",
            _duration(result["jct_s"]),
            "-" if result["wrong"] is None else str(result["wrong"]),
        )
    return found


def not_hidden_s(result: dict) -> float:
    """What an iteration takes beyond its computing."""
    return result["bct_s"] - result["compute_s"]


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def draw(results: list[dict], path: Path) -> None:
    """Bars of computing and of communication that is not hidden, and the bound as a line."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    names = [result["contestant"] for result in results]
    computing = [result["compute_s"] * 1000 for result in results]
    axes.bar(names, computing, label="computing")
    waiting = [not_hidden_s(result) * 1000 for result in results]
    axes.bar(names, waiting, bottom=computing, label="communication, not hidden")
    axes.axhline(results[0]["bound_s"] * 1000, color="black", linestyle="--", label="bound")
    axes.set_ylabel("batch completion time (ms)")
    axes.set_title(f"{results[0]['model']}, {results[0]['topology']}")
    axes.legend()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
