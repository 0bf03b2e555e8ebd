"""The demo's LeNet-5 learns by proxies as it does directly, also when one is killed in the middle.

Servers, proxies and workers are processes of this host or on hosts of a lab. All workers end with
the same weights. Two runs may differ in their last bits: sums of floats that go another way have
another order.
"""

import signal
import statistics
from dataclasses import dataclass

from benchmarks.proxy.failing_cluster import Cluster, RunError, Setting

WORKER = "benchmarks.proxy.training_worker"
STEPS = 120
# Of ten digits: who guesses gets a tenth of them.
LEAST_ACCURACY = 0.93
# 11 of 360 images: what other last bits may cost in so few steps.
MARGIN = 0.03
ENDS_WITHIN_S = 300.0


@dataclass(frozen=True)
class Training:
    """Figures of a run: on the test set, and seconds of steps of all workers."""

    case: str
    accuracy: float
    loss: float
    median_s: float
    longest_s: float


def run(in_lab: bool) -> list[Training]:
    """On four hosts of a lab, or on this host.

    Raises RunError when a run fails, or has not learnt as the first one did.
    """
    trainings = [
        train("directly", STEPS, by_proxies=False, in_lab=in_lab),
        train("by proxies", STEPS, in_lab=in_lab),
        train("a proxy is killed", STEPS, kill_at=STEPS // 2, in_lab=in_lab),
    ]
    least = max(LEAST_ACCURACY, trainings[0].accuracy - MARGIN)
    for training in trainings:
        if training.accuracy < least:
            raise RunError(f"{training}: expected an accuracy of at least {least:.3f}")
    return trainings


def train(
    case: str,
    steps: int,
    *,
    by_proxies: bool = True,
    kill_at: int | None = None,
    in_lab: bool = False,
) -> Training:
    """One run; the proxy of half of the workers is killed when all have made `kill_at` steps.

    Raises RunError when it hangs, a worker fails, or workers end with different weights.
    """
    setting = Setting(servers=2, proxies=2, shape="chain", count=steps, in_lab=in_lab)
    with Cluster(setting, WORKER, by_proxies) as cluster:
        if kill_at is not None:
            cluster.wait("the workers begin", lambda p: _min_clock(p.clocks, setting) >= kill_at)
            cluster.signal(0, signal.SIGKILL)
            cluster.wait(
                "workers go directly", lambda p: p.ended > 0 or not all(p.by_proxy.values())
            )
            cluster.start_proxy(0)
        cluster.wait("training ends", lambda p: p.ended == setting.proxies, ENDS_WITHIN_S)
        results = list(cluster.progress.results.values())
    if len(results) != setting.workers or len({tuple(r[:3]) for r in results}) != 1:
        raise RunError(f"{case}: workers end with different weights: {results}")
    accuracy, loss = results[0][:2]
    median_s = statistics.median(result[3] for result in results)
    return Training(case, accuracy, loss, median_s, max(result[4] for result in results))


def _min_clock(clocks: dict[int, int], setting: Setting) -> int:
    return min(clocks.get(worker, 0) for worker in range(setting.workers))


def report(trainings: list[Training]) -> str:
    lines = [f"{'training':18} {'accuracy':>8} {'loss':>7} {'step ms':>8} {'longest ms':>10}"]
    lines += [
        f"{t.case:18} {t.accuracy:8.3f} {t.loss:7.4f} {t.median_s * 1e3:8.1f} "
        f"{t.longest_s * 1e3:10.1f}"
        for t in trainings
    ]
    return "\n".join(lines)
