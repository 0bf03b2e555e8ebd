"""``python -m benchmarks``: the collectives side by side, a few minutes. `make bench` runs this.

``python -m benchmarks.bars`` measures and judges everything and takes longer.
"""

import sys

from benchmarks import collectives

DEFAULTS = [
    *("-o", "all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"),
    *("-b", "1K", "-e", "64M", "-f", "16"),
    *("--ranks", "2,4", "--seconds", "0.25"),
]

if __name__ == "__main__":
    # Later arguments win, so that every flag of benchmarks.collectives can be given here.
    sys.argv[1:1] = DEFAULTS
    collectives.main()
