"""``dmlcomm simulate``: schedules as flows, jobs that share links, events, and bad files."""

import dataclasses
import importlib.util
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from dmlcomm import _core
from dmlcomm.planning import network as networks
from dmlcomm.planning.network import PlanError
from dmlcomm.planning.schedules import list_tasks
from dmlcomm.ps import tree as proxies
from dmlcomm.simulate import picture, push_pull
from dmlcomm.simulate.fields import ScenarioError
from dmlcomm.simulate.push_pull import STREAM
from dmlcomm.simulate.run import Player
from dmlcomm.simulate.scenario import load, parse
from dmlcomm.topology import graph as topology
from dmlcomm.topology import psnet
from dmlcomm.topology.builders import build

ROOT = Path(__file__).resolve().parents[1]

NETWORKS = (
    {"topology": "flat:5,2", "rate": ["200mbit", "50mbit"]},
    {"topology": "flat:4,1", "rate": "1gbit", "ranks_per_host": 2},
    {"topology": "bcube:3,2", "rate": "200mbit"},
    {"topology": "grid:2x3", "rate": "1gbit,200mbit"},
    {"topology": "bcube:2,2", "rate": "200mbit", "ranks_per_host": 2},
)
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all")


def play(scenario, seed=0):
    return Player(parse(scenario), seed).run()


def on_two_hosts(*jobs, **more):
    """A scenario in which 1448 kB take one second."""
    rate = round(8 * 1514e3)
    network = {"topology": "flat:2,1", "rate": f"{rate}bit", "events": more.get("events", [])}
    return network | {"jobs": list(jobs)}


# Rank 0 sends everything to rank 1.
ONE_SECOND = {"op": "broadcast", "algorithm": "direct", "size": "1448kB"}


@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network["topology"])
def test_every_schedule_takes_the_time_of_the_planners_simulator(network, op):
    # The two have nothing in common but the schedules. Prices count ports to which several hosts
    # send as slower, unless they are told not to.
    scenario = network | {"jobs": [{"op": op, "size": "2MB", "algorithm": "?"}]}
    rate = network["rate"]
    rates = ",".join(rate) if isinstance(rate, list) else rate
    planned = networks.parse(network["topology"], rates, network.get("ranks_per_host", 1))
    core = planned.core()
    core.contention = 1.0
    prices = _core.compare(core, planned.of_job(), op, 2_000_000, 4).prices
    simulated = [price for price in prices if price.priced_by == "simulation"]
    assert simulated
    for price in simulated:
        scenario["jobs"][0]["algorithm"] = price.name
        (job,) = play(scenario).jobs
        assert job.algorithm == price.name
        assert job.seconds == pytest.approx(price.seconds, rel=0.01), price.name


@pytest.mark.parametrize("spec", ["flat:5,1", "bcube:3,2", "bcube:2,3", "grid:4x3", "grid:2x3x2"])
def test_the_lab_and_the_simulator_have_the_same_neighbours(spec):
    graph = build(spec)
    in_the_lab = {
        (a, b, level)
        for a, name in enumerate(topology.hosts(graph))
        for level, link in enumerate(topology.links_of(graph, name))
        for b, other in enumerate(topology.hosts(graph))
        if a != b and graph.has_edge(other, link.other(name).node)
    }
    planned = networks.parse(spec, "1gbit")
    listed = list_tasks(planned, "all_to_all", 4 * 12 * planned.num_hosts, 4)
    hops = {hop for task in listed.tasks if task.kind == "message" for hop in task.hops}
    assert {(a, b, rail or 0) for a, b, rail in hops} == in_the_lab
    fabric = Player(
        parse({"topology": spec, "rate": "1gbit", "jobs": [{"op": "barrier"}]}), 0
    ).fabric
    nics = [(nic.host, *nic.rails) for nic in fabric.nics]
    assert nics == [
        (a, level)
        for a, name in enumerate(topology.hosts(graph))
        for level, _ in enumerate(topology.interfaces(graph, name))
    ]


def test_a_job_takes_what_ranks_would_take():
    (job,) = play(NETWORKS[2] | {"jobs": [{"op": "all_reduce", "size": "12.5MB"}]}).jobs
    network = networks.parse("bcube:3,2", "200mbit")
    found = _core.compare(network.core(), network.of_job(), "all_reduce", 12_500_000, 4)
    assert job.algorithm == found.prices[found.chosen].name == "bml_ring"


