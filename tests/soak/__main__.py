"""Random operations under random faults, with all results compared.

    PYTHONPATH=tests python -m soak --seed 7 --seconds 120

Ranks of process groups on this host and in labs, trainings under DDP, also in groups that shrink or
are reconfigured, and workers of parameter servers, directly, by proxies and in labs, are killed and
replaced, stopped, cut off, their connections reset, their time of day changed. A wrong sum, an
update that is lost or doubled, memory or descriptors that grow, and whatever does not go on are
failures, with the stacks of all processes and what `dmlcomm inspect` says. A seed gives the same
operations and faults; when they meet is up to the machine.

A round has 10 faults, then all processes are new. With --faults-per-round 200, processes that live
long show whether they hold more and more: the soak prints by how much.

Each fault is printed, and at the end how many there were and what went wrong. After a failure the
next round begins; after five the soak ends, as by SIGINT and SIGTERM. The exit code is 1 if
anything was wrong.
"""

import argparse
import functools
import math
import random
import signal
import statistics
import sys
import time
from collections import Counter, defaultdict

from torch.distributed import distributed_c10d

from dmlcomm.lab import Lab, LabError
from soak import groups, servers
from soak.faults import Failure, SoakError
from soak.growth import Growth

FAULTS_PER_ROUND = 10  # by default
MOST_FAILURES = 5
SECONDS = 120.0
KINDS = {
    "groups": groups.HERE,
    "labs": groups.IN_LABS,
    "ddp": groups.DDP_HERE,
    "ddp-labs": groups.DDP_IN_LABS,
    "elastic": groups.ELASTIC,
    "servers": servers.SETTINGS,
    "server-labs": servers.IN_LABS,
    "proxies": servers.BY_PROXIES,
}
ELASTIC_FUNCTIONS = ("shrink_group", "_reconfigure")
IN_LABS = ("labs", "ddp-labs", "server-labs")

Setting = groups.Setting | servers.Setting


def main() -> None:
    options = _parse()
    seconds: dict[str, list[float]] = defaultdict(list)
    failures = _soak(options, seconds)
    print(report(seconds))
    print(verdict(sum(map(len, seconds.values())), failures))
    sys.exit(int(failures.total() > 0))


def _soak(options: argparse.Namespace, seconds: dict[str, list[float]]) -> Counter[Failure]:
    """Adds the seconds of each fault."""
    settings = [setting for kind in _possible(options.only) for setting in KINDS[kind]]
    deadline = time.monotonic() + options.seconds
    failures: Counter[Failure] = Counter()
    seed, left = options.seed, options.faults
    while time.monotonic() < deadline and left > 0 and failures.total() < MOST_FAILURES:
        setting = random.Random(seed).choice(settings)
        print(f"--seed {seed}: {setting}", flush=True)
        growth = Growth()
        try:
            with _round(setting, seed) as job:
                for event in job.events(int(min(options.faults_per_round, left))):
                    growth.note(job.processes())
                    left -= 1
                    seconds[event.name].append(event.seconds)
                    done = sum(map(len, seconds.values()))
                    print(f"  {done:5} {event.name}: {event.seconds:.2f} s", flush=True)
                    if time.monotonic() > deadline:
                        break
            growth.check()
        except SoakError as error:
            failures[error.failure] += 1
            left -= 1
            print(f"{error.failure.value}: {error.within(f'--seed {seed}: {setting}')}", flush=True)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            break
        finally:
            print(*(f"  {line}\n" for line in growth.report()), sep="", end="", flush=True)
        seed += 1
    return failures


def _round(setting: Setting, seed: int) -> groups.Round | servers.Round:
    if isinstance(setting, groups.Setting):
        return groups.Round(setting, seed)
    return servers.Round(setting, seed)


@functools.cache
def _lab_is_possible() -> bool:
    try:
        with Lab("flat:1,1", loss="1%"):
            return True
    except LabError as error:
        print(f"without labs: {error}")
        return False


def _elastic_is_possible() -> bool:
    missing = [name for name in ELASTIC_FUNCTIONS if not hasattr(distributed_c10d, name)]
    if missing:
        print(f"without elastic groups: this torch has no {missing[0]}")
    return not missing


def _possible(kinds: list[str]) -> list[str]:
    """Raises SystemExit if none is."""
    possible = [kind for kind in kinds if kind not in IN_LABS or _lab_is_possible()]
    if "elastic" in possible and not _elastic_is_possible():
        possible.remove("elastic")
    return possible or sys.exit("none of these kinds of rounds is possible here")


def report(seconds: dict[str, list[float]]) -> str:
    """A table of faults, with the time until all went on."""
    lines = [f"{'fault':24} {'times':>6} {'median s':>9} {'most s':>7}"]
    for name, values in sorted(seconds.items()):
        median = statistics.median(values)
        lines.append(f"{name:24} {len(values):6} {median:9.2f} {max(values):7.2f}")
    return "\n".join(lines)


def verdict(num_faults: int, failures: Counter[Failure]) -> str:
    """One line: faults that have passed, and how often each kind of failure came."""
    counts = ", ".join(f"{failures[kind]} {kind.value}" for kind in Failure)
    return f"{num_faults} faults: {counts}"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m soak", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=int(time.time()), help="default: the time")
    parser.add_argument(
        "--seconds", type=float, help=f"default: {SECONDS:g}, without end where --faults is given"
    )
    parser.add_argument("--hours", type=float, default=0.0, help="instead of --seconds")
    parser.add_argument("--faults", type=int, help="ends after so many")
    parser.add_argument(
        "--faults-per-round",
        type=int,
        default=FAULTS_PER_ROUND,
        help=f"until all processes are started anew; default: {FAULTS_PER_ROUND}",
    )
    parser.add_argument(
        "--only", nargs="+", choices=KINDS, default=list(KINDS), help="kinds of rounds"
    )
    options = parser.parse_args()
    if options.seconds is None:
        options.seconds = 3600 * options.hours or (math.inf if options.faults else SECONDS)
    options.faults = math.inf if options.faults is None else options.faults
    return options


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    main()
