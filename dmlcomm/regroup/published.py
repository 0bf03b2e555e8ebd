"""The regrouping of the SiP paper (section VI B), with the ranks of jobs as they are.

1. Jobs inside one pod: as many servers as possible under one ToR.
2. Jobs in several pods: if one circuit switch reaches all of them, under the first ToRs that have
   room; else, in each of their pods, as many as possible under one ToR.
"""

from collections.abc import Sequence

from dmlcomm.regroup.cluster import Cluster, Job, check_jobs


class Seating:
    """Seats that are given one after the other."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._free = [cluster.ports] * cluster.num_tors
        self._seats: list[int | None] = [None] * cluster.num_servers

    def sit(self, servers: Sequence[int], tors: Sequence[int], *, is_first: bool) -> None:
        """Under the first of the ToRs that have room, or under those that have most of it; when
        they are full, anywhere in their domain."""
        waiting = list(servers)
        domain = self._cluster.tors_of(self._cluster.domain_of(tors[0]))
        while waiting:
            room = [tor for tor in tors if self._free[tor]]
            room = room or [tor for tor in domain if self._free[tor]]
            tor = room[0] if is_first else max(room, key=lambda one: self._free[one])
            for server in waiting[: self._free[tor]]:
                self.sit_at(server, tor)
            waiting = [server for server in waiting if self._seats[server] is None]

    def sit_at(self, server: int, tor: int) -> None:
        self._seats[server] = tor
        self._free[tor] -= 1

    def seats(self) -> list[int]:
        """Servers without a job stay where they are if there is room, or go where there is."""
        before = self._cluster.first_seats()
        rest = [server for server, seat in enumerate(self._seats) if seat is None]
        for server in rest:
            if self._free[before[server]]:
                self.sit_at(server, before[server])
        for server in rest:
            if self._seats[server] is None:
                domain = self._cluster.domain_of(before[server])
                self.sit([server], self._cluster.tors_of(domain), is_first=True)
        return [seat for seat in self._seats if seat is not None]


def published(cluster: Cluster, jobs: Sequence[Job]) -> list[int]:
    """By server, its seat. Raises ValueError for jobs that do not fit the cluster."""
    check_jobs(cluster, jobs)
    before = cluster.first_seats()
    seating = Seating(cluster)
    pods_of = [sorted({cluster.pod_of(before[server]) for server in job.servers}) for job in jobs]
    for job, pods in zip(jobs, pods_of, strict=True):
        if len(pods) == 1:
            seating.sit(job.servers, cluster.tors_of_pod(pods[0]), is_first=False)
    for job, pods in zip(jobs, pods_of, strict=True):
        if len(pods) == 1:
            continue
        domains = {cluster.domain_of(pod * cluster.tors) for pod in pods}
        if len(domains) == 1:
            seating.sit(job.servers, cluster.tors_of(domains.pop()), is_first=True)
            continue
        for pod in pods:
            here = [server for server in job.servers if cluster.pod_of(before[server]) == pod]
            seating.sit(here, cluster.tors_of_pod(pod), is_first=False)
    return seating.seats()