def test_steps_compute_and_then_communicate():
    result = play(on_two_hosts(ONE_SECOND | {"compute": "250ms", "steps": 3, "start": 2}))
    (job,) = result.jobs
    assert job.seconds == pytest.approx(3 * 1.25, rel=1e-3)
    assert result.makespan_s == pytest.approx(2 + 3 * 1.25, rel=1e-3)
    assert [step.operation_s for step in job.steps] == pytest.approx([1, 1, 1], rel=1e-3)
    assert job.steps[0].begin_s == 2
    assert job.throughput_bps == pytest.approx(8 * 1448e3 / 1.25, rel=1e-3)
    used = {(link.nic.host, link.sends): link for link in result.links}
    assert used[0, True].num_bytes == used[1, False].num_bytes == 3 * 1448e3
    assert used[0, True].utilisation == pytest.approx(3 / 5.75, rel=1e-3)
    assert used[1, True].num_bytes == 0


def test_jobs_share_links_by_weight_and_priority():
    alike = play(on_two_hosts(ONE_SECOND, ONE_SECOND | {"name": "other"}))
    assert [job.seconds for job in alike.jobs] == pytest.approx([2, 2], rel=1e-3)
    weighted = play(on_two_hosts(ONE_SECOND | {"weight": 3}, ONE_SECOND | {"name": "other"}))
    assert [job.seconds for job in weighted.jobs] == pytest.approx([4 / 3, 2], rel=1e-3)
    urgent = play(on_two_hosts(ONE_SECOND | {"priority": 1}, ONE_SECOND | {"name": "other"}))
    assert [job.seconds for job in urgent.jobs] == pytest.approx([2, 1], rel=1e-3)


def test_jobs_on_other_hosts_do_not_meet():
    network = {"topology": "flat:4,1", "rate": f"{8 * 1514000}bit"}
    jobs = [ONE_SECOND | {"name": str(a), "hosts": [a, a + 1]} for a in (0, 2)]
    result = play(network | {"jobs": jobs})
    assert [job.seconds for job in result.jobs] == pytest.approx([1, 1], rel=1e-3)
    sent = [link.num_bytes for link in result.links if link.sends]
    assert sent == [1448e3, 0, 1448e3, 0]


def test_links_above_the_edges_limit_what_crosses_them():
    # Two hosts of an edge share a quarter of their rate upwards, per packet over two cables.
    tree = {"topology": "fattree:4,r=4", "rate": f"{8 * 1514000}bit", "ecmp": "packet"}
    job = ONE_SECOND | {"name": "inside", "hosts": [4, 5]}
    across = [ONE_SECOND | {"name": str(a), "hosts": [a, 8 + a]} for a in (0, 1)]
    result = play(tree | {"jobs": [job, *across]})
    assert [one.seconds for one in result.jobs] == pytest.approx([1, 4, 4], rel=1e-3)
    carried = {trunk.name: trunk.num_bytes for trunk in result.trunks if trunk.num_bytes}
    names = ("up from edge0.0", "up from pod 0", "down to pod 2", "down to edge2.0")
    assert carried == dict.fromkeys(names, 2 * 1448e3)
    shares = {trunk.name: trunk.utilisation for trunk in result.trunks}
    assert shares["up from edge0.0"] == pytest.approx(1, rel=1e-3)
    assert shares["up from pod 0"] == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize(
    ("topology", "seconds"),
    # Messages are halves; with several ToRs, the one with most workers is last.
    [
        ("psnet:2,6,3", 2 * 2 / 2),
        ("psnet:2,6,3@1,1,4", 2 * 4 / 2),
        ("psnet:2,6,3,K=2@1,1,4", 2 * 4 / 4),
        # A worker's own NIC has two halves.
        ("psnet:2,6,3,K=8", 2 * 1),
        # Three workers send a half through a trunk of three NICs, and as many come back.
        ("psnet:1,3,3+1,3,3", 2 * 2 / 2),
        # All messages pass it.
        ("psnet:2,1,3+1,8,3", 2 * 16 / 3 / 3),
    ],
)
def test_workers_of_a_psnet_reach_a_nic_of_every_server(topology, seconds):
    network = {"topology": topology, "rate": f"{8 * 1514000}bit"}
    result = play(network | {"jobs": [{"op": "push_pull", "size": "1448kB"}]})
    assert result.makespan_s == pytest.approx(seconds, rel=0.02)
    num_modules = topology.count("+") + 1
    assert len(result.trunks) == num_modules * (num_modules - 1)


