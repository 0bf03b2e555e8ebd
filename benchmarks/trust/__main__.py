"""How soon a job goes on after a fault, and what strangers, sleepers and checksums cost.

    python -m benchmarks.trust [--quick] [--only shrink,inspect] [--json FILE] [--strict]

The bound is the bar where a case has one in seconds; what is compared is measured beside it.

shrink        SIGKILL of one of four ranks that train with DDP, until the survivors have shrunk
              their group and made a step: at most 2 s, with equal weights
reconfigure   a process takes the place of a killed rank, from its start as a member until all four
              have made a step: at most 5 s, with equal weights; torch 2.15
strangers     a step of DDP on two ranks while a stranger opens 1,000 connections per second to
              them and sends garbage, for 30 s: at most 1.1 x the time without
sleeper       300,000 broadcasts of one element to a rank that sleeps: at most 64 MiB more on
              either rank, and at most 1.1 x twice the time of half as many
inspect       `dmlcomm inspect` while a rank holds the interpreter's lock: it names the rank and the
              operation within 1 s
checksums     all_reduce of 64 MiB over TCP with DMLCOMM_CHECKSUM=crc32c: at least 0.9 x as fast as
              without

Results are compared; the exit code is 1 when one is wrong, or with --strict when a bar is missed.
docs/numbers.md says what the numbers are.
"""

from benchmarks.experiments import parser_of, run_experiments
from benchmarks.trust import checksums, elastic, inspection, sleeper, strangers

EXPERIMENTS = {
    "shrink": elastic.shrink,
    "reconfigure": elastic.reconfigure,
    "strangers": strangers.rows,
    "sleeper": sleeper.rows,
    "inspect": inspection.rows,
    "checksums": checksums.rows,
}


def main() -> None:
    parser = parser_of("benchmarks.trust", __doc__, EXPERIMENTS, "short runs and smaller counts")
    options = parser.parse_args()
    run_experiments(options, EXPERIMENTS, options.quick)


if __name__ == "__main__":
    main()
