"""Traces of `dmlcomm plan`, read by the schema and the decoder of MLCommons.

    python -m benchmarks.simulator.chakra FOLDER [--size SIZE]

FOLDER is a copy of the repository mlcommons/chakra. Each case is planned and written as execution
traces. All fields have to be of the schema, and each message needs both of its ends.
"""

import argparse
import importlib.util
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks import report
from benchmarks.simulator.loggopsim import CASES, RATE

SCHEMA = Path("schema", "protobuf", "et_def.proto")
DECODER = Path("src", "third_party", "utils", "protolib.py")


def messages(schema: ModuleType, decoder: ModuleType, traces: list[Path]) -> tuple[int, int]:
    """How many nodes and messages there are. Ends the program if something is not as it should be.

    An end of a message is the sender, the receiver, its tag and its bytes.
    """
    num_nodes, sent, received = 0, Counter[tuple[int, ...]](), Counter[tuple[int, ...]]()
    for trace in traces:
        with decoder.openFileRd(str(trace)) as file:
            metadata = schema.GlobalMetadata()
            if not decoder.decodeMessage(file, metadata) or not metadata.version:
                raise SystemExit(f"{trace.name} has no metadata")
            while decoder.decodeMessage(file, node := schema.Node()):
                num_nodes += 1
                size = node.ByteSize()
                node.DiscardUnknownFields()
                if node.ByteSize() != size:
                    raise SystemExit(f"{trace.name}: node {node.id} has fields of no schema")
                values: dict[str, Any] = {
                    one.name: getattr(one, one.WhichOneof("value")) for one in node.attr
                }
                if node.type in (schema.COMM_SEND_NODE, schema.COMM_RECV_NODE):
                    ends = sent if node.type == schema.COMM_SEND_NODE else received
                    keys = ("comm_src", "comm_dst", "comm_tag", "comm_size")
                    ends[tuple(values[key] for key in keys)] += 1
                elif node.type != schema.COMP_NODE:
                    raise SystemExit(f"{trace.name}: node {node.id} is of type {node.type}")
    if sent != received:
        raise SystemExit(f"messages without one of their ends: {sent - received}")
    return num_nodes, sent.total()


def _load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.exists():
        raise SystemExit(f"{path} is missing: give a copy of the repository mlcommons/chakra")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="a copy of the repository mlcommons/chakra")
    parser.add_argument("--size", default="4MB", help="of the vector (default: %(default)s)")
    options = parser.parse_args()
    decoder = _load("protolib", options.folder / DECODER)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        place = (options.folder / SCHEMA).parent
        compiled = ("-m", "grpc_tools.protoc", f"-I{place}", f"--python_out={scratch}", SCHEMA.name)
        subprocess.run([sys.executable, *compiled], check=True)
        schema = _load("et_def_pb2", scratch / "et_def_pb2.py")
        for topology, algorithm in CASES:
            network = ("--topology", topology, "--rate", RATE, "--size", options.size)
            wanted = ("--algorithm", algorithm, "--trace", str(scratch / "trace.et"))
            command = [sys.executable, "-m", "dmlcomm", "plan", *network, *wanted]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            traces = sorted(scratch.glob("trace.*.et"))
            num_nodes, num_messages = messages(schema, decoder, traces)
            report.console.print(
                f"{topology}, {algorithm}: {len(traces)} files, {num_nodes} nodes, "
                f"{num_messages} messages with both ends"
            )
            for trace in traces:
                trace.unlink()


if __name__ == "__main__":
    main()
