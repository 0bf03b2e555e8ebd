"""The measurements: each gives records, plain data for JSON."""

import sys
from collections.abc import Iterator

from benchmarks.lab_run import Request, measured_lines, run
from benchmarks.reproduce_bml import theory
from benchmarks.reproduce_bml.paper import (
    JOB_ITERATIONS,
    MTU,
    RATE,
    RATE_BPS,
    Network,
    Training,
    bml,
    p2p,
    ring,
)
from benchmarks.training.models import MODELS
from benchmarks.training.plan import plan
from dmlcomm.lab import Lab, Options, build
from dmlcomm.topology import graph as topology
from dmlcomm.topology.graph import NodeKind

GST_BYTES = MODELS["lenet5"]().gradient_bytes
GST_SECONDS = 4.0  # per network, about
ITERATIONS = 3  # of every batch, after one to warm up


def gst(ports: int, levels: int) -> Iterator[dict]:
    """One synchronisation of LeNet-5's gradient: BML, and one NIC on as many hosts."""
    hosts = ports**levels
    for network in (bml(ports, levels), p2p(hosts), ring(hosts)):
        request = Request(network.topology, RATE, (GST_BYTES,), ("dmlcomm",), mtu=MTU)
        (result,) = run(request.but(seconds=GST_SECONDS, env=network.env))
        yield {
            "record": "gst",
            "bcube": [ports, levels],
            "network": network.name,
            "topology": network.topology,
            "bytes": result["size"],
            "seconds": result["seconds"],
            "theory_s": network.gst_factor * result["size"] * 8 / RATE_BPS,
            "wrong": result["wrong"],
        } | _hardware(network)


def jct(training: Training, network: Network) -> Iterator[dict]:
    """Job completion times over the sub-minibatches."""
    flops = theory.flops_in_lab(training)
    for measured in _replay(training, network, flops):
        model, batch = MODELS[training.model](), measured["batch"]
        iteration = plan(model, batch, flops, training.scale, "layers")
        theory_s = theory.iteration_s(iteration, RATE_BPS, network.gst_factor)
        yield {
            "record": "jct",
            "model": training.model,
            "scale": training.scale,
            "flops": flops,
            "network": network.name,
            "topology": network.topology,
            "bytes": iteration.gradient_bytes,
            "compute_s": iteration.compute_s,
            "theory_s": theory_s,
            "jct_s": measured["bct_s"] * JOB_ITERATIONS,
        } | measured


def _replay(training: Training, network: Network, flops: float) -> list[dict]:
    batches = ",".join(map(str, training.batches))
    command = [sys.executable, "-m", "benchmarks.training.rank", training.model, batches]
    command += [str(flops), str(training.scale), str(ITERATIONS), "dmlcomm", "layers"]
    arguments = [word for assignment in network.env for word in ("-e", assignment)]
    with Lab(network.topology, rate=RATE, options=Options(mtu=MTU)) as lab:
        return measured_lines(lab, command, arguments)


def _hardware(network: Network) -> dict:
    """Hosts, switches, and the switch ports that are in use."""
    graph = build(network.topology)
    switches = topology.nodes_of_kind(graph, NodeKind.SWITCH)
    return {
        "hosts": len(topology.hosts(graph)),
        "switches": len(switches),
        "switch_ports": sum(graph.degree(switch) for switch in switches),
    }