def test_a_slow_nic_of_a_server_gets_few_workers():
    network = {"rate": f"{8 * 1514000}bit", "jobs": [{"op": "push_pull", "size": "1448kB"}]}
    network["events"] = [{"at": 0, "host": 0, "rail": 2, "rate": f"{2 * 1514000}bit"}]
    deployment = psnet.spread_by_rate(12, [1, 1, 0.25])
    assert deployment == (6, 5, 1)
    assert psnet.spread_by_rate(7, [2, 2, 2]) == psnet.spread(7, 3)
    times = []
    for counts in (deployment, (4, 4, 4)):
        text = ",".join(map(str, counts))
        times.append(play(network | {"topology": f"psnet:1,12,3@{text}"}).makespan_s)
    assert times == pytest.approx([2 * 6, 2 * 16], rel=1e-3)


def test_by_hash_a_connection_takes_one_way_through_a_tree_which_the_seed_draws():
    tree = {"topology": "clos:2x2x2,3x2,r=1x1", "rate": f"{8 * 1514000}bit"}
    ways = set()
    for seed in range(40):
        result = play(tree | {"jobs": [ONE_SECOND | {"hosts": [0, 7]}]}, seed)
        assert all(trunk.num_bytes in (0, 1448e3) for trunk in result.trunks)
        passed = tuple(trunk.name for trunk in result.trunks if trunk.num_bytes)
        assert len(passed) == 4
        ways.add(passed)
        # Every cable between switches has 2/3 of a host's rate.
        assert result.makespan_s == pytest.approx(1.5, rel=1e-3)
    assert len(ways) == 6


def test_a_rate_changes_after_a_dark_time():
    event = {"at": 0.5, "host": 1, "rate": f"{4 * 1514000}bit", "dark": "200ms"}
    result = play(on_two_hosts(ONE_SECOND, events=[event]))
    assert result.makespan_s == pytest.approx(0.5 + 0.2 + 1, rel=1e-3)
    receives = next(link for link in result.links if link.nic.host == 1 and not link.sends)
    assert receives.utilisation == pytest.approx(1, rel=1e-3)


def test_a_flat_host_loses_one_of_its_nics():
    network = {"topology": "flat:2,2", "rate": f"{4 * 1514000}bit"}
    event = {"at": 0.5, "host": "all", "rail": 1, "rate": 0}
    result = play(network | {"jobs": [ONE_SECOND], "events": [event]})
    assert result.makespan_s == pytest.approx(1.5, rel=1e-3)


def test_circuits_of_a_tree_move_and_messages_go_on():
    network = {"topology": "sip:2x2x4", "rate": f"{8 * 1514000}bit"}
    across = [ONE_SECOND | {"name": str(a), "hosts": [a, 8 + a]} for a in (0, 1)]

    def seconds_of(*events):
        result = play(network | {"jobs": across, "events": list(events)})
        carried = {trunk.name: trunk.num_bytes for trunk in result.trunks}
        return [job.seconds for job in result.jobs], carried

    seconds, carried = seconds_of()
    assert seconds == pytest.approx([2, 2], rel=1e-3)
    names = ("up from tor1", "up from agg1", "down to agg2", "down to tor3")
    used = {name: sent for name, sent in carried.items() if sent}
    assert used == dict.fromkeys(names, 2 * 1448e3)
    # Half of each is through. Then one needs no uplink, from the end of the dark time on.
    moved = {"at": 1, "circuits": {"host8": "tor1"}, "dark": "100ms"}
    seconds, carried = seconds_of(moved)
    assert seconds == pytest.approx([1.6, 1.5], rel=1e-3)
    assert carried["up from agg1"] == pytest.approx(1.5 * 1448e3, rel=1e-3)
    # An uplink is dark for both; the core carries nothing after that.
    steered = {"at": 0.5, "circuits": {"tor3": "agg1"}, "dark": "100ms"}
    seconds, carried = seconds_of(steered)
    assert seconds == pytest.approx([2.1, 2.1], rel=1e-3)
    assert carried["up from agg1"] == pytest.approx(0.5 * 1448e3, rel=1e-3)
    assert carried["up from tor1"] == pytest.approx(2 * 1448e3, rel=1e-3)
    # A rate that changes while circuits are dark is there afterwards.
    slower = {"at": 1, "host": 8, "rate": f"{4 * 1514000}bit"}
    seconds, _ = seconds_of(slower, moved | {"at": 1.0})
    assert seconds == pytest.approx([2.1, 1.5], rel=1e-3)


def test_workers_of_a_psnet_move():
    job = {"op": "push_pull", "size": "1448kB"}
    network = {"topology": "psnet:1,2,2@2,0", "rate": f"{8 * 1514000}bit", "jobs": [job]}
    assert play(network).makespan_s == pytest.approx(4, rel=1e-3)
    moved = {"at": "500ms", "circuits": {"worker0": "tor2"}, "dark": "250ms"}
    # A quarter of each push is through; the other worker ends at 1.25 s, the moved one at 1.5 s.
    result = play(network | {"events": [moved]})
    assert result.makespan_s == pytest.approx(2.5, rel=1e-3)


