"""One worker of `benchmarks.ps`: repeats a call and prints its times as JSON.

    python -m benchmarks.ps.worker --servers HOST:PORT --worker 0 --workers 2 --bytes N \
        --call push_and_pull|push_pull --repeats R [--transport tcp]

Worker w pushes (i mod 1000) + w in element i, times the step; the model becomes the mean, which is
exact in float32, and every result is compared.
"""

import argparse
import json
import time

import numpy as np

from dmlcomm.ps import Client

MODEL = "benchmark"
WARM_UP = 3


def main() -> None:
    options = _parse()
    with Client(options.servers, worker=options.worker, transport=options.transport) as client:
        print(json.dumps(_measure(client, options)), flush=True)


def _measure(client: Client, options: argparse.Namespace) -> dict:
    count = max(1, options.bytes // 4)
    pattern = (np.arange(count) % 1000).astype(np.float32)
    weights = np.zeros(count, np.float32)
    client.init(MODEL, weights, rule="assign")
    push_s, pull_s, both_s, wrong = [], [], [], 0
    for step in range(WARM_UP + options.repeats):
        gradient = pattern + np.float32(options.worker * (step + 1))
        if step == options.report_step:
            print(f"step {step}", flush=True)
        if options.workers > 1 and not options.no_barrier:
            client.barrier()
        began = time.perf_counter()
        if options.call == "push_pull":
            client.push_pull(MODEL, gradient, out=weights)
            pushed = time.perf_counter()
        else:
            client.push(MODEL, gradient)
            pushed = time.perf_counter()
            client.clock()
            client.pull(MODEL, out=weights)
        ended = time.perf_counter()
        mean = np.float32((options.workers - 1) / 2 * (step + 1))
        wrong += int(np.count_nonzero(weights != pattern + mean))
        if step >= WARM_UP:
            push_s.append(pushed - began)
            pull_s.append(ended - pushed)
            both_s.append(ended - began)
    steps = WARM_UP + options.repeats
    times = {"push_s": push_s, "pull_s": pull_s, "both_s": both_s}
    return times | {"wrong": wrong, "steps": steps}


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ps.worker")
    parser.add_argument("--servers", required=True)
    parser.add_argument("--worker", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--call", choices=["push_and_pull", "push_pull"], required=True)
    parser.add_argument("--repeats", type=int, required=True)
    parser.add_argument("--transport", default="auto")
    parser.add_argument("--no-barrier", action="store_true", help="do not begin steps together")
    parser.add_argument("--report-step", type=int, default=-1, help="print a line when it begins")
    return parser.parse_args()


if __name__ == "__main__":
    main()
