"""What a proxy tells Prometheus."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dmlcomm.ps.server.metrics import families

_PREFIX = "dmlcomm_proxy_"

# Name -> (field, help).
NODE_GAUGES = {
    "workers": ("num_workers", "Workers of this host that are connected"),
    "children": ("num_children", "Proxies that are connected below this one"),
    "in_tree": ("in_tree", "1 when the tree is fixed and has this proxy"),
}

EDGE_COUNTERS = {
    "edge_sent_bytes": ("bytes_sent", "Bytes sent to the parent, or to one below, in this tree"),
    "edge_received_bytes": ("bytes_received", "Bytes received from there"),
}

NODE_COUNTERS = {
    "received_bytes": ("bytes_in", "Bytes received from below, in this tree"),
    "sent_bytes": ("bytes_out", "Bytes sent to those below, in this tree"),
}

SEAT_GAUGES = {
    "job_processes": ("processes", "Processes of the job on this host that have a seat"),
}

SEAT_COUNTERS = {
    "job_sent_bytes": ("sent_bytes", "Bytes that the job has sent over this host's NICs"),
    "job_received_bytes": ("received_bytes", "Bytes that the job has read from this host's NICs"),
}

NIC_GAUGES = {
    "job_nic_share": ("share", "Part of the NIC that the job has now; 0 if it is idle or alone"),
    "job_nic_behind": ("is_behind", "1 while the job goes behind another one"),
    "job_nic_share_of_arrivals": ("share_of_arrivals", "Its part of what comes over the NIC"),
    "job_nic_read_behind": ("is_read_behind", "1 while it reads behind another one"),
}

NIC_COUNTERS = {
    "job_nic_sent_bytes": ("sent_bytes", "Bytes that the job's processes have sent over the NIC"),
    "job_nic_received_bytes": ("received_bytes", "Bytes that they have read from the NIC"),
}

MODEL_GAUGES = {
    "model_clock": ("clock", "Clock of the model's slowest worker below"),
    "model_open_windows": ("open_windows", "Pieces of clocks that wait for a worker"),
    "model_copy_bytes": ("copy_bytes", "Weights of the model that are kept here"),
    "model_copy_clock": ("copy_clock", "They contain all clocks before"),
}

MODEL_COUNTERS = {
    "model_pulls": ("pulls", "Pulls from below, in this tree"),
    "model_pulls_at_once": ("pulls_at_once", "Those for which the weights were new enough"),
}


class ProxyCollector(Collector):
    """Of the status of all jobs, see `Proxy.status`; labelled by the server's address.

    And of `Proxy.priorities`, labelled by job, priority and interface.
    """

    def __init__(
        self,
        status: Callable[[], list[dict[str, Any]]],
        priorities: Callable[[], list[dict[str, Any]]],
    ) -> None:
        self._status = status
        self._priorities = priorities

    def collect(self) -> Iterator[Metric]:
        jobs = self._status()
        yield GaugeMetricFamily(f"{_PREFIX}jobs", "Jobs that this proxy carries", value=len(jobs))
        statuses = [node for job in jobs for node in job["nodes"]]
        nodes = [([node["server_address"]], _figures(node)) for node in statuses]
        yield from families(_PREFIX, GaugeMetricFamily, NODE_GAUGES, ["server"], nodes)
        yield from families(_PREFIX, CounterMetricFamily, NODE_COUNTERS, ["server"], nodes)
        edges = [
            ([node["server_address"], edge["to"]], SimpleNamespace(**edge))
            for node in statuses
            for edge in node["edges"]
        ]
        yield from families(_PREFIX, CounterMetricFamily, EDGE_COUNTERS, ["server", "to"], edges)
        models = [
            ([node["server_address"], model["name"]], SimpleNamespace(**model))
            for node in statuses
            for model in node["models"]
        ]
        labels = ["server", "model"]
        yield from families(_PREFIX, GaugeMetricFamily, MODEL_GAUGES, labels, models)
        yield from families(_PREFIX, CounterMetricFamily, MODEL_COUNTERS, labels, models)
        yield from self._collect_shares()

    def _collect_shares(self) -> Iterator[Metric]:
        labels = ["job", "priority"]
        jobs = [
            ([job["job"], str(job["priority"])], SimpleNamespace(**job))
            for job in self._priorities()
        ]
        yield from families(_PREFIX, GaugeMetricFamily, SEAT_GAUGES, labels, jobs)
        yield from families(_PREFIX, CounterMetricFamily, SEAT_COUNTERS, labels, jobs)
        nics = [
            ([*names, nic["interface"]], SimpleNamespace(**nic))
            for names, job in jobs
            for nic in job.nics
        ]
        labels = [*labels, "interface"]
        yield from families(_PREFIX, GaugeMetricFamily, NIC_GAUGES, labels, nics)
        yield from families(_PREFIX, CounterMetricFamily, NIC_COUNTERS, labels, nics)


def _figures(node: dict[str, Any]) -> SimpleNamespace:
    return SimpleNamespace(
        num_workers=len(node["workers"]),
        num_children=len(node["children"]),
        in_tree=int(node["place"] is not None),
        bytes_in=node["bytes_in"],
        bytes_out=node["bytes_out"],
    )
