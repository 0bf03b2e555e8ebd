"""What the workers of a host have in common: one process, a thread each, and lines on what they do.

A worker prints "clock WORKER CLOCK BY_PROXY" for each clock, and "error ..." when it fails.
"""

import argparse
import os
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

from benchmarks.arguments import list_of

TIMEOUT_S = 60.0


def say(line: str) -> None:
    """In one piece, as several threads do."""
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


def run(options: argparse.Namespace, train: Callable[[int], None]) -> NoReturn:
    """``train`` with the number of each worker of this host. The exit code is 1 if one fails."""
    failed = threading.Event()

    def work(worker: int) -> None:
        try:
            train(worker)
        except BaseException as error:
            failed.set()
            say(f"error worker {worker}: {error!r}")
            raise

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in options.numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.exit(1 if failed.is_set() else 0)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--servers", required=True)
    parser.add_argument("--proxy", required=True)
    parser.add_argument("--numbers", type=list_of(int))
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    return parser.parse_args()
