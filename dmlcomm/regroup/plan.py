"""Regrouping that leaves as few parts of jobs as it can, and then moves as few circuits as it can.

Domain by domain:

1. *Groups*: a job fills as many ToRs as it can alone. The rests of jobs are packed: the largest
   rest, with others that fill its ToR exactly, if some do; else with the sum that comes closest,
   and a part of one more rest. Servers without a job are rests of one server each.
2. *Pods*: groups of one job come into one pod, where they fit.
3. *ToRs*: of a pod's groups and ToRs, the pair that has most servers in common is next.
4. *Servers*: of a job's, those that are at a ToR already stay there.

Where all this gains nothing, everybody stays.

Ranks are numbered anew afterwards, ToR by ToR (`ordered`).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from dmlcomm.regroup.cluster import PS, RING, Cluster, Job, check_jobs, cost

# Servers without a job.
IDLE = -1
# By number of the job (or `IDLE`): how many of its servers one ToR has.
Group = Counter[int]


def plan(cluster: Cluster, jobs: Sequence[Job]) -> list[int]:
    """By server, its seat. Raises ValueError for jobs that do not fit the cluster."""
    check_jobs(cluster, jobs)
    seats = cluster.first_seats()
    job_of = owners(cluster, jobs)
    for domain in range(cluster.switches):
        tors = cluster.tors_of(domain)
        servers = _servers_of(cluster, tors)
        here = Counter(job_of[server] for server in servers)
        groups = pack(here, [job.kind for job in jobs], cluster.ports)
        present = [Counter[int]() for _ in range(cluster.num_tors)]
        for server in servers:
            present[seats[server]][job_of[server]] += 1
        placed = _place(cluster, tors, groups, present)
        seat(cluster, jobs, tors, placed, seats)
    before = cluster.first_seats()
    return min(before, seats, key=lambda found: _scatter(cluster, jobs, found))


def _scatter(cluster: Cluster, jobs: Sequence[Job], seats: Sequence[int]) -> tuple[int, int]:
    """The cost, and in how many pods jobs have servers."""
    pods = sum(len({cluster.pod_of(seats[server]) for server in job.servers}) for job in jobs)
    return cost(cluster, jobs, seats), pods


def owners(cluster: Cluster, jobs: Sequence[Job]) -> list[int]:
    """By server, the number of its job, or `IDLE`."""
    found = [IDLE] * cluster.num_servers
    for number, job in enumerate(jobs):
        for server in job.servers:
            found[server] = number
    return found


def _servers_of(cluster: Cluster, tors: range) -> range:
    """Those that a domain's ToRs have before anything is moved."""
    return range(tors[0] * cluster.ports, (tors[-1] + 1) * cluster.ports)


def ordered(cluster: Cluster, job: Job, seats: Sequence[int]) -> Job:
    """The job with its ranks numbered ToR by ToR; a parameter server stays rank 0."""
    fixed = job.servers[:1] if job.kind == PS else ()
    rest = sorted(job.servers[len(fixed) :], key=lambda server: (seats[server], server))
    return replace(job, servers=(*fixed, *rest))


def pack(here: Group, kinds: Sequence[str], ports: int) -> list[Group]:
    """Groups of ``ports`` servers. ``here``: by job, how many; a multiple of the ports in all."""
    groups: list[Group] = []
    left = Counter(here)
    for job in here:
        if job == IDLE:
            continue
        full, left[job] = divmod(here[job], ports)
        groups += [Counter({job: ports}) for _ in range(full)]
    while +left:
        groups.append(_next_group(left, kinds, ports))
        left -= groups[-1]
    return groups


def _next_group(left: Group, kinds: Sequence[str], ports: int) -> Group:
    """The first rest that others complete, from the largest on; else the cheapest cut."""
    rests = sorted((job for job in left if job != IDLE and left[job]), key=lambda job: -left[job])
    if not rests:
        return Counter({IDLE: ports})
    best: tuple[tuple[int, int], Group] | None = None
    for first in rests:
        others = [job for job in rests if job != first]
        group = _filled(first, others, left, ports)
        gap = ports - group.total()
        if gap == 0:
            return group
        cuts = [job for job in others if job not in group]
        cut = min(cuts, key=lambda job: _price(kinds[job], left[job], gap))
        price = _price(kinds[cut], left[cut], gap)
        if best is None or price < best[0]:
            best = price, group + Counter({cut: gap})
    assert best is not None
    return best[1]


