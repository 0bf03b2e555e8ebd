"""The file of ``dmlcomm strategy``: a cluster, and the layers of a model."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from dmlcomm import _core
from dmlcomm.planning.pricing import ABOUT_EQUAL
from dmlcomm.planning.sizes import parse_size
from dmlcomm.simulate import scenario
from dmlcomm.simulate.fields import Fields, ScenarioError, load_yaml
from dmlcomm.simulate.psnet import PREFIX
from dmlcomm.simulate.scenario import Scenario

NETWORK_KEYS = ("topology", "rate", "ranks_per_host", "mtu", "ecmp")
KEYS = (*NETWORK_KEYS, "workers", "layers", "bucket", "server_hosts", "num_servers")
LAYER_KEYS = ("name", "size", "forward", "backward")
ALL_REDUCE = "all_reduce"
ELEMENT_BYTES = 4
# As torch's DDP.
BUCKET = "25MiB"


@dataclass(frozen=True)
class Bucket:
    """Gradients that are synchronised together, when all of them are there.

    Attributes:
        ready_s: since the batch began.
    """

    num_bytes: int
    ready_s: float


@dataclass(frozen=True)
class Request:
    """A cluster, and a batch of a model, for which a way is wanted.

    Attributes:
        network: the file's entries about it, as a scenario has them.
        empty: a scenario of that network, for its hosts.
        workers: their hosts; each has as many as the network has ranks per host.
        server_hosts: hosts that may have a parameter server.
        num_servers: numbers of them to try.
        buckets: in the order of the backward pass.
        compute_s: of a batch, forward and backward.
    """

    network: dict[str, Any]
    empty: Scenario
    workers: tuple[int, ...]
    server_hosts: tuple[int, ...]
    num_servers: tuple[int, ...]
    buckets: tuple[Bucket, ...]
    compute_s: float

    @cached_property
    def algorithms(self) -> dict[str, float]:
        """By algorithm of all_reduce, how many times as long as links need the largest bucket
        takes, by the planner's price of ports to which several hosts send at once; "" is the choice
        of ranks."""
        network = replace(self.empty.network, num_hosts=len(self.workers))
        num_bytes = max(bucket.num_bytes for bucket in self.buckets)
        full, idle = network.core(), network.core()
        idle.contention = 1.0
        slow, fast = (
            _core.compare(core, network.of_job(), ALL_REDUCE, num_bytes, ELEMENT_BYTES)
            for core in (full, idle)
        )
        factors = {}
        for price, of_links in zip(slow.prices, fast.prices, strict=True):
            if price.is_schedule:
                factor = price.seconds / of_links.seconds
                factors[price.name] = factor if factor > 1 + ABOUT_EQUAL else 1.0
        return {"": factors.get(slow.prices[slow.chosen].name, 1.0)} | factors


def load(path: str) -> Request:
    """Reads a file. Raises ValueError, which says what is wrong."""
    return parse(load_yaml(path))


def parse(content: Any) -> Request:
    """Checks what a file holds. Raises ValueError."""
    fields = Fields(content, "the file", KEYS)
    network = {key: content[key] for key in NETWORK_KEYS if key in fields}
    if fields.text("topology").startswith(PREFIX):
        raise ScenarioError("a PSNet has parameter servers, and workers that reach nobody else")
    probe = {"op": "barrier"}
    empty = scenario.parse(network | {"jobs": [probe]})
    hosts = range(empty.network.num_hosts)
    if empty.network.sizes:
        _check_of_grid(fields)
    workers = tuple(fields.numbers("workers", hosts, 2, "host"))
    server_hosts = list(workers)
    if "server_hosts" in fields:
        server_hosts = fields.numbers("server_hosts", hosts, 1, "host")
    powers = [1 << n for n in range(len(server_hosts).bit_length())]
    num_servers = powers
    if "num_servers" in fields:
        num_servers = fields.numbers("num_servers", range(1, len(hosts) + 1), 1, "number")
    buckets, compute_s = _buckets(fields)
    return Request(
        network,
        empty,
        workers,
        tuple(server_hosts),
        tuple(number for number in num_servers if number <= len(server_hosts)),
        buckets,
        compute_s,
    )


def _check_of_grid(fields: Fields) -> None:
    """All hosts of a grid take part in an algorithm; those that are no neighbours have no way of
    one link, so servers are not simulated."""
    if "workers" in fields:
        raise ScenarioError('"workers" of the file: on a bcube or grid all hosts are; leave it out')
    for key in ("server_hosts", "num_servers"):
        if key in fields:
            raise ScenarioError(
                f'"{key}" of the file: servers are not simulated on a bcube or grid; leave it out, '
                "or describe the network as flat:N,k"
            )


def _buckets(fields: Fields) -> tuple[tuple[Bucket, ...], float]:
    """A bucket is full with the layer by which it reaches the limit; the last layers are first."""
    limit = parse_size(str(fields.get("bucket", BUCKET)))
    layers = [
        Fields(item, f"layer {number}", LAYER_KEYS)
        for number, item in enumerate(fields.items("layers"))
    ]
    if not layers:
        raise ScenarioError('"layers" of the file: expected a list of one or more')
    now_s = sum(layer.seconds("forward", 0) for layer in layers)
    found: list[Bucket] = []
    filled = 0
    for layer in reversed(layers):
        now_s += layer.seconds("backward", 0)
        filled += parse_size(str(layer.get("size", "0")))
        if filled >= max(1, limit):
            found.append(Bucket(filled, now_s))
            filled = 0
    if filled:
        found.append(Bucket(filled, now_s))
    if not found:
        raise ScenarioError('"layers" of the file: expected a "size" of one at least')
    return tuple(found), now_s
