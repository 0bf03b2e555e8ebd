"""A node: this host's place in the tree of one server, for one job."""

import secrets
import socket
import threading
from collections.abc import Callable
from typing import Any

from dmlcomm import _core, errors
from dmlcomm.log import get_logger
from dmlcomm.network import nic
from dmlcomm.proxy.edges import Edges
from dmlcomm.proxy.models import NodeModels
from dmlcomm.proxy.parent import Parent
from dmlcomm.proxy.service import NodeService
from dmlcomm.ps._proto import dmlcomm_ps_pb2 as pb
from dmlcomm.ps.server.listen import listen
from dmlcomm.ps.server.membership import Membership
from dmlcomm.ps.server.rates import RATE_INTERVAL_S
from dmlcomm.ps.server.server import GRACE_S
from dmlcomm.ps.server.service import proxies_of
from dmlcomm.ps.server.status import ServerView, alive_workers
from dmlcomm.ps.worker.control import Control

# How often a node looks for workers that were lost.
LOOK_INTERVAL_S = 0.5

# A server that is told that a node ends answers within this time, or hears it by the connection.
LEAVE_TIMEOUT_S = 2.0


# Tells servers which nodes, of different trees, are at one place of the network.
PROCESS = secrets.token_hex(16)


class Node:
    """Serves from construction until `close`, in one tree: the next one has another node.

    Args:
        root: of the server whose part of the models this is.
        health: of that server.
        join: the JoinTreeRequest, with what there is to say of the tree.
        seat: by which it sends for the job.
        on_failure: called once `failure` is not empty, from any thread.

    Attributes:
        address: where workers of this host and other proxies find it.

    Raises:
        PsError: the server does not answer, or refuses. OSError: there is no port.
    """

    def __init__(
        self,
        root: Control,
        token: str,
        health: Any,
        join: Any,
        transport: str,
        seat: _core.JobSeat,
        on_failure: Callable[[], None],
    ) -> None:
        self.server = root.server
        self._root = root
        self._closed = threading.Event()
        self._id = own_id = secrets.token_hex(16)
        uplink = _core.ProxyUplink(transport)
        self._uplink = uplink
        self._core = uplink.serve(root.server, health.num_servers, health.num_workers, transport)
        core = self._core  # what refers to the node itself would be freed late
        self._members = Membership(health.num_workers, lambda: alive_workers(core.status()))
        view = ServerView(self._core, root.server, health.num_servers, health.num_workers, 0)
        models = NodeModels(self._core, root.server, self._members, None)
        self._edges = Edges(core, uplink)
        self._parent = Parent(root, token, uplink, core, models, seat, on_failure)
        self._service = NodeService(
            *(self._core, view, models, nic.own_rails),
            membership=self._members,
            root=root,
            parent=self._parent,
            own_id=own_id,
            seat=seat,
        )
        local = f"{own_address(root.address)}:0"
        workers = health.num_workers
        self._grpc, self.address = listen(local, root.server, token, None, workers, self._service)
        join.id, join.address, join.host_name = own_id, self.address, _core.host_name()
        join.process = PROCESS
        join.first = True
        try:
            root.call("JoinTree", join)
        except BaseException:
            self.close()
            raise
        for target, arguments in (
            (self._parent.take_part, (join,)),
            (self._repeat, (LOOK_INTERVAL_S, self._service.drop_lost)),
            (self._repeat, (RATE_INTERVAL_S, self._edges.read_rates)),
        ):
            threading.Thread(target=target, args=arguments, daemon=True).start()

    def _repeat(self, interval_s: float, act: Callable[[], None]) -> None:
        while not self._closed.wait(interval_s):
            act()

    def failure(self) -> str:
        """Why it cannot go on; empty while it works."""
        return self._parent.failure()

    def num_below(self) -> int:
        """Workers and proxies that are connected."""
        return len(alive_workers(self._core.status()))

    def status(self) -> dict[str, Any]:
        """Plain data: the tree and the place in it, edges with bytes and rates, and models."""
        core = self._core.status()
        place = self._parent.place
        below = alive_workers(core)
        return {
            "server": self.server,
            "server_address": self._root.address,
            "address": self.address,
            "shape": place.shape if place else None,
            "place": place.place if place else None,
            "parent": (place.parent or self._root.address) if place else None,
            "parent_since": self._parent.since,
            "tree": [_tree_node(node) for node in place.nodes] if place else [],
            "edges": self._edges.status(core),
            "workers": sorted(n for n in below if n < _core.FIRST_PROXY),
            "children": sorted(proxies_of(below)),
            "bytes_in": sum(worker["bytes_in"] for worker in core["workers"]),
            "bytes_out": sum(worker["bytes_out"] for worker in core["workers"]),
            "models": [_model(model) for model in core["models"]],
        }

    def close(self) -> None:
        """Those below notice at once, and the tree ends."""
        is_cut_off = self._parent.is_cut_off()  # before its heartbeats end
        self._closed.set()
        self._service.end()
        self._parent.close()
        request = pb.LeaveTreeRequest(
            id=self._id,
            reason=self.failure() or "it ends",
            is_cut_off=is_cut_off,
        )
        try:
            self._root.call("LeaveTree", request, timeout_s=LEAVE_TIMEOUT_S)
        except errors.PsError as error:
            get_logger().debug("leaving the tree: %s", error)
        self._service.close()
        self._grpc.stop(GRACE_S)
        self._root.close()


def _tree_node(node: Any) -> dict[str, Any]:
    return {
        "host": node.host_name,
        "rack": node.rack,
        "parent": node.parent,
        "workers": list(node.workers),
    }


def _model(model: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": model["name"],
        "clock": model["clock"],
        "open_windows": model["open_windows"],
        "copy_bytes": sum(model["shard_bytes"].values()),
        "copy_clock": model["version"],
        "pulls": model["pulls"],
        "pulls_at_once": model["pulls_at_once"],
    }


def own_address(server: str) -> str:
    """The address of this host, as the server at `server` (host:port) sees it; [v6] in brackets."""
    host, _, port = server.rpartition(":")
    found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)
    family, kind, _, _, address = found[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        own = str(probe.getsockname()[0])
    return f"[{own}]" if ":" in own else own