def _filled(first: int, others: Sequence[int], left: Group, ports: int) -> Group:
    """A rest with others that fit beside it whole, as many servers as possible. Servers without a
    job fill what is left; nobody minds where they are."""
    room = ports - left[first]
    sums: dict[int, tuple[int, ...]] = {0: ()}  # of rests: which ones, the largest first
    for job in others:
        for total, chosen in list(sums.items()):
            if total + left[job] <= room:
                sums.setdefault(total + left[job], (*chosen, job))
    total = max(sums, key=lambda one: (min(one + left[IDLE], room), one))
    idle = min(room - total, left[IDLE])
    return +Counter({first: left[first], IDLE: idle} | {job: left[job] for job in sums[total]})


def _price(kind: str, rest: int, gap: int) -> tuple[int, int]:
    """Of a cut of a rest: what `job_cost` grows by; of equals the smallest rest is cut."""
    return (1 if kind == RING else min(gap, rest - gap), rest)


def _place(
    cluster: Cluster, tors: range, groups: Sequence[Group], present: Sequence[Group]
) -> dict[int, Group]:
    """By ToR, the group that it gets."""
    pods = range(cluster.pod_of(tors[0]), cluster.pod_of(tors[-1]) + 1)
    placed: dict[int, Group] = {}
    for pod, of_pod in zip(pods, _by_pod(cluster, pods, groups, present), strict=True):
        pairs = sorted(
            ((-(group & present[tor]).total(), tor, i) for i, group in enumerate(of_pod)
             for tor in cluster.tors_of_pod(pod))
        )  # fmt: skip
        taken: set[int] = set()
        for _, tor, i in pairs:
            if tor not in placed and i not in taken:
                placed[tor] = of_pod[i]
                taken.add(i)
    return placed


def _by_pod(
    cluster: Cluster, pods: range, groups: Sequence[Group], present: Sequence[Group]
) -> list[list[Group]]:
    """Groups of one job beside each other; jobs with many first, where most of them are already."""
    found: list[list[Group]] = [[] for _ in pods]
    at_home = [sum((present[tor] for tor in cluster.tors_of_pod(pod)), Counter()) for pod in pods]
    count = Counter(job for group in groups for job in group if job != IDLE)
    waiting = list(groups)
    for job, _ in count.most_common():
        mine = [group for group in waiting if job in group]
        waiting = [group for group in waiting if job not in group]
        while mine:
            room = [cluster.tors - len(some) for some in found]
            # All of them if they fit, else as many as possible.
            best = max(
                range(len(found)),
                key=lambda i: (min(room[i], len(mine)), at_home[i][job], -room[i]),
            )
            found[best] += mine[: room[best]]
            mine = mine[room[best] :]
    for group in waiting:
        min(found, key=len).append(group)
    return found


def seat(
    cluster: Cluster, jobs: Sequence[Job], tors: range, placed: dict[int, Group], seats: list[int]
) -> None:
    """Gives new seats to the servers of a domain.

    Who can stay stays, and a parameter server goes where most of its job is.

    Args:
        tors: those of the domain.
        placed: by ToR, what it gets.
        seats: by server, before; changed here.
    """
    job_of = owners(cluster, jobs)
    left = {tor: Counter(group) for tor, group in placed.items()}
    moving: list[int] = []
    leaders = {job.servers[0] for job in jobs if job.kind == PS}
    for server in sorted(_servers_of(cluster, tors), key=lambda one: one not in leaders):
        job, tor = job_of[server], seats[server]
        if server in leaders:
            tor = max(left, key=lambda one: (left[one][job], one == seats[server]))
        if left[tor][job] > 0:
            seats[server] = tor
            left[tor][job] -= 1
        else:
            moving.append(server)
    for server in moving:
        seats[server] = next(tor for tor in left if left[tor][job_of[server]] > 0)
        left[seats[server]][job_of[server]] -= 1