def test_workers_of_joined_modules_move_in_their_module():
    job = {"op": "push_pull", "size": "1448kB", "hosts": [4, 5]}
    network = {"topology": "psnet:1,2,2+1,2,2@2,0", "rate": f"{8 * 1514000}bit", "jobs": [job]}
    # Two workers share a port of their module's server, and have one each of the other's.
    assert play(network).makespan_s == pytest.approx(2, rel=1e-3)
    moved = {"at": 0, "circuits": {"worker3": "tor4"}}
    again = play(network | {"events": [moved]})
    assert again.makespan_s == pytest.approx(2, rel=1e-3)
    carried = {(link.nic.host, link.nic.rails[0]) for link in again.links if link.num_bytes}
    assert carried == {(0, 0), (0, 1), (3, 0), (3, 1), (4, 0), (5, 0)}


def test_the_seed_draws_the_jitter():
    scenario = on_two_hosts(ONE_SECOND | {"compute": 1, "jitter": 0.5, "steps": 4})
    times = [play(scenario, seed).makespan_s for seed in (1, 1, 2)]
    assert times[0] == times[1] != times[2]
    assert all(8 < time < 10.1 for time in times)


# Each message of a part of the model takes one second.
PUSH_PULL = {"op": "push_pull", "size": "1448kB", "servers": [0], "hosts": ["1-6"]}


@pytest.mark.parametrize(
    ("tree", "seconds"),
    # Four workers of the other hosts push; or one proxy of each host.
    [("direct", 2 * 4), ("chain", 2 * 1)],
)
def test_ranks_of_a_host_are_workers_with_one_proxy(tree, seconds):
    network = {"topology": "flat:3,1", "rate": f"{8 * 1514000}bit", "ranks_per_host": 2}
    job = {"op": "push_pull", "size": "1448kB", "servers": [0], "tree": tree}
    result = play(network | {"jobs": [job]})
    assert result.makespan_s == pytest.approx(seconds, rel=1e-2)
    # The slowest rank of a host counts: with so many, nearly the whole jitter.
    slow = play(network | {"ranks_per_host": 64, "jobs": [job | {"compute": 10, "jitter": 1}]})
    assert slow.jobs[0].steps[0].end_s - slow.jobs[0].steps[0].operation_s > 19


@pytest.mark.parametrize(
    ("tree", "chunk", "seconds"),
    # Six pushes arrive at one NIC; or two after two; or one after the other. Weights go back alike.
    [
        ("direct", None, 2 * 6),
        *[("binary", "1448kB", 2 * (2 + 2)), ("binary", "stream", 2 * 2)],
        # A quarter goes on when it is there: after the first, three more follow.
        *[("chain", "1GB", 2 * 6), ("chain", "362kB", 2 * (6 + 3) / 4), ("chain", "stream", 2)],
        *[("rack", "1448kB", 2 * (5 + 1)), ("rack", "stream", 2 * 5)],
    ],
)
def test_pushes_go_up_a_tree_and_weights_come_down(tree, chunk, seconds):
    network = {"topology": "flat:7,1", "rate": f"{8 * 1514000}bit"}
    job = PUSH_PULL | {"tree": tree, "compute": 2, "steps": 2}
    result = play(network | {"jobs": [job | ({} if chunk is None else {"chunk": chunk})]})
    assert result.makespan_s == pytest.approx(2 * (2 + seconds), rel=1e-3)
    assert [step.operation_s for step in result.jobs[0].steps] == pytest.approx([seconds] * 2)
    server = next(link for link in result.links if link.nic.host == 0 and not link.sends)
    messages = {"direct": 6, "binary": 2, "chain": 1, "rack": 1}[tree]
    assert server.num_bytes == 2 * messages * 1448e3


def test_servers_have_equal_parts_and_trees_that_begin_elsewhere():
    network = {"topology": "flat:8,1", "rate": f"{8 * 1514000}bit"}
    job = PUSH_PULL | {"servers": [0, 7], "tree": "chain"}
    result = play(network | {"jobs": [job]})
    receives = [link.num_bytes for link in result.links if not link.sends]
    # Workers get the weights of both servers, and pushes but at the two ends of the chains.
    half = 1448e3 / 2
    assert receives == [half, 4 * half, 4 * half, 3 * half, 4 * half, 4 * half, 3 * half, half]


