"""What workers do, as data: the harness states it, `worker` does it."""

from dataclasses import dataclass

from benchmarks.training.models import MODELS
from benchmarks.training.plan import Plan, plan


@dataclass(frozen=True)
class Case:
    """Batches of a model at every worker.

    Attributes:
        model: of `benchmarks.training.models`.
        scale: of its bytes.
        compute_s: forward and backward of a batch; waited for, so that it takes no CPU time.
        steps: batches that are measured, after one to warm up.
        grouping: of gradients that are pushed together; see `benchmarks.training.plan`.
        staleness: of pulls.
        apart: no batch, but one push by all workers at once, then one pull.
        slow_every: in every such step one worker, another each time, computes ``slow_factor`` times
            as long; 0 is never.
        slow_factor: see ``slow_every``.
    """

    model: str
    scale: float
    compute_s: float = 0.0
    steps: int = 3
    grouping: str = "whole"
    staleness: int = 0
    apart: bool = False
    slow_every: int = 0
    slow_factor: float = 3.0

    @property
    def batch(self) -> Plan:
        """The events of a batch. Any FLOP/s will do, as the times are scaled to ``compute_s``."""
        found = self._plan(1e12)
        if self.compute_s:
            return self._plan(1e12 * found.compute_s / self.compute_s)
        return found

    def _plan(self, flops: float) -> Plan:
        return plan(MODELS[self.model](), 1, flops, self.scale, self.grouping)

    @property
    def model_bytes(self) -> int:
        return self.batch.gradient_bytes

    def stretch(self, worker: int, workers: int, step: int) -> float:
        """By how much computing takes longer in this step: 1 as a rule, 0 without computing."""
        if not self.compute_s:
            return 0.0
        number, rest = divmod(step + 1, self.slow_every) if self.slow_every else (0, 1)
        return self.slow_factor if rest == 0 and number % workers == worker else 1.0
