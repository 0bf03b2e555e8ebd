"""What tickets bring: every claim beside its bound, its peer and its bar.

    python -m benchmarks.prio [--quick] [--only preempt] [--models vgg19] [--lab flat:4,1 200mbit]
                              [--ticket 3 200] [--json FILE] [--strict]

Builds labs (docs/lab.md) with links of 200 Mb/s and MTU 9000 and measures, results verified:

preempt       1 MB with ticket 0, called 0.2 s after an all_reduce of 100 MB on flat:4,1, against
              its time alone; and the large one; with measured and given rates, and where urgent
              messages share the usual connections
tickets       the same with measured rates and other tickets of the small and of the large one
server        a push_pull of 1 MB, called 0.2 s after a push of 50 MB, of three workers to the same
              parameter server, with the same tickets; and where the switch schedules
steps         a training step with DDP, with the hook, and with the schedules of
              `dmlcomm.DistributedOptimizer`, where communication takes as long as computing
auto          "auto" beside DDP and "plain" where nothing is to be gained: a tiny model on one host,
              and a small transformer on two hosts with 10 Gb/s
switch        the table of the TensorExpress paper: one server and three workers at a switch

`python -m benchmarks.prio.classifiers` compares those of the switch.

The exit code is 1 when a result is wrong, or with --strict when a bar is missed. docs/numbers.md
says what the numbers are.
"""

from benchmarks.experiments import parser_of, run_experiments
from benchmarks.prio.experiments import EXPERIMENTS
from benchmarks.prio.settings import add_choice, chosen


def main() -> None:
    parser = parser_of("benchmarks.prio", __doc__, EXPERIMENTS, "two hosts and few steps")
    add_choice(parser)
    options = parser.parse_args()
    run_experiments(options, EXPERIMENTS, chosen(options))


if __name__ == "__main__":
    main()
