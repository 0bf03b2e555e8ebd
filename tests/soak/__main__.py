"""Random operations under random faults, with all results compared.

    PYTHONPATH=tests python -m soak --seed 7 --seconds 120

Ranks of process groups on this host and in labs, trainings under DDP, and workers of parameter
servers, directly and by proxies, are killed and replaced, stopped, cut off, their connections
reset, their time of day changed. A wrong sum, an update that is lost or doubled, memory or
descriptors that grow, and whatever does not go on are failures, with the stacks of all processes
and what `dmlcomm inspect` says. A seed gives the same operations and faults; when
they meet is up to the machine.
"""

import argparse
import functools
import random
import statistics
import sys
import time
from collections import defaultdict

from dmlcomm.lab import Lab, LabError
from soak import groups, servers
from soak.members import SoakError

FAULTS_PER_ROUND = 10
KINDS = {
    "groups": groups.HERE,
    "labs": groups.IN_LABS,
    "ddp": groups.DDP_HERE,
    "ddp-labs": groups.DDP_IN_LABS,
    "servers": servers.SETTINGS,
    "proxies": servers.BY_PROXIES,
}
IN_LABS = ("labs", "ddp-labs")

Setting = groups.Setting | servers.Setting


def main() -> None:
    options = _parse()
    seconds: dict[str, list[float]] = defaultdict(list)
    try:
        _soak(options, seconds)
    except SoakError as error:
        sys.exit(f"{error}\n\n{report(seconds)}")
    print(report(seconds))


def _soak(options: argparse.Namespace, seconds: dict[str, list[float]]) -> None:
    """Adds the seconds of each fault. Raises SoakError."""
    settings = [setting for kind in _possible(options.only) for setting in KINDS[kind]]
    deadline = time.monotonic() + options.seconds
    seed, done = options.seed, 0
    while time.monotonic() < deadline and (options.faults is None or done < options.faults):
        setting = random.Random(seed).choice(settings)
        print(f"--seed {seed}: {setting}", flush=True)
        count = min(FAULTS_PER_ROUND, (options.faults or sys.maxsize) - done)
        try:
            with _round(setting, seed) as job:
                for event in job.events(count):
                    done += 1
                    seconds[event.name].append(event.seconds)
                    print(f"  {done:5} {event.name}: {event.seconds:.2f} s", flush=True)
                    if time.monotonic() > deadline:
                        break
        except SoakError as error:
            raise SoakError(f"--seed {seed}: {setting}: {error}") from error
        seed += 1


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


def _possible(kinds: list[str]) -> list[str]:
    return [kind for kind in kinds if kind not in IN_LABS or _lab_is_possible()]


def report(seconds: dict[str, list[float]]) -> str:
    """A table of faults, with the time until all went on."""
    lines = [f"{'fault':24} {'times':>6} {'median s':>9} {'most s':>7}"]
    for name, values in sorted(seconds.items()):
        median = statistics.median(values)
        lines.append(f"{name:24} {len(values):6} {median:9.2f} {max(values):7.2f}")
    return "\n".join(lines)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m soak", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=int(time.time()), help="default: the time")
    parser.add_argument("--seconds", type=float, default=120.0, help="default: %(default)g")
    parser.add_argument("--hours", type=float, default=0.0, help="instead of --seconds")
    parser.add_argument("--faults", type=int, help="ends after so many")
    parser.add_argument(
        "--only", nargs="+", choices=KINDS, default=list(KINDS), help="kinds of rounds"
    )
    options = parser.parse_args()
    options.seconds = 3600 * options.hours or options.seconds
    return options


if __name__ == "__main__":
    main()