def test_small_chunks_take_the_time_of_a_stream():
    tree = {"topology": "fattree:4,r=2", "rate": "1gbit"}
    job = PUSH_PULL | {"size": "50MB", "hosts": ["1-15"], "servers": [0, 6], "tree": "binary"}
    chunks = ("50MB", "3MB", "100kB", "stream")
    times = [play(tree | {"jobs": [job | {"chunk": chunk}]}).makespan_s for chunk in chunks]
    assert times[0] > times[1] > times[2]
    assert times[2] == pytest.approx(times[3], rel=0.05)
    assert times[0] > 1.3 * times[3]


def test_which_workers_are_at_the_top_of_trees():
    # Two pushes arrive at each of two workers; with trees that are alike, at the same two.
    network = {"topology": "flat:8,1", "rate": "1gbit"}
    job = PUSH_PULL | {"servers": [0, 7], "tree": "binary"}

    def received(order, seed):
        links = play(network | {"jobs": [job | {"tree_order": order}]}, seed).links
        pushes = [link.num_bytes / (1448e3 / 2) for link in links if not link.sends]
        return [round(number) - 2 for number in pushes[1:7]]  # without two pulls

    assert received("same", 0) == [4, 4, 0, 0, 0, 0]
    assert received("rotated", 0) == [2, 2, 0, 2, 2, 0]
    assert received("random", 1) == received("random", 1)
    drawn = {tuple(received("random", seed)) for seed in range(5)}
    assert len(drawn) > 1
    assert {sum(numbers) for numbers in drawn} == {8}


def test_coarser_times_are_near_the_exact_ones():
    tree = {"topology": "fattree:4,r=2", "rate": "1gbit"}
    job = PUSH_PULL | {"size": "40MB", "hosts": ["4-15"], "servers": [0, 1], "tree": "binary"}
    job |= {"chunk": "1MB", "compute": "500ms", "jitter": 1}
    exact = play(tree | {"jobs": [job]}).makespan_s
    coarse = play(tree | {"resolution": "2ms", "jobs": [job]}).makespan_s
    assert exact < coarse < 1.1 * exact


def test_one_message_leaves_a_rack():
    tree = {"topology": "fattree:4", "rate": "1gbit", "ecmp": "packet"}
    job = PUSH_PULL | {"servers": [8], "hosts": ["0-7"]}
    for kind, messages in (("direct", 2), ("rack", 1)):
        trunks = play(tree | {"jobs": [job | {"tree": kind}]}).trunks
        carried = {trunk.name: trunk.num_bytes for trunk in trunks}
        assert carried["up from edge0.0"] == messages * 1448e3
        assert carried["down to edge0.0"] == messages * 1448e3
        assert carried["up from pod 0"] == 2 * messages * 1448e3


@pytest.mark.parametrize("num_workers", [1, 2, 5, 15])
def test_binary_trees_of_pieces_are_those_of_proxies(num_workers):
    for first in (0, 2 % num_workers):
        order = [(first + i) % num_workers for i in range(num_workers)]
        above = push_pull.parents("binary", order, [0] * num_workers, "pieces")
        of_proxies = proxies.parents("binary", [""] * num_workers, first)
        assert [proxies.ROOT if one is None else one for one in above] == of_proxies


@pytest.mark.parametrize(
    ("tree", "whole", "pieces"),
    # Three messages come to one port, two, or one. With pieces weights come while others push, and
    # two workers are below the third, as in trees of proxies: that one gets three messages.
    [("direct", 60, 30.5), ("binary", 40, 30.8), ("chain", 20, 20.7)],
)
def test_servers_answer_when_they_have_all_or_piece_by_piece(tree, whole, pieces):
    job = {"op": "push_pull", "size": "14480kB", "servers": [0], "hosts": [1, 2, 3], "tree": tree}
    network = {"topology": "flat:4,1", "rate": f"{8 * 1514000}bit"}
    assert play(network | {"jobs": [job]}).makespan_s == pytest.approx(whole, rel=1e-3)
    job |= {"answer": "pieces"} | ({} if tree == "direct" else {"grant": 0})
    assert play(network | {"jobs": [job]}).makespan_s == pytest.approx(pieces, abs=0.1)


