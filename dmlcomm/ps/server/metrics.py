"""The Prometheus endpoint of a server, and of a proxy."""

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_PREFIX = "dmlcomm_ps_"

# Name -> (field of the status, help).
WORKER_GAUGES = {"worker_clock": ("clock", "Clocks that the worker has closed")}

WORKER_COUNTERS = {
    "received_bytes": ("bytes_in", "Bytes received from the worker"),
    "sent_bytes": ("bytes_out", "Bytes sent to the worker"),
    "pushes": ("pushes", "Pushes received from the worker"),
    "pulls": ("pulls", "Pulls answered to the worker"),
}

RAIL_COUNTERS = {
    "rail_received_bytes": ("bytes_received", "Bytes received over the NIC"),
    "rail_sent_bytes": ("bytes_sent", "Bytes sent over the NIC"),
}

MODEL_GAUGES = {
    "model_clock": ("clock", "Clock of the model's slowest worker"),
    "model_open_windows": ("open_windows", "Pieces of clocks that wait for a worker"),
}

CHECKPOINT_GAUGES = {
    "checkpoint_clock": ("clock", "Clock of the last checkpoint"),
    "checkpoint_time_seconds": ("unix_time", "Unix time of the last checkpoint; 0: none yet"),
}

CHECKPOINT_COUNTERS = {
    "checkpoint_failures": ("failures", "Checkpoints that could not be written"),
}

SHARD_GAUGES = {"shard_bytes": ("bytes", "Weights of the shard")}


class MetricsEndpoint:
    """Serves /metrics over HTTP. Every request collects anew. Port 0 takes a free one."""

    def __init__(self, host: str, port: int, collector: Collector) -> None:
        registry = CollectorRegistry()
        registry.register(collector)
        self._server, self._thread = start_http_server(port, host, registry)
        self.port: int = self._server.server_port

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class ServerCollector(Collector):
    """Of the status of one server."""

    def __init__(self, status: Callable[[], Any]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        status = self._status()
        yield _gauge("queue", "Requests that wait to be carried out", status.queue)
        yield _gauge("uptime_seconds", "Since the server started", status.uptime_s)
        alive = sum(worker.alive for worker in status.workers)
        yield _gauge("workers_alive", "Workers whose connection stands", alive)
        workers = [([str(worker.worker)], worker) for worker in status.workers]
        yield from families(_PREFIX, GaugeMetricFamily, WORKER_GAUGES, ["worker"], workers)
        yield from families(_PREFIX, CounterMetricFamily, WORKER_COUNTERS, ["worker"], workers)
        rails = [([rail.interface], rail) for rail in status.rails]
        yield from families(_PREFIX, CounterMetricFamily, RAIL_COUNTERS, ["interface"], rails)
        models = [([model.name], model) for model in status.models]
        yield from families(_PREFIX, GaugeMetricFamily, MODEL_GAUGES, ["model"], models)
        checkpoints = [([checkpoint.model], checkpoint) for checkpoint in status.checkpoints]
        yield from families(_PREFIX, GaugeMetricFamily, CHECKPOINT_GAUGES, ["model"], checkpoints)
        yield from families(
            _PREFIX, CounterMetricFamily, CHECKPOINT_COUNTERS, ["model"], checkpoints
        )
        shards = [([m.name, str(s.shard)], s) for m in status.models for s in m.shards]
        yield from families(_PREFIX, GaugeMetricFamily, SHARD_GAUGES, ["model", "shard"], shards)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(_PREFIX + name, text, value=value)


def families(
    prefix: str,
    kind: Any,
    fields: dict[str, tuple[str, str]],
    labels: list[str],
    items: list[tuple[list[str], Any]],
) -> Iterator[Metric]:
    """One per field; each of the items is a line, with the values of the labels before it."""
    for name, (field, text) in fields.items():
        family = kind(prefix + name, text, labels=labels)
        for values, item in items:
            family.add_metric(values, getattr(item, field))
        yield family
