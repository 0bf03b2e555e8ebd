"""The threads of a server beside its calls: one reads rates, one writes checkpoints."""

import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dmlcomm import _core
from dmlcomm.log import get_logger
from dmlcomm.ps._proto import dmlcomm_ps_pb2 as pb
from dmlcomm.ps.protocol import PROGRESS_INTERVAL_S
from dmlcomm.ps.server import refusal
from dmlcomm.ps.server.checkpoint import Checkpoint, CheckpointDirectory
from dmlcomm.ps.server.membership import Membership
from dmlcomm.ps.server.models import Models
from dmlcomm.ps.server.rates import RATE_INTERVAL_S
from dmlcomm.ps.server.status import ServerView, alive_workers

SNAPSHOT_WAIT_S = 0.5
# A server that is stopped begins no further file after so long.
LAST_SNAPSHOTS_S = 5.0
# How long it waits for the end of a clock, which workers that live may bring about.
LAST_CLOCK_S = 1.0


class RateReader:
    """Reads the counters of the NICs once a second. Losses of workers are logged by the core."""

    def __init__(self, core: _core.PsServer, view: ServerView) -> None:
        self._core = core
        self._view = view
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dmlcomm-ps-rates", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(RATE_INTERVAL_S):
            self._view.read_rates(self._core.status())


class RestoreProgress:
    """Says every few seconds how far the models are that a server reads when it starts."""

    def __init__(self, num_models: int) -> None:
        self._num_models = num_models
        self._model = 0
        self._next_line = time.monotonic() + PROGRESS_INTERVAL_S

    def begin_model(self) -> None:
        self._model += 1

    def note(self, path: Path, done: int, total: int) -> None:
        now = time.monotonic()
        if now < self._next_line:
            return
        self._next_line = now + PROGRESS_INTERVAL_S
        get_logger().warning(
            "restoring model %d of %d: %.0f %% of %s (%d of %d bytes)",
            self._model,
            self._num_models,
            100 * done / total,
            path,
            done,
            total,
        )


class Checkpoints:
    """Restores the models of a directory, then writes snapshots of the core to it."""

    def __init__(
        self,
        core: _core.PsServer,
        directory: CheckpointDirectory,
        every: int,
        view: ServerView,
        membership: Membership,
        models: Models,
        allow_mixed_clocks: bool = False,
    ) -> None:
        self._core = core
        self._directory = directory
        self._view = view
        self._membership = membership
        self._models = models
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._restored: dict[int, Checkpoint] = {}  # by model
        self._may_go_back = not allow_mixed_clocks
        core.set_checkpoint_every(every)
        try:
            self._restore()
        except BaseException:
            directory.close()
            raise
        self._thread = threading.Thread(target=self._run, name="dmlcomm-ps-checkpoint", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._directory.close()

    def _restore(self) -> None:
        """Raises PsCheckpointError, or Refusal for a rule that is not here."""
        log = get_logger()
        numbers = self._directory.models()
        progress = RestoreProgress(len(numbers))
        for number in numbers:
            progress.begin_model()
            found, damaged = self._directory.newest(number, progress.note)
            for error in damaged:
                log.error("%s; %s is used instead", error, found.path)
            log.info("restoring %s (%d bytes)", found.path, found.path.stat().st_size)
            self._use(found)
        self._tell_membership()

    def _use(self, found: Checkpoint) -> None:
        self._models.restore(found)
        # Without the weights, which the core has now.
        self._restored[found.model] = replace(found, shards=[])
        get_logger().info(
            'model "%s": restored at clock %d from %s',
            found.description.name,
            found.clock,
            found.path,
        )

    def _tell_membership(self) -> None:
        workers = {worker for found in self._restored.values() for worker in found.workers}
        newest = max(self._restored.values(), key=lambda found: found.unix_time, default=None)
        self._membership.restore(newest.incarnations if newest else {}, workers)

    def restored(self) -> Any:
        """The reply to `Restored`: what was read, and what could have been."""
        with self._lock:
            models = [
                pb.RestoredModel(
                    model=number,
                    name=found.description.name,
                    clock=found.clock,
                    older=[c for c in self._directory.clocks(number) if c < found.clock],
                )
                for number, found in self._restored.items()
            ]
            return pb.RestoredReply(models=models, may_go_back=self._may_go_back)

    def go_back(self, clocks: Mapping[int, int]) -> None:
        """Before any worker has registered: uses older checkpoints of these models.

        Raises PsCheckpointError, or Refusal if a worker has.
        """
        with self._lock:
            for number, clock in clocks.items():
                found = self._restored.get(number)
                if found is None or found.clock <= clock:
                    continue  # another worker was faster
                if not self._may_go_back:
                    raise refusal.illegal(
                        f'model "{found.description.name}" is in use at clock {found.clock}: it '
                        f"cannot go back to clock {clock}"
                    )
                get_logger().warning(
                    'model "%s": back from clock %d to %d, which all servers have',
                    *(found.description.name, found.clock, clock),
                )
                self._use(self._directory.go_back(number, clock))
            self._tell_membership()

    def begin(self) -> None:
        """A worker registers: the clocks stay what they are."""
        with self._lock:
            self._may_go_back = False

    def _run(self) -> None:
        while not self._stop.is_set():
            snapshot = self._core.next_snapshot(SNAPSHOT_WAIT_S)
            if snapshot is not None:
                self._write(snapshot)
            self._give_up_overdue()
        self._write_last()

    def _write_last(self) -> None:
        """Of the clock at which this server stops, and of the next if workers are about to end it.

        Servers that are stopped together may be one clock apart: so they have one in common.
        """
        self._core.stop_clocks()
        deadline = time.monotonic() + LAST_SNAPSHOTS_S
        while (remaining := deadline - time.monotonic()) > 0:
            wait_s = LAST_CLOCK_S if alive_workers(self._core.status()) else 0.0
            snapshot = self._core.next_snapshot(min(wait_s, remaining))
            if snapshot is None:
                return
            self._write(snapshot)

    def _give_up_overdue(self) -> None:
        for worker in sorted(self._membership.take_overdue()):
            get_logger().warning(
                "worker %d was there when the checkpoint was written, and has not come back within "
                "%g s (--rejoin-timeout); the others go on without it",
                worker,
                self._membership.rejoin_timeout_s,
            )
            self._core.give_up(worker)

    def _write(self, snapshot: _core.PsSnapshot) -> None:
        begin = time.monotonic()
        description = self._models.descriptions().get(snapshot.model)
        if description is None:  # this server was lost meanwhile
            return
        try:
            path = self._directory.write(
                snapshot.model,
                description,
                snapshot.clock,
                snapshot.workers,
                snapshot.shards(),
                self._membership.incarnations(),
            )
        except Exception as error:
            # The next one may succeed, and training does not need this one.
            get_logger().error(
                'model "%s": no checkpoint of clock %d written: %s; those before stay',
                *(description.name, snapshot.clock, error),
                exc_info=not isinstance(error, OSError),
            )
            self._view.add_checkpoint_failure(description.name, str(error))
            return
        self._view.add_checkpoint(description.name, snapshot.clock)
        get_logger().info(
            'model "%s": clock %d is in %s, after %.2f s',
            description.name,
            snapshot.clock,
            path,
            time.monotonic() - begin,
        )