def test_a_piece_that_goes_up_a_tree_waits_for_its_grant():
    job = {"op": "push_pull", "size": "14480kB", "servers": [0], "hosts": [1], "tree": "chain"}
    network = {"topology": "flat:2,1", "rate": f"{8 * 1514000}bit"}
    # 56 pieces take 10 s, with 55 grants of 400 kB in between; the last one comes back alone.
    assert push_pull.num_pieces(14_480_000) == 56
    waits = 55 * push_pull.GRANT_BYTES / 1448e3
    played = play(network | {"jobs": [job | {"answer": "pieces"}]})
    assert played.makespan_s == pytest.approx(10 + waits + 10 / 56, rel=1e-3)
    # Two servers have 28 pieces each, and grants are behind the bytes of both.
    two = network | {
        "topology": "flat:3,1",
        "jobs": [job | {"answer": "pieces", "servers": [0, 2]}],
    }
    assert play(two).makespan_s > 27 * 2 * push_pull.GRANT_BYTES / 1448e3


@pytest.mark.parametrize("staleness", [0, 1, 3, 20])
def test_a_worker_waits_for_others_up_to_its_staleness(staleness):
    steps, workers = 12, 6
    job = PUSH_PULL | {"size": 0, "compute": 1, "jitter": 0.9, "steps": steps}
    scenario = {"topology": "flat:7,1", "rate": "1gbit"}
    result = play(scenario | {"jobs": [job | {"staleness": staleness}]}, seed=3)
    draws = random.Random(3)
    finished, goes_on = [], [0.0] * workers
    for step in range(steps):
        finished.append([begin + 1 + 0.9 * draws.random() for begin in goes_on])
        others = max(finished[step - staleness]) if step >= staleness else 0
        goes_on = [max(own, others) for own in finished[-1]]
        assert result.jobs[0].steps[step].end_s == pytest.approx(max(goes_on))


def test_the_example_shows_what_trees_save():
    scenario = load(str(ROOT / "examples" / "simulate_mlnet.yaml"))
    (job,) = scenario.jobs
    times = {}
    for tree, num_chunks in (
        ("direct", 1),
        ("binary", STREAM),
        ("rack", STREAM),
    ):
        jobs = (dataclasses.replace(job, tree=tree, num_chunks=num_chunks),)
        times[tree] = Player(dataclasses.replace(scenario, jobs=jobs), 0).run().makespan_s
    # With 1:4 over-subscription, RACK is best and both beat the direct way, as in the paper.
    assert times["binary"] < 0.45 * times["direct"]
    assert times["rack"] < 0.27 * times["direct"]


DARK_TWICE = [
    {"at": 1, "host": 0, "rate": "50mbit", "dark": 2},
    {"at": 2, "host": "all", "rate": "80mbit"},
]

UPLINK_TWICE = [
    {"at": 2, "circuits": {"tor1": "agg1"}, "dark": 5},
    {"at": 3, "circuits": {"tor1": "agg1"}},
]


