"""Proxies that are killed, stopped and started again at random moments, while workers train.

Every sum is compared in the workers. A run that makes no progress fails, with the stacks of all
workers on stderr.
"""

import random
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.proxy.failing_cluster import CLOCKS_AFTER, Cluster, RunError, Setting
from dmlcomm.ps.protocol import HEARTBEAT_TIMEOUT_S

WORKER = "benchmarks.proxy.failing_worker"
SHAPES = ("binary", "rack", "chain")
INNER_SHAPES = ("binary", "chain")
LAB_SHAPES = ("binary", "rack", "rack-binary", "chain")
COUNTS = (1000, 100_003, 300_001)
EVENTS_PER_CLUSTER = 10
# All kinds that a worker has, see failing_worker.
CLOCKS_BEFORE = 10

# --- events


@dataclass(frozen=True)
class Outage:
    """
    Attributes:
        seconds: until all workers went on.
        moved_s: until the workers of an inner proxy, and the proxies below it, had a new way.
    """

    seconds: float
    moved_s: float | None = None


def kill_one(cluster: Cluster, rng: random.Random) -> Outage:
    place = rng.randrange(cluster.setting.proxies)
    return _lose(cluster, rng, [place])


def kill_inner(cluster: Cluster, rng: random.Random) -> Outage:
    """A proxy with others below it, which have to find another way as well as its workers."""
    place, children = rng.choice(list(cluster.inner().items()))
    return _lose(cluster, rng, [place], children=children)


def kill_two(cluster: Cluster, rng: random.Random) -> Outage:
    return _lose(cluster, rng, rng.sample(range(cluster.setting.proxies), 2))


def kill_all(cluster: Cluster, rng: random.Random) -> Outage:
    return _lose(cluster, rng, list(range(cluster.setting.proxies)), pause_s=0)


def kill_and_return(cluster: Cluster, rng: random.Random) -> Outage:
    """The proxy is there again before the others may have noticed."""
    place = rng.randrange(cluster.setting.proxies)
    begin = time.monotonic()
    cluster.signal(place, signal.SIGKILL)
    cluster.start_proxy(place)
    cluster.wait_for_clocks("a proxy was started again")
    return Outage(time.monotonic() - begin)


def stop_one(cluster: Cluster, rng: random.Random) -> Outage:
    return _stop(cluster, rng.randrange(cluster.setting.proxies))


def stop_inner(cluster: Cluster, rng: random.Random) -> Outage:
    place, children = rng.choice(list(cluster.inner().items()))
    return _stop(cluster, place, children)


def wake_one(cluster: Cluster, rng: random.Random) -> Outage:
    """It is woken before it is missed, or while it is; seconds from then on."""
    place = rng.randrange(cluster.setting.proxies)
    cluster.signal(place, signal.SIGSTOP)
    time.sleep(rng.uniform(0, HEARTBEAT_TIMEOUT_S + 1))
    begin = time.monotonic()
    cluster.signal(place, signal.SIGCONT)
    cluster.wait_for_clocks(f"proxy {place} goes on")
    return Outage(time.monotonic() - begin)


def _stop(cluster: Cluster, place: int, children: Sequence[int] = ()) -> Outage:
    outage = _strike(cluster, place, signal.SIGSTOP, children)
    cluster.signal(place, signal.SIGCONT)
    cluster.wait_for_clocks(f"proxy {place} goes on")
    return outage


def _lose(
    cluster: Cluster,
    rng: random.Random,
    places: list[int],
    pause_s: float = 0.5,
    children: Sequence[int] = (),
) -> Outage:
    for place in places[:-1]:
        cluster.signal(place, signal.SIGKILL)
        time.sleep(rng.uniform(0, pause_s))
    outage = _strike(cluster, places[-1], signal.SIGKILL, children)
    for place in places:
        cluster.start_proxy(place)
    return outage


def _strike(
    cluster: Cluster, place: int, number: signal.Signals, children: Sequence[int]
) -> Outage:
    begin = time.monotonic()
    cluster.signal(place, number)
    cluster.wait_for_clocks(f"{number.name} for proxy {place}")
    seconds = time.monotonic() - begin
    if not children:
        return Outage(seconds)
    return Outage(seconds, cluster.moved_at(place, children, begin) - begin)


Event = Callable[[Cluster, random.Random], Outage]

EVENTS: Mapping[str, Event] = {
    "kill": kill_one,
    "kill two": kill_two,
    "kill all": kill_all,
    "kill and return": kill_and_return,
    "stop": stop_one,
    "stop and wake": wake_one,
}
INNER_EVENTS: Mapping[str, Event] = {"kill inner": kill_inner, "stop inner": stop_inner}


