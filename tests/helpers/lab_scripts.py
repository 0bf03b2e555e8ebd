"""Scripts of tests that run as the ranks of a lab: what they all begin with, and how they run.

Ranks meet over the management network, which is not shaped and stays up.
"""

import subprocess
import sys
from typing import Any

from dmlcomm.lab import Lab
from helpers.warm_python import warm_command

# The operations' timeout is below the deadline of every test, so that a hang explains itself.
SETUP = """
import datetime, os, signal, sys, time
import torch
import torch.distributed as dist
import dmlcomm
torch.set_num_threads(1)
dist.init_process_group("dmlcomm", timeout=datetime.timedelta(seconds=50))
rank, size = dist.get_rank(), dist.get_world_size()
def say(*words):
    print(*words, flush=True)
def meet(event, ranks=size, comes=True, waits=True):
    # Without a collective: this rank comes to the event, and waits until `ranks` ranks have come.
    store = dist.distributed_c10d._get_default_store()
    if comes and store.add(event, 1) == ranks:
        store.set(event + ": all", "")
    if waits:
        store.wait([event + ": all"])
def end(ranks=size):
    # Here nobody destroys a group, so a rank that ends is a lost peer to those that still work:
    # none ends before `ranks` ranks are here. Rank 0 has the store, and is the last of them.
    meet("the end", ranks)
    meet("after the end", ranks, waits=rank == 0)
    os._exit(0)
"""


def lab_command(
    *arguments: str, deadline_s: float = 30.0, **options: Any
) -> subprocess.CompletedProcess:
    """``dmlcomm lab ...`` as users run it."""
    command = [sys.executable, "-m", "dmlcomm", "lab", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=deadline_s, **options)


def run_script(
    lab: Lab, script: str, *arguments: str, deadline_s: float
) -> subprocess.CompletedProcess:
    """``script`` on every host, to its end; ``arguments`` as for ``dmlcomm lab run``."""
    options = {"capture_output": True, "text": True, "timeout": deadline_s}
    return lab.run(warm_command(SETUP + script), *arguments, **options)


def start_script(lab: Lab, script: str, *arguments: str) -> subprocess.Popen:
    """The same without waiting for the end."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return lab.popen_run(warm_command(SETUP + script), *arguments, **options)