SMALL = PUSH_PULL | {"hosts": [1, 2]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"topology": None}, r'the scenario has no "topology": give it, as flat:4,2'),
        ({"topology": "ring:4"}, r"is ring:4: expected flat:N,k, .* fattree:"),
        ({"topology": "flat:1,2"}, r"two hosts or more"),
        ({"topology": "fattree:3"}, r'"fattree:3" is not possible: ports: an even number'),
        ({"topology": "fattree:4", "rate": [1, 2]}, r'fattree:4 needs one "rate", that of its'),
        ({"ecmp": "packet"}, r'"ecmp" is for a fattree or clos'),
        ({"topology": "fattree:4", "ecmp": "both"}, r'"ecmp" is both: expected hash or packet'),
        ({"rate": "fast"}, r"expected a rate such as 200mbit"),
        ({"speed": 1}, r'the scenario has no "speed": expected topology, rate'),
        ({"jobs": []}, r"has no jobs"),
        ({"jobs": [{"size": "1MB"}]}, r'job 0 has no "op": give it, as all_reduce'),
        ({"jobs": [{"op": "sum", "size": 4}]}, r'no operation "sum": expected one of all_gather, '),
        ({"jobs": [ONE_SECOND | {"algorithm": "bml"}]}, r'"job0": broadcast has no algorithm "bml'),
        ({"jobs": [ONE_SECOND | {"size": "1 meg"}]}, r'"1 meg" is not a size such as 12.5MB'),
        ({"jobs": [ONE_SECOND | {"dtype": "f8"}]}, r'"f8" is not of i8'),
        ({"jobs": [ONE_SECOND | {"compute": "soon"}]}, r'"compute" of job 0: expected seconds'),
        ({"jobs": [ONE_SECOND | {"steps": 0}]}, r'"steps" of job 0: expected a whole'),
        ({"jobs": [ONE_SECOND | {"hosts": [0, 9]}]}, r'"hosts" of job 0: expected numbers'),
        ({"jobs": [ONE_SECOND | {"hosts": [1, 1, 2]}]}, r'"hosts" of job 0 names a host twice'),
        (
            {"jobs": [ONE_SECOND | {"weight": 0}]},
            r'"weight" of job 0: expected a number from 1e-06',
        ),
        (
            {"jobs": [ONE_SECOND | {"priority": 256}]},
            r'"priority" of job 0: expected a .* 0 to 255',
        ),
        ({"jobs": [ONE_SECOND, ONE_SECOND | {"name": "job0"}]}, r'two jobs have the name "job0"'),
        ({"events": [{"at": 1, "host": 0, "rail": 1, "rate": "1gbit"}]}, r'"rail" of event 0 is 1'),
        ({"events": [{"at": 1, "host": 4, "rate": "1gbit"}]}, r'"host" of event 0: expected'),
        ({"events": [{"host": 0, "rate": "1gbit"}]}, r'event 0 has no "at": give it'),
        ({"events": [{"at": 0, "host": 0, "rate": 0}]}, r"rail 0 of host 0 has no rate from 0 s"),
        ({"jobs": [{"op": "all_reduce"}]}, r'job 0 has no "size": give it, as 12.5MB'),
        ({"jobs": [ONE_SECOND | {"size": "3B"}]}, r'"size" of job 0 is 3 bytes: expected whole el'),
        ({"jobs": [ONE_SECOND | {"steps": 10**7}]}, r"messages: up to 2000000 are simulated"),
        ({"jobs": [ONE_SECOND | {"tree": "rack"}]}, r'"tree" of job 0 is for a push_pull, not for'),
        (
            {"jobs": [{"op": "push_pull", "size": 4}]},
            r'job 0 has no "servers": give the hosts of some',
        ),
        ({"jobs": [SMALL | {"hosts": ["2-9"]}]}, r'"hosts" of job 0: expected numbers from 0 to 3'),
        ({"jobs": [SMALL | {"hosts": []}]}, r'"hosts" of job 0: expected a list of a host or more'),
        ({"jobs": [SMALL | {"tree": "star"}]}, r'"tree" of job 0 is star: expected one of direct'),
        ({"jobs": [SMALL | {"tree_order": "up"}]}, r'"tree_order" of job 0 is up: expected one of'),
        ({"jobs": [SMALL | {"chunk": "1MB"}]}, r'"chunk" of job 0 is for trees: with direct no'),
        ({"jobs": [SMALL | {"tree": "rack", "chunk": 0}]}, r'"chunk" of job 0 is 0: expected a s'),
        ({"topology": "psnet:2,6,3"}, r"job 0: a PSNet is for a push_pull with the tree direct"),
        (
            {"topology": "psnet:2,6,3", "jobs": [{"op": "push_pull", "hosts": [1, 2], "size": 4}]},
            r'"hosts" of job 0: host 1 is none of 2, 3, 4, 5, 6, 7, the workers of psnet:2,6,3',
        ),
        ({"topology": "psnet:1,2,3+1,2,2"}, r"modules that are joined need the same R and K"),
        ({"topology": "psnet:1,1,1+1,1,1+1,1,1"}, r"modules: at most 2 with 1 ToRs each, not 3"),
        ({"topology": "psnet:1,2"}, r'"psnet:1,2" is not of the form psnet:P,W,R'),
        ({"resolution": "fine"}, r'"resolution" of the scenario: expected seconds'),
        ({"jobs": [SMALL | {"algorithm": "ring"}]}, r'a push_pull has a "tree" instead'),
        ({"jobs": [SMALL | {"tree": "rack", "staleness": 1}]}, r"are simulated with 0, not 1"),
        ({"jobs": [SMALL | {"steps": 10**6}]}, r'"job0" has 4000000 messages: up to 2000000'),
        ({"jobs": [SMALL], "topology": "bcube:2,2"}, r"is a push_pull: not on a bcube or grid"),
        ({"events": 5}, r'"events" of the scenario: expected a list'),
        ({"jobs": [SMALL | {"answer": "pieces", "chunk": "1MB"}]}, r"pieces are the chunks"),
        ({"jobs": [SMALL | {"tree": "chain", "grant": 0}]}, r"is for trees with the answer pieces"),
        ({"jobs": [ONE_SECOND | {"answer": "pieces"}]}, r'"answer" of job 0 is for a push_pull'),
        ({"events": [{"at": 1, "circuits": {"host1": "tor1"}}]}, r"only a psnet or a sip has some"),
        ({"events": [{"at": 1, "circuits": []}]}, r"event 0: expected what is moved where, as"),
        (
            {"events": [{"at": 1, "circuits": {"host1": "tor1"}, "rate": "1gbit"}]},
            r'event 0 moves "circuits": it has no "rate"',
        ),
        (
            {"topology": "sip:2x2x1", "events": [{"at": 1, "circuits": {"host1": "agg1"}}]},
            r'"circuits" of event 0: host1:eth0 cannot be moved to agg1: sip:2x2x1 has tor1, tor2',
        ),
        (
            {"topology": "sip:2x2x1", "events": [{"at": 1, "circuits": {"core": "agg1"}}]},
            r'"circuits" of event 0: core cannot be moved: expected the NIC of a worker',
        ),
        (
            {"events": DARK_TWICE},
            r"an event at 2 s concerns rail 0 of host 0, which is dark until 3",
        ),
        (
            {"topology": "sip:2x2x1", "events": UPLINK_TWICE},
            r"an event at 3 s moves tor1, which is dark until 7 s",
        ),
    ],
)
def test_a_wrong_entry_is_named(change, message):
    scenario = {"topology": "flat:4,1", "rate": "1gbit", "jobs": [ONE_SECOND]} | change
    with pytest.raises((ScenarioError, PlanError, ValueError), match=message):
        play(scenario)


