"""GOAL, the text format of LogGOPSim and ATLAHS: one file for all ranks.

`Goal <https://spcl.inf.ethz.ch/Research/Performance/LogGOPSim/>`_ counts computing in nanoseconds.
The number of a rail is that of the NIC; a message on all rails has NIC 0.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from dmlcomm.planning.trace import Kind, Node


def write(ranks: Sequence[Sequence[Node]], path: Path, title: str) -> None:
    """Raises OSError. ``title``: a comment in the first line."""
    with path.open("w", encoding="utf-8") as file:
        file.write(f"// {title}\nnum_ranks {len(ranks)}\n")
        for rank, nodes in enumerate(ranks):
            file.write(f"\nrank {rank} {{\n")
            for position, node in enumerate(nodes):
                file.writelines(f"{line}\n" for line in _lines(position, node))
            file.write("}\n")


def _lines(position: int, node: Node) -> Iterator[str]:
    if node.kind is Kind.COMPUTE:
        what = str(round(node.seconds * 1e9))
    else:
        towards = "to" if node.kind is Kind.SEND else "from"
        what = f"{node.num_bytes}b {towards} {node.peer} tag {node.tag}"
        what += f" nic {node.rail}" if node.rail else ""
    yield f"l{position}: {node.kind.value} {what}"
    for before in node.after:
        yield f"l{position} requires l{before}"
