"""Chakra execution traces of MLCommons, which ASTRA-sim plays: one file per rank.

Computing has whole microseconds there. A message does not say which rail it takes.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from google.protobuf.proto import serialize_length_prefixed

from dmlcomm.planning._proto import execution_trace_pb2 as pb
from dmlcomm.planning.trace import Kind, Node

VERSION = "0.0.4"  # of the schema
_TYPES = {Kind.SEND: pb.SEND, Kind.RECEIVE: pb.RECEIVE, Kind.COMPUTE: pb.COMPUTE}


def write(ranks: Sequence[Sequence[Node]], path: Path, title: str) -> None:
    """Writes PATH.0.et, PATH.1.et and so on, where ``path`` is PATH.et. Raises OSError.

    ``title``: an attribute of each file.
    """
    for rank, nodes in enumerate(ranks):
        with path.with_suffix(f".{rank}.et").open("wb") as file:
            note = pb.Attribute(name="dmlcomm", text=title)
            serialize_length_prefixed(pb.Metadata(version=VERSION, attributes=[note]), file)
            for position, node in enumerate(nodes):
                serialize_length_prefixed(_message(rank, position, node), file)


def _message(rank: int, position: int, node: Node) -> pb.Node:
    return pb.Node(
        id=position,
        name=f"{node.kind.value} {position}",
        type=_TYPES[node.kind],
        waits_for=node.after,
        duration_us=round(node.seconds * 1e6),
        attributes=_attributes(rank, node),
    )


def _attributes(rank: int, node: Node) -> Iterator[pb.Attribute]:
    yield pb.Attribute(name="is_cpu_op", flag=node.kind is Kind.COMPUTE)
    if node.kind is Kind.COMPUTE:
        return
    ends = (rank, node.peer) if node.kind is Kind.SEND else (node.peer, rank)
    yield pb.Attribute(name="comm_size", large=node.num_bytes)
    for name, value in (
        ("comm_src", ends[0]),
        ("comm_dst", ends[1]),
        ("comm_tag", node.tag),
    ):
        yield pb.Attribute(name=name, small=value)
