"""What several NICs per host bring: every claim beside its bound, its peer and its bar.

    python -m benchmarks.multi_nic [--quick] [--only bcube,small] [--case TEXT …] [--size SIZE …]
                                   [--json FILE] [--strict]

Builds labs (docs/lab.md) with links of 200 Mb/s and MTU 9000 and measures, results verified:

bcube         one bucket on BCube, against the bound and gloo with one NIC on as many hosts
buckets       one bucket, and four at once, against gloo that is given both NICs of flat:9,2
beside        64 KiB while a bucket is reduced, against 64 KiB alone, and the bucket against gloo
unequal       NICs of 200 and 50 Mb/s, against the bound of both
unknown-rates rates that nobody gives, MTU 1500: 12.5 MB, and 64 KiB against algorithms by hand
unkind        rates that change, traffic of others, loss, slow directions, no forwarding, as above
congestion    congestion controls of TCP and pacing, MTU 1500, several senders at a port
shared-hosts  two ranks on every host, against the bound of the hosts
link-down     a cable is pulled during an all_reduce and put back: stall, speed, bits of the result
small         64 KiB on links without a rate, against gloo

The exit code is 1 when a result is wrong, or with --strict when a bar is missed. docs/numbers.md
says what the numbers are.
"""

import argparse
from dataclasses import replace

from benchmarks.experiments import parser_of, run_experiments
from benchmarks.multi_nic.experiments import EXPERIMENTS
from benchmarks.multi_nic.settings import FULL, QUICK
from dmlcomm.planning.network import PlanError
from dmlcomm.planning.sizes import parse_size


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except PlanError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def main() -> None:
    quick = "four hosts and small tensors"
    parser = parser_of("benchmarks.multi_nic", __doc__, EXPERIMENTS, quick)
    parser.add_argument(
        "--case",
        action="append",
        default=[],
        metavar="TEXT",
        help="of unknown-rates and unkind, only cases with this in their name; may be repeated",
    )
    parser.add_argument(
        "--size",
        action="append",
        type=_size,
        metavar="SIZE",
        help="of unknown-rates, instead of 12.5MB and 64KiB; may be repeated",
    )
    options = parser.parse_args()
    settings = replace(QUICK if options.quick else FULL, only_cases=tuple(options.case))
    if options.size:
        settings = replace(settings, unknown_sizes=tuple(options.size))
    run_experiments(options, EXPERIMENTS, settings)


if __name__ == "__main__":
    main()
