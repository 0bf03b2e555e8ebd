"""Jobs that begin while programs on their hosts have taken every port."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from dmlcomm.lab import Lab
from helpers.lab_scripts import start_script
from helpers.multi_nic import DEADLINE_S, VALUES

# Ports that are bound are not given to connections, nor to listeners. Goes on until its input ends.
TAKE_ALL_PORTS = """
import socket, sys
FIRST, LAST = 50_000, 50_003
PATH = "/proc/sys/net/ipv4/ip_local_port_range"
before = open(PATH).read()
open(PATH, "w").write(f"{FIRST} {LAST}")
taken = [socket.create_server(("", port)) for port in range(FIRST, LAST + 1)]
print("taken", flush=True)
sys.stdin.read()
open(PATH, "w").write(before)
"""

WHEN_TOLD = """
import threading
told = threading.Event()
signal.signal(signal.SIGUSR1, lambda *_: told.set())
meet("ready")
if rank == 0:
    say("go")
assert told.wait(50)
"""

WORKS = """
tensor = data(70_001, rank)
dist.all_reduce(tensor, group=GROUP())
assert torch.equal(tensor, total(70_001))
fine()
"""

FAILS = """
try:
    dist.all_reduce(torch.ones(7), group=GROUP())
except dmlcomm.Error as error:
    say("error:", error)
end()
"""

# A group connects at its first operation, and listens when it is made.
BEGINS = pytest.mark.parametrize(
    "group",
    ["GROUP = lambda: None\n", "GROUP = dist.new_group\n"],
    ids=["connects", "listens"],
)


@pytest.fixture(scope="module")
def lab(lab_is_possible):
    with Lab("flat:2,2") as lab:
        yield lab


@contextmanager
def without_ports(lab):
    """On both hosts, until the block ends."""
    command = [sys.executable, "-c", TAKE_ALL_PORTS]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    holders = [lab.popen(host, command, **pipes) for host in ("host0", "host1")]
    try:
        for holder in holders:
            assert holder.stdout.readline() == "taken\n"
        yield
    finally:
        for holder in holders:
            holder.communicate(timeout=DEADLINE_S)


def started(lab, script, *arguments):
    process = start_script(lab, VALUES + WHEN_TOLD + script, *arguments)
    assert process.stdout.readline() == "[0] go\n"
    return process


@BEGINS
def test_a_job_begins_when_ports_are_free_again(lab, group):
    process = started(lab, group + WORKS, "-e", "DMLCOMM_PEER_TIMEOUT_S=50")
    with without_ports(lab):
        os.kill(process.pid, signal.SIGUSR1)
        said = iter(process.stderr.readline, "")
        assert any("ip_local_port_range" in line and "trying again" in line for line in said)
    stdout, stderr = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, stdout + stderr
    assert stdout.count("fine") == 2


@BEGINS
def test_without_a_port_the_error_names_the_setting(lab, group):
    process = started(lab, group + FAILS, "-e", "DMLCOMM_PEER_TIMEOUT_S=1.5")
    with without_ports(lab):
        os.kill(process.pid, signal.SIGUSR1)
        stdout, stderr = process.communicate(timeout=DEADLINE_S)
    said = [line for line in stdout.splitlines() if "error:" in line]
    assert len(said) == 2, stdout + stderr
    for line in said:
        assert "ip_local_port_range" in line
        assert "DMLCOMM_PEER_TIMEOUT_S" in line
