"""Hooks that send fewer bytes, beside plain DDP.

    python -m benchmarks.hooks [--quick] [--only communication] [--json FILE] [--strict]

communication  a step of VGG-16 between four hosts of a lab with one link of 200 Mb/s each: by how
               much it is longer than one without communication; nothing is computed meanwhile
accuracy       that of the demo's LeNet-5 after its training on 4 ranks of this host, with several
               seeds

The exit code is 1 when an average is wrong, or with --strict when a bar is missed. docs/numbers.md
says what the numbers are.
"""

from benchmarks.experiments import parser_of, run_experiments
from benchmarks.hooks.accuracy import accuracy
from benchmarks.hooks.communication import communication
from benchmarks.hooks.settings import FULL, QUICK

EXPERIMENTS = {"communication": communication, "accuracy": accuracy}


def main() -> None:
    options = parser_of(
        "benchmarks.hooks", __doc__, EXPERIMENTS, "two hosts, small models and few epochs"
    ).parse_args()
    run_experiments(options, EXPERIMENTS, QUICK if options.quick else FULL)


if __name__ == "__main__":
    main()
