"""The threads of a server beside its calls: one reads rates, one writes checkpoints."""

import threading
import time
from pathlib import Path

from dmlcomm import _core
from dmlcomm.log import get_logger
from dmlcomm.ps.protocol import PROGRESS_INTERVAL_S
from dmlcomm.ps.server.checkpoint import CheckpointDirectory
from dmlcomm.ps.server.membership import Membership
from dmlcomm.ps.server.models import Models
from dmlcomm.ps.server.status import RATE_INTERVAL_S, ServerView

SNAPSHOT_WAIT_S = 0.5
# A server that is stopped begins no further file after so long.
LAST_SNAPSHOTS_S = 5.0


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
    ) -> None:
        self._core = core
        self._directory = directory
        self._view = view
        self._membership = membership
        self._models = models
        self._stop = threading.Event()
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
        last_time = 0.0
        incarnations: dict[int, int] = {}
        workers: set[int] = set()
        for number in numbers:
            progress.begin_model()
            found, damaged = self._directory.newest(number, progress.note)
            for error in damaged:
                log.error("%s; %s is used instead", error, found.path)
            log.info("restoring %s (%d bytes)", found.path, found.path.stat().st_size)
            self._models.restore(found)
            workers.update(found.workers)
            if found.unix_time >= last_time:
                last_time, incarnations = found.unix_time, found.incarnations
            log.info(
                'model "%s": restored at clock %d from %s',
                found.description.name,
                found.clock,
                found.path,
            )
        self._membership.restore(incarnations, workers)

    def _run(self) -> None:
        while not self._stop.is_set():
            snapshot = self._core.next_snapshot(SNAPSHOT_WAIT_S)
            if snapshot is not None:
                self._write(snapshot)
            self._give_up_overdue()
        deadline = time.monotonic() + LAST_SNAPSHOTS_S
        while time.monotonic() < deadline and (snapshot := self._core.next_snapshot(0)):
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
        description = self._models.descriptions()[snapshot.model]
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
