"""``dmlcomm plan --trace``: the schedules of all ranks, for other simulators."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from google.protobuf.proto import parse_length_prefixed

from dmlcomm.planning import commands, network, schedules, trace
from dmlcomm.planning._proto import execution_trace_pb2 as pb
from dmlcomm.planning.trace import Kind, Node

SIZE = 1_000_000
NODE = re.compile(
    r"l(\d+): (?:calc (\d+)|(send|recv) (\d+)b (?:to|from) (\d+) tag (\d+)(?: nic (\d+))?)"
)
CASES = [
    ("flat:4,2", "ring"),
    ("flat:5,1", "tree"),
    ("bcube:3,2", "bml"),
    ("grid:2x3", "bml_ring"),
]


def traced(path, topology, algorithm, op="all_reduce"):
    arguments = ["--topology", topology, "--rate", "200mbit", "--size", str(SIZE), "--op", op]
    result = CliRunner().invoke(
        commands.plan, [*arguments, "--algorithm", algorithm, "--trace", str(path)]
    )
    assert result.exit_code == 0, result.output
    return result


def nodes_of(topology, algorithm):
    planned = network.parse(topology, "200mbit")
    listed = schedules.list_tasks(planned, "all_reduce", SIZE, 4, algorithm)
    return trace.nodes_of_ranks(listed.tasks, planned.num_ranks), listed.tasks


def read_goal(path: Path) -> list[list[Node]]:
    """By rank. Fails for a line that is none of the format."""
    found: list[list[Node]] = []
    for line in filter(None, path.read_text(encoding="utf-8").splitlines()):
        if line.startswith("rank "):
            assert line == f"rank {len(found)} {{"
            found.append([])
        elif match := NODE.fullmatch(line):
            position, calc, kind, num_bytes, peer, tag, nic = match.groups()
            assert int(position) == len(found[-1])
            if calc:
                node = Node(Kind.COMPUTE, (), seconds=int(calc) / 1e9)
            else:
                rail = int(nic) if nic else None
                node = Node(Kind(kind), (), int(peer), int(num_bytes), int(tag), rail)
            found[-1].append(node)
        elif match := re.fullmatch(r"l(\d+) requires l(\d+)", line):
            position, before = map(int, match.groups())
            assert position == len(found[-1]) - 1
            node = found[-1][-1]
            found[-1][-1] = replace(node, after=(*node.after, before))
        else:
            assert re.fullmatch(r"// .*|num_ranks \d+|}", line), line
    return found


def read_chakra(path: Path) -> list[Node]:
    found = []
    with path.open("rb") as file:
        assert parse_length_prefixed(pb.Metadata, file).version
        while (message := parse_length_prefixed(pb.Node, file)) is not None:
            values = {a.name: getattr(a, a.WhichOneof("value")) for a in message.attributes}
            assert message.id == len(found)
            kind = {pb.SEND: Kind.SEND, pb.RECEIVE: Kind.RECEIVE, pb.COMPUTE: Kind.COMPUTE}
            kind = kind[message.type]
            node = Node(kind, tuple(message.waits_for), seconds=message.duration_us / 1e6)
            assert values["is_cpu_op"] == (kind is Kind.COMPUTE)
            if kind is not Kind.COMPUTE:
                own, peer = ("comm_src", "comm_dst")[:: 1 if kind is Kind.SEND else -1]
                assert values[own] == int(path.suffixes[0][1:])
                node = replace(
                    node,
                    peer=values[peer],
                    num_bytes=values["comm_size"],
                    tag=values["comm_tag"],
                )
            found.append(node)
    return found


@pytest.mark.parametrize(("topology", "algorithm"), CASES)
def test_every_message_has_two_ends_that_wait_for_what_stands_before(topology, algorithm):
    ranks, tasks = nodes_of(topology, algorithm)
    ends: dict[Kind, Counter] = {Kind.SEND: Counter(), Kind.RECEIVE: Counter()}
    for rank, nodes in enumerate(ranks):
        for position, node in enumerate(nodes):
            assert all(before < position for before in node.after)
            if node.kind is not Kind.COMPUTE:
                pair = (rank, node.peer) if node.kind is Kind.SEND else (node.peer, rank)
                ends[node.kind][(*pair, node.tag, node.num_bytes, node.rail)] += 1
    assert ends[Kind.SEND] == ends[Kind.RECEIVE]
    assert set(ends[Kind.SEND].values()) == {1}
    assert len(ends[Kind.SEND]) == sum(task.kind == "message" for task in tasks)
    assert sum(end[3] for end in ends[Kind.SEND]) == sum(
        task.bytes for task in tasks if task.kind == "message"
    )


def test_a_rank_of_a_ring_adds_what_it_has_received_and_sends_the_sum():
    (first, *_), _ = nodes_of("flat:3,1", "ring")
    before = {
        kind: {first[i].kind for node in first if node.kind is kind for i in node.after}
        for kind in Kind
    }
    assert before[Kind.COMPUTE] == {Kind.RECEIVE}
    assert Kind.COMPUTE in before[Kind.SEND]


@pytest.mark.parametrize(("topology", "algorithm"), CASES)
def test_both_formats_have_what_the_ranks_do(tmp_path, topology, algorithm):
    ranks, _ = nodes_of(topology, algorithm)
    traced(tmp_path / "a.goal", topology, algorithm)
    in_nanoseconds = [
        [replace(n, rail=n.rail or None, seconds=round(n.seconds * 1e9) / 1e9) for n in nodes]
        for nodes in ranks
    ]
    assert read_goal(tmp_path / "a.goal") == in_nanoseconds
    traced(tmp_path / "a.et", topology, algorithm)
    for rank, nodes in enumerate(ranks):
        in_microseconds = [
            replace(n, rail=None, seconds=round(n.seconds * 1e6) / 1e6) for n in nodes
        ]
        assert read_chakra(tmp_path / f"a.{rank}.et") == in_microseconds


def test_without_a_name_the_trace_has_the_choice(tmp_path):
    traced(tmp_path / "a.goal", "bcube:3,2", "")
    assert "bcube:3,2, bml_ring" in (tmp_path / "a.goal").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--trace", "a.json"], '"a.json" names no format of traces: expected FILE.goal'),
        (["--trace", "nowhere/a.goal"], "nowhere/a.goal cannot be written: "),
        (["--algorithm", "ring"], "give --trace, too"),
        (["--trace", "a.goal", "--algorithm", "bml"], 'all_reduce has no algorithm "bml"'),
        (["--trace", "a.goal", "--topology", "flat:600,1"], "schedules of up to 512 are listed"),
    ],
)
def test_what_cannot_be_traced_is_an_error(tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(
        commands.plan, ["--topology", "flat:4,1", "--rate", "1gbit", *arguments]
    )
    assert result.exit_code == 1
    assert said in " ".join(result.output.split())
    assert not list(tmp_path.iterdir())
