"""A server with two NICs in a lab: one goes down and comes back while two workers train."""

import contextlib
import functools
import json
import sys

import pytest

from dmlcomm import errors
from dmlcomm.lab import Lab
from dmlcomm.ps._proto import dmlcomm_ps_pb2 as pb
from dmlcomm.ps.worker.control import Control
from dmlcomm.topology import graph as topology
from helpers import DEADLINE_S, eventually
from helpers.lab_hosts import crossed, management_address, on_host
from helpers.parameter_servers import (
    ServerProcess,
    WorkerProcess,
    clean_environment,
    server_processes,
)

COUNT = 300_007
WORKERS = 2
STEPS = 10  # of each phase, at least

# Over a NIC of the server in a phase, each way: a good part of what one worker pushes and pulls.
EXPECTED_BYTES = STEPS * COUNT * 4 // 5

# Adds 1 to every element with each step, as all workers do, and looks at each. A second model tells
# all workers the same of how many connections they have lost and made anew, so that they go
# through the phases together.
WORKER = f"""
import json, sys
import numpy as np
from dmlcomm.ps import Client

ONES = np.ones({COUNT}, np.float32)
steps = 0

def step():
    global steps
    steps += 1
    weights = client.push_pull("w", ONES)
    assert set(weights.tolist()) == {{{WORKERS}.0 * steps}}, steps
    counters = client.rails()[0]
    mine = [sum(getattr(rail, key) for rail in counters) for key in ("lanes_lost", "lanes_back")]
    return client.push_pull("lanes", np.array(mine)).tolist()

def several_steps():
    return [step() for _ in range({STEPS})][-1]

with Client(sys.argv[1], worker=int(sys.argv[2]), timeout_s={DEADLINE_S}) as client:
    client.init("w", 0 * ONES, rule="add", reduce="sum")
    client.init("lanes", np.zeros(2, np.int64), rule="assign", reduce="sum")
    lost, back = several_steps()
    assert lost == back == 0
    print("trains", flush=True)
    while lost == 0:  # a worker of a PSNet may have found another way by the end of the step
        lost, back = step()
    print("has lost a lane", flush=True)
    lost, back = several_steps()
    print("goes on", flush=True)
    sys.stdin.readline()
    while lost != back:
        lost, back = step()
    print("has all lanes", flush=True)
    sys.stdin.readline()
    several_steps()
    print(json.dumps([steps, client.lost_servers]), flush=True)
    sys.stdin.readline()
"""


def status(lab, host, address):
    command = [sys.executable, "-m", "dmlcomm", "ps", "status", address, "--json"]
    options = {"capture_output": True, "text": True, "timeout": DEADLINE_S, "check": True}
    result = lab.exec(host, command, env=clean_environment(), **options)
    (answer,) = json.loads(result.stdout)["servers"]
    return answer


def has_all_lanes(lab, host, server):
    """The status of a server that has back as many lanes as it has lost; else None."""
    answer = status(lab, host, server.address)
    lost, back = (sum(r[k] for r in answer["rails"]) for k in ("lanes_lost", "lanes_back"))
    return answer if lost == back else None


def expect(workers, line):
    for worker in workers:
        worker.expect(line)


def say(workers, line):
    for worker in workers:
        worker.say(line)


# Workers with two NICs stripe; those of a PSNet have one, and take a NIC of the server each.
@pytest.mark.parametrize("spec", ["flat:3,2", "psnet:2,2,2"])
@pytest.mark.parametrize("nic", ["eth0", "eth1"])
def test_training_goes_on_without_a_nic_of_the_server_and_uses_it_again(lab_is_possible, spec, nic):
    with Lab(spec, rate="500mbit") as lab, contextlib.ExitStack() as stack:
        hosts = topology.hosts(lab.graph())
        server_host, worker_hosts = hosts[0], hosts[-WORKERS:]
        listen = (
            "--listen",
            f"{management_address(lab, server_host)}:0",
            "--workers",
            str(WORKERS),
            "--insecure",
        )
        server = stack.enter_context(ServerProcess(*listen, **on_host(lab, server_host)))
        workers = [
            stack.enter_context(
                WorkerProcess(WORKER, server.address, str(number), **on_host(lab, host))
            )
            for number, host in enumerate(worker_hosts)
        ]
        cable = f"{server_host}:{nic}"
        expect(workers, "trains")
        assert crossed(lab, cable) > EXPECTED_BYTES
        lab.set(cable, "down")
        expect(workers, "has lost a lane")
        while_down = crossed(lab, cable)
        expect(workers, "goes on")
        assert crossed(lab, cable) == while_down
        lab.set(cable, "up")
        say(workers, "the cable is back")
        expect(workers, "has all lanes")
        # A worker may know that a lane is lost, or back, before the server does: of one that had
        # nothing to send, the server may hear in the last phase.
        settled = functools.partial(has_all_lanes, lab, server_host, server)
        before = eventually(settled, "server has all lanes")
        begin = crossed(lab, cable)
        say(workers, "go on")
        steps, lost_servers = json.loads(workers[0].next_line())
        assert json.loads(workers[1].next_line()) == [steps, lost_servers]
        after = eventually(settled, "server has all lanes")
        assert crossed(lab, cable) - begin > EXPECTED_BYTES
        say(workers, "leave")
    assert lost_servers == []
    assert [(w["alive"], w["lost_reason"]) for w in after["workers"]] == [(True, "")] * WORKERS
    assert max(model["clock"] for model in after["models"]) == steps
    assert sum(rail["lanes_lost"] for rail in after["rails"]) > 0
    (old,), (new,) = ([r for r in a["rails"] if r["interface"] == nic] for a in (before, after))
    assert new["bytes_received"] - old["bytes_received"] > EXPECTED_BYTES
    assert new["bytes_sent"] - old["bytes_sent"] > EXPECTED_BYTES


def test_a_worker_whose_nics_have_no_carrier_is_told_to_try_again():
    """It may have lost its connection because a cable was pulled, which comes back."""
    servers = server_processes(1, DMLCOMM_SOCKET_IFNAME="lo")
    with servers as (server,), contextlib.closing(Control(0, server.address, "", None)) as control:
        other = pb.Nic(interface="eth0", address="fd00::2", prefix_length=64)
        for nics, error in (([], errors.PsConnectionError), ([other], errors.PsModelError)):
            request = pb.RegisterRequest(worker=0, incarnation=1, host_id="elsewhere", nics=nics)
            with pytest.raises(error, match="no NICs that can talk to each other"):
                control.call("Register", request)
