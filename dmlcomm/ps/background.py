"""The threads of a server beside its calls: one reads rates, one writes checkpoints."""

import threading
import time

from dmlcomm import _core
from dmlcomm.log import get_logger
from dmlcomm.ps.checkpoint import CheckpointDirectory
from dmlcomm.ps.models import Models
from dmlcomm.ps.protocol import PROGRESS_INTERVAL_S
from dmlcomm.ps.status import RATE_INTERVAL_S, ServerView

SNAPSHOT_WAIT_S = 0.5


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


class Checkpoints:
    """Restores what a directory holds, then writes to it whatever the core has ready."""

    def __init__(
        self,
        core: _core.PsServer,
        directory: CheckpointDirectory,
        every: int,
        view: ServerView,
        models: Models,
    ) -> None:
        self._core = core
        self._directory = directory
        self._view = view
        self._models = models
        self._stop = threading.Event()
        core.set_checkpoint_every(every)
        self._restore()
        self._thread = threading.Thread(target=self._run, name="dmlcomm-ps-checkpoint", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _restore(self) -> None:
        """Raises PsCheckpointError, or Refusal for a rule that is not here."""
        log = get_logger()
        models = self._directory.models()
        last_line = time.monotonic()
        for done, number in enumerate(models):
            if time.monotonic() - last_line > PROGRESS_INTERVAL_S:
                last_line = time.monotonic()
                log.warning("restored %d of %d models", done, len(models))
            found, damaged = self._directory.newest(number)
            for error in damaged:
                log.error("%s; %s is used instead", error, found.path)
            log.info("restoring %s (%d bytes)", found.path, found.path.stat().st_size)
            self._models.restore(found)
            log.info(
                'model "%s": restored at clock %d from %s',
                found.description.name,
                found.clock,
                found.path,
            )

    def _run(self) -> None:
        while not self._stop.is_set():
            snapshot = self._core.next_snapshot(SNAPSHOT_WAIT_S)
            if snapshot is not None:
                self._write(snapshot)

    def _write(self, snapshot: _core.PsSnapshot) -> None:
        begin = time.monotonic()
        description = self._models.descriptions()[snapshot.model]
        try:
            path = self._directory.write(
                snapshot.model, description, snapshot.clock, snapshot.workers, snapshot.shards()
            )
        except OSError as error:
            # The next one may succeed, and training does not need this one.
            get_logger().error('model "%s": no checkpoint written: %s', description.name, error)
            return
        self._view.add_checkpoint(description.name, snapshot.clock)
        get_logger().info(
            'model "%s": clock %d is in %s, after %.2f s',
            description.name,
            snapshot.clock,
            path,
            time.monotonic() - begin,
        )
