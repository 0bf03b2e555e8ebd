"""Jobs of more hosts than other tests have: every operation, and no host forwards.

As a program (`python tests/test_many_hosts.py bcube:8,2`): the same on a network of any size.
"""

import sys

import pytest

from dmlcomm.lab import Lab, Options
from dmlcomm.topology.graph import hosts
from helpers.multi_nic import EVERY_OPERATION, OBJECTS, expect_fine, run

# Messages between all pairs are part of it: of hosts that share no switch, other ranks relay them.
COUNTS = "COUNTS = (3, 20_003)\n"


def check(topology: str) -> None:
    with Lab(topology, options=Options(forwarding=False)) as lab:
        result = run(lab, COUNTS + EVERY_OPERATION + OBJECTS + "fine()")
        expect_fine(result, len(hosts(lab.graph())))


@pytest.mark.parametrize("topology", ["flat:12,2", "bcube:4,2"])
def test_every_operation_works_on_many_hosts(lab_is_possible, topology):
    check(topology)


if __name__ == "__main__":
    check(sys.argv[1])
