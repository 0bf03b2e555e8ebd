"""``dmlcomm simulate --picture``: jobs over time, and how much links are used. Needs matplotlib."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dmlcomm.simulate.fields import ScenarioError
from dmlcomm.simulate.run import JobResult, Result

COMPUTES, OPERATION = "#d0d0d0", "#2f6f9f"
NICS, TRUNKS = "#2f6f9f", "#d9822b"
DOTS_PER_INCH = 100
# Jobs of more than that are drawn, but not named.
MOST_NAMES = 40


def draw(result: Result, title: str, path: Path) -> None:
    """Writes a PNG: a row per job with its steps, and the shares of links by rank.

    Raises:
        ScenarioError: there is no matplotlib, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ScenarioError("--picture needs matplotlib: pip install dmlcomm[lab]") from error
    rows = min(len(result.jobs), MOST_NAMES)
    figure = Figure(figsize=(9, 3.4 + 0.25 * rows), dpi=DOTS_PER_INCH, layout="constrained")
    jobs, links = figure.subplots(2, height_ratios=[0.6 + 0.25 * rows, 2.4])
    _draw_jobs(jobs, result.jobs)
    _draw_links(links, result)
    jobs.set_title(title)
    try:
        figure.savefig(path, format="png", metadata={"Software": None})
    except OSError as error:
        raise ScenarioError(f"{path} cannot be written: {error.strerror}") from error


def _draw_jobs(axes: Any, jobs: Sequence[JobResult]) -> None:
    """In each step from its first computation to the last rank's call, and then to its result."""
    for row, job in enumerate(jobs):
        calls = [step.end_s - step.operation_s for step in job.steps]
        computes = [
            (step.begin_s, call - step.begin_s) for step, call in zip(job.steps, calls, strict=True)
        ]
        operations = [(call, step.operation_s) for step, call in zip(job.steps, calls, strict=True)]
        axes.broken_barh(computes, (row - 0.4, 0.8), color=COMPUTES)
        axes.broken_barh(operations, (row - 0.4, 0.8), color=OPERATION)
    axes.set_ylim(len(jobs) - 0.5, -0.5)
    axes.set_xlim(0)
    if len(jobs) <= MOST_NAMES:
        axes.set_yticks(range(len(jobs)), [job.job.name for job in jobs])
    axes.set_xlabel("seconds; grey: ranks compute, blue: the operation since the last one's call")


def _draw_links(axes: Any, result: Result) -> None:
    """From the one that is used most on."""
    for name, colour, links in (
        ("NICs, each way", NICS, result.links),
        ("between switches", TRUNKS, result.trunks),
    ):
        shares = sorted((100 * link.utilisation for link in links), reverse=True)
        if shares:
            xs = [100 * (place + 0.5) / len(shares) for place in range(len(shares))]
            axes.plot(xs, shares, color=colour, label=f"{name} ({len(shares)})")
    axes.set(xlabel="links, from the one that is used most, %", ylabel="utilisation, %")
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 105)
    axes.legend()
