"""Flows and computations on links, played event by event."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dmlcomm import _core


@dataclass(frozen=True)
class Outcome:
    """The result of a run. Lists of tasks are indexed by the numbers that `Simulation` gave them.

    Attributes:
        makespan_s: seconds from 0 to the end of the last task.
        starts_s: by task, when it began.
        ends_s: by task, when it ended.
        link_bytes: by link, what all flows have carried over it.
    """

    makespan_s: float
    starts_s: list[float]
    ends_s: list[float]
    link_bytes: list[float]


def _number(lane: int | None) -> int:
    if lane is None:
        return -1
    if lane < 0:
        raise ValueError(f"a task has the lane {lane}: expected 0 or more")
    return lane


class Simulation:
    """Flows and computations that wait for each other, on links whose rates are max-min fair.

    Flows and computations are **tasks**. A task begins at its start, but not before all tasks that
    it comes after have ended. All times are in seconds from 0 on.

    Args:
        capacities: by link, in bits per second; see `max_min_rates`.
        latencies: by link, in seconds, by default 0. A flow first waits for those of its links,
            then its bytes take their share.

    Raises:
        ValueError: a number is out of its range.
        TypeError: something is no number.

    Example:
        >>> simulation = dmlcomm.sim.Simulation(capacities=[8e6, 8e6])
        >>> first = simulation.flow([0], 1_000_000)
        >>> second = simulation.flow([0, 1], 1_000_000)
        >>> update = simulation.compute(0.5, after=[first, second])
        >>> simulation.run().ends_s
        [2.0, 2.0, 2.5]
    """

    def __init__(
        self, capacities: Sequence[float], latencies: Sequence[float] | None = None
    ) -> None:
        self._core = _core.Simulation(capacities, [] if latencies is None else latencies)
        self._num_runs = 0  # that are under way

    @property
    def num_tasks(self) -> int:
        """How many flows and computations there are."""
        return self._core.num_tasks

    def flow(
        self,
        path: Sequence[int],
        num_bytes: float,
        *,
        start_s: float = 0.0,
        after: Sequence[int] = (),
        weight: float = 1.0,
        priority: int = 0,
        lane: int | None = None,
    ) -> int:
        """Adds a flow.

        Args:
            path: the links that it passes, numbered from 0. Without links it takes no time.
            num_bytes: its size, 0 or more.
            start_s: when it begins at the earliest.
            after: numbers of tasks that have to end before it begins.
            weight: 1e-6 to 1e6; flows with one bottleneck get rates as their weights are.
            priority: 0 (first) to 255; flows share what smaller priorities leave.
            lane: tasks with the same lane, a number from 0, go one after the other. Of those that
                wait, the one that was added first is next. A flow waits after its latencies.

        Returns:
            The number of the task.

        Raises:
            ValueError: a number is out of its range.
            RuntimeError: a run is under way.
        """
        self._check_idle()
        return self._core.add_flow(path, num_bytes, start_s, after, weight, priority, _number(lane))

    def compute(
        self,
        duration_s: float,
        *,
        start_s: float = 0.0,
        after: Sequence[int] = (),
        lane: int | None = None,
    ) -> int:
        """Adds a computation. Any number of them run at once, but for those of one lane.

        Args:
            duration_s: seconds.
            start_s: when it begins at the earliest.
            after: numbers of tasks that have to end before it begins.
            lane: as of a flow. The wait is part of its time, from ``starts_s`` on.

        Returns:
            The number of the task.

        Raises:
            ValueError: a number is out of its range.
            RuntimeError: a run is under way.
        """
        self._check_idle()
        return self._core.add_compute(duration_s, start_s, after, _number(lane))

    def change_capacity(
        self, link: int, time_s: float, capacity: float, *, dark_s: float = 0.0
    ) -> None:
        """Changes a link while flows are on their way.

        Args:
            link: which one.
            time_s: when.
            capacity: bits per second afterwards. Flows on a link without capacity wait.
            dark_s: seconds from ``time_s`` on in which the link carries nothing, as while a circuit
                switch moves it.

        Raises:
            ValueError: a number is out of its range.
            RuntimeError: a run is under way.
        """
        self._check_idle()
        self._core.change_capacity(link, time_s, capacity, dark_s)

    def change_path(self, path: Sequence[int], time_s: float, other: Sequence[int]) -> None:
        """Flows get another path while they are on their way, as when a circuit is moved.

        Args:
            path: as flows were added with. One that was changed before is changed again.
            time_s: when; flows that are under way then go on with what is left of them.
            other: the links that they pass from then on. They keep the latencies of ``path``.

        Raises:
            ValueError: a number is out of its range, or there are no links.
            RuntimeError: a run is under way.
        """
        self._check_idle()
        self._core.change_path(path, time_s, other)

    def _check_idle(self) -> None:
        if self._num_runs:
            raise RuntimeError(
                "the simulation runs: add tasks and changes before run(), or after it"
            )

    def run(
        self, progress: Callable[[int], None] | None = None, *, resolution_s: float = 0.0
    ) -> Outcome:
        """Plays all tasks from 0 on. Runs are independent of each other.

        Args:
            progress: called now and then with the number of tasks that have ended.
            resolution_s: links are shared anew at most once in so many seconds, by default 0:
                whenever flows or capacities change. Until then a flow on an idle path waits, and
                nobody has what flows had that have ended. Larger ones are faster, and tasks end
                later than they should.

        Returns:
            When each task began and ended, and what links carried.

        Raises:
            ValueError: tasks never end, because a link of theirs has no capacity; or the
                resolution is out of its range.
        """
        self._num_runs += 1
        try:
            found = self._core.run(progress, resolution_s)
        finally:
            self._num_runs -= 1
        return Outcome(found.makespan_s, found.starts_s, found.ends_s, found.link_bytes)
