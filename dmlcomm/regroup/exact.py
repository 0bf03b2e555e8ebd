"""The best regrouping that there is, by integer programming: to see how far others are from it.

Needs SciPy (``pip install dmlcomm[plan]``). Two steps: the fewest parts of jobs (`optimum`), which
HiGHS finds or bounds; then of all ways to label groups with ToRs, the one that moves the fewest
circuits (`fewest_moves`), an assignment problem.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dmlcomm.regroup.cluster import RING, Cluster, Job, check_jobs
from dmlcomm.regroup.plan import Group, owners, seat


class MissingScipyError(RuntimeError):
    """SciPy is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "the exact plan needs scipy, which is not installed: pip install dmlcomm[plan], or "
            "take the default plan"
        )


@dataclass(frozen=True)
class Optimum:
    """The least `cluster.cost`.

    Attributes:
        cost: of the best seats that were found.
        bound: no seats can have less; equal to the cost where the search has ended.
    """

    cost: int
    bound: float


def _scipy() -> Any:
    try:
        import scipy.optimize
        import scipy.sparse
    except ImportError as error:
        raise MissingScipyError from error
    return scipy


def optimum(cluster: Cluster, jobs: Sequence[Job], limit_s: float = 60) -> Optimum:
    """The least cost of any seats.

    Args:
        limit_s: seconds of search in each domain; then the best that is known.

    Raises:
        MissingScipyError: there is no SciPy.
        ValueError: jobs do not fit the cluster.
    """
    check_jobs(cluster, jobs)
    seats = cluster.first_seats()
    total, bound = 0, 0.0
    for domain in range(cluster.switches):
        here = Counter(
            number
            for number, job in enumerate(jobs)
            for server in job.servers
            if cluster.domain_of(seats[server]) == domain
        )
        if not here:
            continue
        found = _domain(cluster, [jobs[i].kind for i in here], list(here.values()), limit_s)
        total += found.cost
        bound += found.bound
    return Optimum(total, bound)


def _domain(cluster: Cluster, kinds: list[str], counts: list[int], limit_s: float) -> Optimum:
    """Variables by job and ToR: *x*, servers of the job there; *y*, whether it is one of the ring's
    ToRs, or the one of the parameter server; *g*, servers beside the parameter server.

    A ring pays y, a `PS` 1 + servers - g. ToRs are alike, so x of the first job falls.
    """
    scipy = _scipy()
    num_tors, ports = cluster.num_tors // cluster.switches, cluster.ports
    size = len(kinds) * num_tors

    def x(job: int, tor: int) -> int:
        return job * num_tors + tor

    def y(job: int, tor: int) -> int:
        return size + x(job, tor)

    def g(job: int, tor: int) -> int:
        return 2 * size + x(job, tor)

    prices, constant = [0.0] * (3 * size), 0
    rows: list[tuple[dict[int, float], float, float]] = []
    for j, (kind, count) in enumerate(zip(kinds, counts, strict=True)):
        tors = range(num_tors)
        rows.append(({x(j, t): 1.0 for t in tors}, count, count))
        rows += [({x(j, t): 1.0, y(j, t): -min(ports, count)}, -ports, 0) for t in tors]
        if kind == RING:
            least = -(-count // ports)
            rows.append(({y(j, t): 1.0 for t in tors}, least, num_tors))
            for t in tors:
                prices[y(j, t)] = 1.0
            continue
        constant += 1 + count
        # The parameter server has one ToR; the servers there are gained.
        rows[-num_tors:] = [({g(j, t): 1.0, x(j, t): -1.0}, -ports, 0) for t in tors]
        rows += [({g(j, t): 1.0, y(j, t): -min(ports, count)}, -ports, 0) for t in tors]
        rows.append(({y(j, t): 1.0 for t in tors}, 1, 1))
        for t in tors:
            prices[g(j, t)] = -1.0
    jobs = range(len(kinds))
    rows += [({x(j, t): 1.0 for j in jobs}, 0, ports) for t in range(num_tors)]
    rows += [({x(0, t): 1.0, x(0, t + 1): -1.0}, 0, ports) for t in range(num_tors - 1)]
    upper = [float(ports)] * size + [1.0] * size + [float(ports)] * size
    found = scipy.optimize.milp(
        prices,
        integrality=[1] * (3 * size),
        bounds=scipy.optimize.Bounds(0, upper),
        constraints=_constraints(scipy, rows, 3 * size),
        options={"time_limit": limit_s},
    )
    if found.x is None:
        raise RuntimeError(f"HiGHS found no seats in {limit_s:g} s: give it more")
    bound = -(-(found.mip_dual_bound - 1e-6) // 1)  # costs are whole numbers
    return Optimum(round(found.fun) + constant, bound + constant)


def _constraints(scipy: Any, rows: list[tuple[dict[int, float], float, float]], size: int) -> Any:
    entries = [(i, column, value) for i, row in enumerate(rows) for column, value in row[0].items()]
    lines, columns, values = zip(*entries, strict=True)
    matrix = scipy.sparse.csr_array((values, (lines, columns)), shape=(len(rows), size))
    return scipy.optimize.LinearConstraint(
        matrix, [row[1] for row in rows], [row[2] for row in rows]
    )


def fewest_moves(cluster: Cluster, jobs: Sequence[Job], seats: Sequence[int]) -> list[int]:
    """The same groups, each at the ToR of its pod where most of its servers are already.

    Args:
        seats: of a plan, by server.

    Raises:
        MissingScipyError: there is no SciPy.
    """
    scipy = _scipy()
    job_of = owners(cluster, jobs)
    before = cluster.first_seats()
    found = list(before)
    for domain in range(cluster.switches):
        placed: dict[int, Group] = {}
        tors = cluster.tors_of(domain)
        for pod in range(cluster.pod_of(tors[0]), cluster.pod_of(tors[-1]) + 1):
            of_pod = cluster.tors_of_pod(pod)
            groups = [
                Counter(job_of[s] for s, seat in enumerate(seats) if seat == t) for t in of_pod
            ]
            present = [
                Counter(job_of[s] for s, seat in enumerate(before) if seat == t) for t in of_pod
            ]
            stay = [[(group & there).total() for there in present] for group in groups]
            rows, columns = scipy.optimize.linear_sum_assignment(stay, maximize=True)
            placed |= {of_pod[int(c)]: groups[int(r)] for r, c in zip(rows, columns, strict=True)}
        seat(cluster, jobs, tors, placed, found)
    return found
