"""The class of a job's priority, as connections between the hosts of a lab show it."""

from benchmarks.proxy import priorities
from dmlcomm.lab import Lab
from helpers.lab_scripts import SETUP
from helpers.warm_python import warm_command

DEADLINE_S = 60

BEFORE = """
import os
os.environ["DMLCOMM_PROXY"] = f"FOLDER/{os.environ['RANK']}.sock"
"""

# Calls and the store use the management network, and show no class.
SCRIPT = """
import socket
import numpy as np
from dmlcomm.network import proxy_socket
from dmlcomm.ps.server.server import Server, ServerOptions
from dmlcomm.ps.worker.client import Client

management = os.environ["MASTER_ADDR"].rpartition(".")[0]

def sockets():
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            link = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if link.startswith("socket:"):
            found[link] = int(name)
    return found

def mark_of(number):
    # None: it is no connection between NICs.
    with socket.socket(fileno=os.dup(number)) as one:
        try:
            ends = one.getsockname()[0], one.getpeername()[0]
        except (OSError, IndexError):
            return None
        if one.family != socket.AF_INET or any(end.startswith(management) for end in ends):
            return None
        return one.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) >> 2

def marks_since(before):
    marks = {mark_of(number) for link, number in sockets().items() if link not in before}
    return marks - {None}

def show_marks(name, before, work):
    # Connections are told at the next look at the seat.
    end = time.monotonic() + 30
    while marks_since(before) != {1} and time.monotonic() < end:
        work()
    say(rank, name, *marks_since(before))

dist.all_reduce(torch.ones(100_000))
show_marks("group", {}, lambda: time.sleep(0.01))
before = sockets()
if rank == 0:
    server = Server(ServerOptions(os.environ["MASTER_ADDR"] + ":0", insecure=True))
    dist.distributed_c10d._get_default_store().set("server", server.address)
    meet("the client is there")
    show_marks("server", before, lambda: time.sleep(0.01))
    meet("the server has shown")
    server.close()
else:
    address = dist.distributed_c10d._get_default_store().get("server").decode()
    # The proxy does not carry a job without a token, so the client goes to the server.
    proxy_socket.SYSTEM_SOCKET = os.environ["DMLCOMM_PROXY"]
    with Client(address, worker=0, proxy="auto") as client:
        assert not client.by_proxy
        client.init("w", np.zeros(100_000, np.float32), rule="add", reduce="sum")
        meet("the client is there")
        show_marks("client", before, lambda: time.sleep(0.01))
        meet("the server has shown")
end()
"""


def test_connections_of_groups_clients_and_servers_show_the_class(tmp_path, lab_is_possible):
    script = BEFORE.replace("FOLDER", str(tmp_path)) + SETUP + "import time\n" + SCRIPT
    with (
        Lab(f"flat:{priorities.HOSTS},1", rate="500mbit") as lab,
        priorities.proxies(lab, str(tmp_path), "--classes", "2"),
    ):
        result = lab.run(
            warm_command(script),
            "--env",
            "DMLCOMM_JOB_PRIORITY=0",
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
    assert result.returncode == 0, result.stderr
    assert sorted(line.split("] ")[1] for line in result.stdout.splitlines()) == [
        "0 group 1",
        "0 server 1",
        "1 client 1",
        "1 group 1",
    ]
