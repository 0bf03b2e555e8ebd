"""What two servers do that have each found the other lost: one gives way, and is filled again.

A network may separate two servers, each with some workers, or break between these two alone. Then
each finds the other lost, and neither would ask the other any more. So a server asks also those
that it holds as lost. Which one goes on both can tell: the one with more live workers, then with
more updates, then with the smaller number. What only the other one has is lost.

- One gives way that does not know yet that it was found lost, or knows it, while the other one is
  used: it takes over what that one knows of servers. Then it is an ordinary lost server.
- With two servers, workers of both may have told both. Then nobody is used, and workers end. The
  server with the smaller number tells both which one is used again, with all that it has.

A server may also have been started anew without anybody noticing, as between two runs of workers.
A lost one that still has models finds it lost then: of two, it is used again.
"""

from dmlcomm import _core
from dmlcomm.log import get_logger
from dmlcomm.ps._proto import dmlcomm_ps_pb2 as pb
from dmlcomm.ps.protocol import LAST_LIFE, is_lost
from dmlcomm.ps.server.peers import ANSWER_TIMEOUT_S, Peers
from dmlcomm.ps.server.status import alive_workers


class MutualLoss:
    """Used by one thread, that of `Refill`."""

    def __init__(self, core: _core.PsServer, server: int, num_servers: int, peers: Peers) -> None:
        self._core = core
        self._server = server
        self._num_servers = num_servers
        self._peers = peers

    def settle_with(self, other: int) -> None:
        """With a server that this one holds as lost. Raises grpc.RpcError if it does not answer."""
        known = self._core.lives()
        own, theirs = known[: self._num_servers], list(self._peers.health(other).lives)
        if theirs[other] > own[other]:  # it was lost once, and is back, or lost again
            self._core.learn(theirs)
        elif not is_lost(theirs[self._server]) or theirs[self._server] < own[self._server]:
            return  # it will ask this server
        elif not is_lost(theirs[other]):
            if is_lost(own[self._server]) or self._goes_first(other, counts_workers=True):
                self._give_way(other, known, theirs)
        elif is_lost(own[self._server]) and self._num_servers == 2 and self._server < other:
            self._end_loss_of_both(other, own, theirs)

    def lose_if_anew(self, other: int, models: set[str]) -> bool:
        """Whether the other one lacks some of these models of this server, which is lost: then it
        is lost, too. With workers it is used as it is. Raises grpc.RpcError."""
        with self._peers.calling(other) as call:
            status = call("Status", pb.StatusRequest(), ANSWER_TIMEOUT_S)
            missing = models - {model.name for model in status.models if model.sealed}
            if not missing or any(worker.alive for worker in status.workers):
                return False
            get_logger().error(
                "server %d is lost, too: it was started anew, and has no model %s",
                *(other, ", ".join(map(repr, sorted(missing)))),
            )
            self._core.lose(other, self._core.lives()[other])
            lives = self._core.lives()[: self._num_servers]
            call("ComeBack", pb.ComeBackRequest(lives=lives), ANSWER_TIMEOUT_S)
        return True

    def _goes_first(self, other: int, counts_workers: bool) -> bool:
        """Whether the other one goes on."""
        with self._peers.calling(other) as call:
            status = call("Status", pb.StatusRequest(), ANSWER_TIMEOUT_S)
        own = self._core.status()
        updates = [model.updates for model in status.models if model.sealed]
        own_updates = [model["updates"] for model in own["models"] if model["sealed"]]
        workers, own_workers = 0, 0
        if counts_workers:
            workers, own_workers = sum(w.alive for w in status.workers), len(alive_workers(own))
        ranks = (workers, len(updates), sum(updates), -other)
        return ranks > (own_workers, len(own_updates), sum(own_updates), -self._server)

    def _give_way(self, other: int, known: list[int], theirs: list[int]) -> None:
        if self._core.give_way(known, theirs):
            get_logger().warning(
                "servers %d and %d have each found the other lost: this one gives way",
                *(self._server, other),
            )

    def _end_loss_of_both(self, other: int, own: list[int], theirs: list[int]) -> None:
        lives = [max(pair) for pair in zip(own, theirs, strict=True)]
        used = other if self._goes_first(other, counts_workers=False) else self._server
        if lives[used] == LAST_LIFE:
            return
        lives[used] += 1
        if used == other:  # else it hears of it when it asks
            with self._peers.calling(other) as call:
                call("ComeBack", pb.ComeBackRequest(lives=lives), ANSWER_TIMEOUT_S)
        self._core.learn(lives)
        get_logger().warning(
            "servers %d and %d were both found lost: server %d goes on with what it has",
            *(self._server, other, used),
        )
