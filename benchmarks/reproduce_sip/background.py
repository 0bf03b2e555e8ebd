"""Traffic of the testbed's other servers: background.py LAB

Each sends to its partner in the other pod, and receives from it, as fast as the links allow. Prints
a line when all do, and ends with its input.
"""

import sys

from benchmarks.reproduce_sip.testbed import OTHERS
from dmlcomm.lab import load
from dmlcomm.lab.client import Client
from dmlcomm.topology import graph as topology


def main() -> None:
    with Client(sys.argv[1]) as client:
        graph = client.graph()
        pairs = [[topology.ends_of(graph, f"host{host}")[0] for host in pair] for pair in OTHERS]
        wanted = [load.Flow(*ends) for a, b in pairs for ends in ((a, b), (b, a))]
        with load.running(client, wanted):
            print(len(wanted), flush=True)
            sys.stdin.read()


if __name__ == "__main__":
    main()
