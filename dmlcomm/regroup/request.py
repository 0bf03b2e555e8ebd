"""The file of ``dmlcomm regroup``: a cluster whose circuits can be moved, and jobs on it."""

from dataclasses import dataclass
from typing import Any

from dmlcomm.regroup.cluster import KINDS, Cluster, Job, check_jobs
from dmlcomm.regroup.wiring import Rates
from dmlcomm.simulate.fields import Fields, ScenarioError, load_yaml
from dmlcomm.units import parse_rate

KEYS = ("pods", "tors", "ports", "switches", "rate", "taper", "core_taper", "dark", "jobs")
JOB_KEYS = ("kind", "servers")


@dataclass(frozen=True)
class Request:
    """``dark_s``: how long a circuit carries nothing while it is moved."""

    cluster: Cluster
    rates: Rates
    dark_s: float
    jobs: tuple[Job, ...]


def load(path: str) -> Request:
    """Reads a file. Raises ValueError, which says what is wrong."""
    return parse(load_yaml(path))


def parse(content: Any) -> Request:
    """Checks what a file holds. Raises ValueError."""
    fields = Fields(content, "the file", KEYS)
    pods, tors, ports, switches = (
        fields.whole(key, 1 if key == "switches" else 0, least=1) for key in KEYS[:4]
    )
    cluster = Cluster(pods, tors, ports, switches)
    rates = Rates(
        parse_rate(fields.text("rate")),
        fields.whole("taper", 1, least=1),
        fields.whole("core_taper", 1, least=1),
    )
    rates.uplinks(cluster)
    jobs = [_job(item, i, cluster) for i, item in enumerate(fields.items("jobs"))]
    if not any(len(job.servers) > 1 for job in jobs):
        raise ScenarioError('"jobs" of the file: expected a job with two servers or more')
    check_jobs(cluster, jobs)
    return Request(cluster, rates, fields.seconds("dark", 0), tuple(jobs))


def _job(content: Any, index: int, cluster: Cluster) -> Job:
    fields = Fields(content, f"job {index}", JOB_KEYS)
    if "servers" not in fields:
        raise ScenarioError(f'job {index} has no "servers": give some, as [0, 16-31]')
    servers = fields.numbers("servers", range(cluster.num_servers), 1, "server")
    return Job(fields.one_of("kind", KINDS), tuple(servers))
