"""The models of one server, and who provides their first values."""

import threading
import time
from dataclasses import dataclass
from typing import Any

from dmlcomm import _core
from dmlcomm.errors import PsCheckpointError
from dmlcomm.log import get_logger
from dmlcomm.ps._proto import dmlcomm_ps_pb2 as pb
from dmlcomm.ps.description import describe, difference, spec_of
from dmlcomm.ps.protocol import LIVENESS_INTERVAL_S, model_number
from dmlcomm.ps.server import refusal
from dmlcomm.ps.server.checkpoint import Checkpoint
from dmlcomm.ps.server.membership import Membership, Session
from dmlcomm.ps.server.rules import Rule


@dataclass
class _Entry:
    description: Any
    provider: Session | None = None


class Models:
    """The server's knowledge of models beside their values. Any thread may call.

    The first live server elects one worker per model to provide the first values: it sets them on
    all servers, seals the model on the others, and here last. So a model that is sealed here is
    sealed everywhere, and who waits here waits for everything. When the provider dies before, the
    next worker that waits takes its place.
    """

    def __init__(
        self, core: _core.PsServer, server: int, membership: Membership, rule: Rule | None
    ) -> None:
        self._core = core
        self._server = server
        self._membership = membership
        self._rule = rule
        self._lock = threading.Lock()
        self._entries: dict[int, _Entry] = {}

    def create(self, session: Session, description: Any, elect: bool) -> Any:
        """Creates the model, or checks that it is the one that is here. Raises Refusal."""
        number = model_number(description.name)
        with self._lock:
            entry = self._entries.get(number)
            if entry is None:
                self._create_in_core(number, description)
                entry = self._entries[number] = _Entry(description)
                get_logger().info(
                    'model "%s": created by worker %d: %s',
                    description.name,
                    session.worker,
                    describe(description),
                )
            elif entry.description != description:
                raise refusal.illegal(self._conflict(session, entry.description, description))
            sealed = bool(self._core.is_sealed(number))
            provide = elect and not sealed and self._elect(entry, session)
            return pb.CreateModelReply(model=number, sealed=sealed, provide=provide)

    def restore(self, found: Checkpoint) -> None:
        """Puts back a checkpoint before any worker comes. Raises PsCheckpointError, Refusal."""
        rule = self.rule_of(found.description)
        spec = spec_of(found.description)
        try:
            self._core.restore(found.model, spec, rule, found.clock, found.workers, found.shards)
        except ValueError as error:
            raise PsCheckpointError(
                f'checkpoint {found.path} does not fit model "{found.description.name}" of server '
                f"{self._server}: {error}; start it with the --rule that it was written with, or "
                f"with another --checkpoint"
            ) from error
        with self._lock:
            self._entries[found.model] = _Entry(found.description)

    def forget_all(self) -> None:
        with self._lock:
            self._entries.clear()

    def create_empty(self, description: Any) -> int:
        """A model that is filled from other servers; its number. Raises Refusal."""
        number = model_number(description.name)
        with self._lock:
            self._create_in_core(number, description)
            self._entries[number] = _Entry(description)
        return number

    def rule_of(self, description: Any) -> Rule | None:
        """The function that the core needs for this model. Raises Refusal."""
        if description.rule != "python":
            return None
        if self._rule is None:
            raise refusal.illegal(
                f'model "{description.name}" has rule python, and server {self._server} has none; '
                f"start all servers with --rule module:function"
            )
        return self._rule

    def seal(self, session: Session, number: int) -> None:
        entry = self._entry(number)
        self._core.seal(number)
        get_logger().info(
            'model "%s": first values provided by worker %d',
            entry.description.name,
            session.worker,
        )

    def wait(self, session: Session, number: int, wait_s: float) -> tuple[bool, bool, int]:
        """(sealed, provide, who provides): waits for the first values, or to provide them."""
        entry = self._entry(number)
        deadline = time.monotonic() + wait_s
        while True:
            remaining = max(0.0, deadline - time.monotonic())
            if self._core.wait_sealed(number, min(remaining, LIVENESS_INTERVAL_S)):
                return True, False, -1
            with self._lock:
                if self._elect(entry, session):
                    return False, True, session.worker
                provider = entry.provider.worker if entry.provider else -1
            if remaining == 0 or session.ended:
                return False, False, provider

    def descriptions(self) -> dict[int, Any]:
        with self._lock:
            return {number: entry.description for number, entry in self._entries.items()}

    def with_values(self) -> list[tuple[Any, dict[int, int]]]:
        """Descriptions of the models that have first values, and the clocks of their workers."""
        sealed = [model for model in self._core.status()["models"] if model["sealed"]]
        descriptions = self.descriptions()
        return [(descriptions[model["model"]], model["clocks"]) for model in sealed]

    def _create_in_core(self, number: int, description: Any) -> None:
        rule = self.rule_of(description)
        try:
            self._core.create_model(number, spec_of(description), rule)
        except ValueError as error:
            raise refusal.illegal(f'model "{description.name}": {error}') from error

    def _elect(self, entry: _Entry, session: Session) -> bool:
        """Whether this session's worker is the one to provide; takes over from a dead one."""
        provider = entry.provider
        if provider is not None and provider.worker != session.worker:
            if self._membership.is_alive(provider):
                return False
            get_logger().warning(
                'model "%s": worker %d, which was to provide the first values, has gone; worker %d '
                "takes its place",
                entry.description.name,
                provider.worker,
                session.worker,
            )
        entry.provider = session
        return True

    def _entry(self, number: int) -> _Entry:
        with self._lock:
            entry = self._entries.get(number)
        if entry is None:
            raise refusal.not_found(
                f"server {self._server} does not know model {number}: create it first (init)"
            )
        return entry

    def _conflict(self, session: Session, ours: Any, theirs: Any) -> str:
        if ours.name != theirs.name:
            return (
                f'model "{theirs.name}" of worker {session.worker} gets the number of model '
                f'"{ours.name}"; choose another name'
            )
        return (
            f'model "{ours.name}" of worker {session.worker} is not the one that server '
            f"{self._server} has: {difference(ours, theirs)}; use another name, or the same model "
            f"on all workers"
        )