def test_a_job_on_a_grid_has_all_hosts():
    job = {"op": "all_reduce", "hosts": [0, 1], "size": "1MB"}
    with pytest.raises(ScenarioError, match="on a grid a job has all hosts, in order"):
        parse({"topology": "bcube:2,2", "rate": "1gbit", "jobs": [job]})


def test_a_network_that_is_too_large():
    job = {"op": "all_reduce", "size": "1MB"}
    with pytest.raises(ScenarioError, match=r'job "job0": bcube:16,3 has 4096 ranks: .* up to 512'):
        play({"topology": "bcube:16,3", "rate": "1gbit", "jobs": [job]})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rate: 2020-13-45", "is no YAML: month must be in 1..12"),
        ("topology: flat:4,1\nrate: 1gbit\nrate: 2gbit", 'line 3: "rate" is there twice'),
    ],
)
def test_a_file_with_other_content(tmp_path, text, message):
    path = tmp_path / "scenario.yaml"
    path.write_text(text)
    with pytest.raises(ScenarioError, match=message):
        load(str(path))


def test_a_file_that_is_none(tmp_path):
    with pytest.raises(ScenarioError, match=r"nothing.yaml cannot be read: No such file"):
        load(str(tmp_path / "nothing.yaml"))
    path = tmp_path / "broken.yaml"
    path.write_text("jobs: [")
    with pytest.raises(ScenarioError, match=r"broken.yaml is no YAML"):
        load(str(path))
    path.write_text("")
    with pytest.raises(ScenarioError, match=r"the scenario: expected keys and values"):
        load(str(path))


def test_a_picture_without_matplotlib_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = play(on_two_hosts(ONE_SECOND))
    with pytest.raises(ScenarioError, match=r"needs matplotlib: pip install dmlcomm\[lab\]"):
        picture.draw(result, "", tmp_path / "drawn.png")


def test_a_picture_that_cannot_be_written_is_named(tmp_path):
    pytest.importorskip("matplotlib")
    with pytest.raises(ScenarioError, match=r"nowhere/drawn.png cannot be written: No such file"):
        picture.draw(play(on_two_hosts(ONE_SECOND)), "", tmp_path / "nowhere" / "drawn.png")


def test_the_command(tmp_path):
    path = tmp_path / "scenario.yaml"
    path.write_text(json.dumps(NETWORKS[2] | {"jobs": [{"op": "all_reduce", "size": "1MB"}]}))

    def run(*arguments):
        command = [sys.executable, "-m", "dmlcomm", "simulate", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    text = run(str(path))
    assert text.returncode == 0, text.stderr
    assert all(part in text.stdout for part in ("bcube:3,2: 9 hosts", "all_reduce", "utilisation"))
    found = json.loads(run("--json", "--seed", "3", str(path)).stdout)
    assert found["seed"] == 3
    assert found["makespan_s"] == found["jobs"][0]["steps"][0]["end_s"] > 0
    assert len(found["links"]) == 36
    assert all(0 < link["utilisation"] <= 1 for link in found["links"])
    drawn = tmp_path / "drawn.png"
    if importlib.util.find_spec("matplotlib"):
        assert run("--picture", str(drawn), str(path)).returncode == 0
        assert drawn.read_bytes().startswith(b"\x89PNG")
    wrong = run(str(tmp_path / "nothing.yaml"))
    assert wrong.returncode == 1
    assert "error: " in wrong.stderr
    assert "Traceback" not in wrong.stderr