@dataclass(frozen=True)
class Delay:
    """
    Attributes:
        outage: all workers have gone on by CLOCKS_AFTER clocks.
        usual_s: what so many took just before the event.
    """

    outage: Outage
    usual_s: float

    @property
    def longer_s(self) -> float:
        return self.outage.seconds - self.usual_s

    def __str__(self) -> str:
        moved_s = self.outage.moved_s
        moved = "" if moved_s is None else f", moved after {moved_s:.2f} s"
        return f"{self.outage.seconds:.2f} s, usually {self.usual_s:.2f} s{moved}"


def run(times: int, seed: int, is_inner: bool, lab_hosts: int = 0) -> dict[str, list[Delay]]:
    """Delays by event; `times` events in all. Raises RunError, which names the seed.

    Args:
        is_inner: only to proxies that have others below them, of one server.
        lab_hosts: on so many hosts of a lab with two racks, servers' with them; 0: on this host.
    """
    in_lab = lab_hosts > 0

    def choose(rng: random.Random) -> Setting:
        servers = 1 if is_inner else rng.choice((1, 2))
        few = (3, 4) if is_inner else (2, 3, 4)
        shapes = INNER_SHAPES if is_inner else SHAPES
        return Setting(
            servers=servers,
            proxies=lab_hosts - servers if in_lab else rng.choice(few),
            shape=rng.choice(LAB_SHAPES if in_lab else shapes),
            count=rng.choice(COUNTS),
            in_lab=in_lab,
        )

    return _run(times, seed, choose, INNER_EVENTS if is_inner else EVENTS)


def _run(
    times: int,
    seed: int,
    choose: Callable[[random.Random], Setting],
    chosen: Mapping[str, Event],
) -> dict[str, list[Delay]]:
    delays: dict[str, list[Delay]] = {name: [] for name in chosen}
    done = 0
    while done < times:
        own_seed = seed + done
        rng = random.Random(own_seed)
        setting = choose(rng)
        events = min(EVENTS_PER_CLUSTER, times - done)
        try:
            for name, delay in _run_cluster(setting, rng, events, chosen):
                delays[name].append(delay)
                print(f"  {name}: {delay}", file=sys.stderr, flush=True)
        except RunError as error:
            raise RunError(f"--seed {own_seed} ({setting}): {error}") from error
        done += events
    return delays


def _run_cluster(
    setting: Setting, rng: random.Random, events: int, chosen: Mapping[str, Event]
) -> Iterator[tuple[str, Delay]]:
    print(setting, file=sys.stderr, flush=True)
    with Cluster(setting, WORKER) as cluster:
        if rng.random() < 0.5:  # before there is a model, maybe
            time.sleep(rng.uniform(0, 3))
            place = rng.randrange(setting.proxies)
            cluster.signal(place, signal.SIGKILL)
            cluster.start_proxy(place)
        cluster.wait_for_clocks("the workers begin")
        for _ in range(events):
            cluster.wait_for_proxies()
            usual_s = _usual_s(cluster)
            time.sleep(rng.uniform(0, 0.5))
            name = rng.choice(list(chosen))
            yield name, Delay(chosen[name](cluster, rng), usual_s)
        cluster.finish()


def _usual_s(cluster: Cluster) -> float:
    begin = time.monotonic()
    cluster.wait_for_clocks("nothing has happened", CLOCKS_BEFORE)
    return (time.monotonic() - begin) * CLOCKS_AFTER / CLOCKS_BEFORE


def report(delays: dict[str, list[Delay]]) -> str:
    """Seconds, how much longer than usual that was, and after which time children had moved."""
    figures = ("seconds", "most", "longer", "most", "moved", "most")
    lines = [f"{'event':16} {'times':>6}" + "".join(f" {figure:>8}" for figure in figures)]
    for name, of_event in delays.items():
        if of_event:
            outages = [delay.outage for delay in of_event]
            line = f"{name:16} {len(of_event):6}"
            line += _median_and_most([outage.seconds for outage in outages])
            line += _median_and_most([delay.longer_s for delay in of_event])
            moved = [outage.moved_s for outage in outages if outage.moved_s is not None]
            lines.append(line + (_median_and_most(moved) if moved else ""))
    return "\n".join(lines)


def _median_and_most(values: list[float]) -> str:
    return f" {statistics.median(values):8.2f} {max(values):8.2f}"
