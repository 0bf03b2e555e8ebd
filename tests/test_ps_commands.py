"""``dmlcomm ps serve`` and ``status``, ``dmlcomm run``, and the Prometheus endpoint."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request

import numpy as np
import pytest

from dmlcomm.ps import Client
from helpers import DEADLINE_S, eventually
from helpers.parameter_servers import (
    ServerProcess,
    clean_environment,
    command,
    servers,
)

PLAIN_TLS = ("--tls-cert", "no.pem", "--tls-key", "no.pem")


def train(client, steps=3):
    client.init("net", np.zeros(1001, np.float32), rule="add")
    for _ in range(steps):
        client.push_pull("net", np.ones(1001, np.float32))


# --- serve


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_server_says_where_it_listens_and_ends_at_a_signal(number):
    with ServerProcess("--listen", "127.0.0.1:0") as server:
        assert re.fullmatch(r"dmlcomm ps: server 0 of 1 listens on 127.0.0.1:[1-9]\d+", server.line)
        with Client(server.address, worker=0) as client:
            train(client)
        server.process.send_signal(number)
        _, log = server.process.communicate(timeout=DEADLINE_S)
        assert server.process.returncode == 0
    assert 'model "net": created by worker 0: 0 f32[1001]; rule add' in log
    assert "worker 0" in log
    assert "Traceback" not in log


def test_servers_and_clients_do_without_torch():
    program = """
import sys
import numpy as np
import dmlcomm.errors
from dmlcomm.ps import Client, Server, ServerOptions
with Server(ServerOptions(metrics_port=0)) as server, Client(server.address) as client:
    client.init("w", [np.zeros(5, np.float32)])
    client.push_pull("w", [np.ones(5, np.float32)])
    client.barrier()
assert "torch" not in sys.modules, "torch was loaded"
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--listen", "nowhere"), "host:port"),
        (("--servers", "2", "--index", "2"), "server 2: expected 0 to 1"),
        (("--replicas", "1"), "2 servers or more"),
        (
            ("--servers", "2", "--index", "0", "--replicas", "1", *PLAIN_TLS),
            "1 replica with TLS, but without a CA: expected a CA (--tls-ca)",
        ),
        (("--rule", "no_such_module:f"), "No module named"),
        (("--transport", "pigeon"), "pigeon"),
        (("--log-level", "loud"), 'log level "loud"; expected one of error, warning, info, debug'),
        (("--tls-cert", "cert.pem"), "key"),
        (("--servers", "a:1,b:2", "--listen", "c:3"), "--index"),
        (("--listen", "0.0.0.0:0"), "--insecure"),
        (("--listen", "[::]:0", *PLAIN_TLS), "--tls-ca"),
        (("--token-file", "/dev/null"), "is empty"),
        (("--window-mb", "0"), "windows of 0.0 MB: expected at least 1"),
        (("--token-file", "/dev/null", "--token", "a"), "give one of them"),
    ],
)
def test_options_that_cannot_work_are_a_short_error(arguments, reason):
    result = command("ps", "serve", *arguments)
    assert result.returncode == 1
    assert reason in result.stderr
    assert "Traceback" not in result.stderr


def test_port_that_is_taken_is_named():
    with servers() as address:
        result = command("ps", "serve", "--listen", address)
        assert result.returncode == 1
        assert f"cannot listen on {address}" in result.stderr


# --- status


def test_status_has_workers_clocks_shards_and_bytes():
    with servers(2, workers=1) as addresses, Client(addresses, worker=0) as client:
        train(client)
        answers = json.loads(command("ps", "status", "--json", *addresses.split(",")).stdout)
        assert [answer["server"] for answer in answers["servers"]] == [0, 1]
        sizes = []
        for answer in answers["servers"]:
            (worker,), (model,) = answer["workers"], answer["models"]
            assert (worker["worker"], worker["clock"], worker["alive"]) == (0, 3, True)
            assert worker["pushes"] == 3
            assert worker["bytes_in"] > 3 * 4 * 490
            assert (model["name"], model["rule"], model["sealed"]) == ("net", "add", True)
            assert model["clocks"] == {"0": 3}
            sizes += [shard["bytes"] for shard in model["shards"]]
        assert sum(sizes) == 4 * 1001
        assert max(sizes) - min(sizes) <= 128
        table = command("ps", "status", DMLCOMM_PS_SERVERS=addresses)
        assert table.returncode == 0
        for word in ("Servers", "Workers", "Shards", "net", "alive", "0 of 2"):
            assert word in table.stdout


def test_status_names_a_server_that_does_not_answer():
    with servers() as address:
        gone = "127.0.0.1:1"
        result = command("ps", "status", address, gone)
        assert result.returncode == 1
        assert gone in result.stdout
        assert "is it running" in result.stdout
        assert "0 of 1" in result.stdout


def test_status_asks_which_servers():
    result = command("ps", "status")
    assert result.returncode == 1
    assert "DMLCOMM_PS_SERVERS" in result.stderr


def test_watch_goes_on_until_it_is_interrupted():
    with servers() as address:
        watching = subprocess.Popen(
            [sys.executable, "-m", "dmlcomm", "ps", "status", "--json", "--watch", address],
            env=clean_environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2):
            assert json.loads(watching.stdout.readline())["servers"][0]["address"] == address
        watching.send_signal(signal.SIGINT)
        watching.communicate(timeout=DEADLINE_S)
        assert watching.returncode == 0


# ^C comes while an object is destroyed: Python prints what is raised there, and goes on.
INTERRUPTED_WHILE_DESTROYING = """
import os, signal
from dmlcomm.ps import commands, status_view
class Call:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass
def ask(controls):
    Call()
    return []
status_view.ask = ask
commands._watch([], as_json=True)
"""


def test_watch_ends_when_the_interrupt_is_swallowed():
    result = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_WHILE_DESTROYING],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert result.returncode == 0, result.stderr
    assert "KeyboardInterrupt" in result.stderr
    assert result.stdout.count("servers") == 1


def test_prometheus_endpoint_has_the_counters():
    with ServerProcess("--metrics-port", "0") as server:
        port = int(server.line.rpartition(" ")[2])
        with Client(server.address, worker=0) as client:
            train(client)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
                text = answer.read().decode()
    for line in (
        'dmlcomm_ps_worker_clock{worker="0"} 3.0',
        'dmlcomm_ps_pushes_total{worker="0"} 3.0',
        'dmlcomm_ps_model_clock{model="net"} 3.0',
        'dmlcomm_ps_shard_bytes{model="net",shard="0"} 4004.0',
        "dmlcomm_ps_workers_alive 1.0",
    ):
        assert line in text


# --- run

JOB = """
import os, sys
import numpy as np
from dmlcomm.ps import Client
with Client() as client:
    weights = client.init("w", np.zeros(9, np.float32))
    client.push_pull("w", np.ones(9, np.float32))
    has_token = len(os.environ["DMLCOMM_PS_TOKEN"]) > 10
    # One call, so that lines of several workers stay whole.
    os.write(1, f"{client.num_servers} {client.worker} {has_token}\\n".encode())
sys.exit(7)
"""


@pytest.mark.parametrize("replicas", ["0", "1"])
def test_run_starts_servers_and_returns_the_exit_code(replicas):
    options = ("--servers", "2", "--replicas", replicas)
    result = command("run", *options, "--", sys.executable, "-c", JOB)
    assert result.returncode == 7, result.stderr
    assert result.stdout == "2 0 True\n"


def test_run_passes_signals_on_and_leaves_nothing_behind():
    program = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
print(os.environ["DMLCOMM_PS_SERVERS"], flush=True)
signal.pause()
"""
    running = subprocess.Popen(
        [sys.executable, "-m", "dmlcomm", "run", "--", sys.executable, "-c", program],
        env=clean_environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    address = running.stdout.readline().strip()
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=DEADLINE_S)
    assert running.returncode == 3
    assert "is it running" in command("ps", "status", address).stdout


def test_servers_end_with_a_run_that_is_killed():
    program = "import os; print(os.environ['DMLCOMM_PS_SERVERS'], os.getpid(), flush=True); input()"
    running = subprocess.Popen(
        [sys.executable, "-m", "dmlcomm", "run", "--", sys.executable, "-c", program],
        env=clean_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    address, pid = running.stdout.readline().split()
    running.kill()
    os.kill(int(pid), signal.SIGKILL)
    running.communicate(timeout=DEADLINE_S)
    eventually(
        lambda: "is it running" in command("ps", "status", address, "--token", "x").stdout,
        "the end of the server",
    )


# 200 updates print more than the pipe of a server's output holds.
PRINTING_RULE = """
print("imported")

def add(weights, gradient, state, step):
    print("x" * 1000)
    weights += gradient
"""

JOB_OF_A_RULE = """
import numpy as np
from dmlcomm.ps import Client
with Client() as client:
    client.init("w", np.zeros(9, np.float32), rule="python")
    for _ in range(200):
        weights = client.push_pull("w", np.ones(9, np.float32))
    print(sorted(set(weights.tolist())))
"""


def test_rule_of_a_run_may_print(tmp_path):
    (tmp_path / "printing_rule.py").write_text(PRINTING_RULE)
    job = ("--", sys.executable, "-c", JOB_OF_A_RULE)
    rule = ("--rule", "printing_rule:add")
    result = command("run", *rule, *job, PYTHONPATH=str(tmp_path))
    assert result.returncode == 0, result.stderr
    assert result.stdout == "[200.0]\n"
    assert result.stderr.count("x" * 1000) == 200
    assert "imported" in result.stderr


def test_run_names_a_command_that_is_not_there():
    result = command("run", "--", "no-such-command-here")
    assert result.returncode == 127
    assert "no-such-command-here" in result.stderr


def test_worker_of_a_run_may_be_many():
    """torchrun is told the number of workers; the servers wait for as many."""
    job = JOB.replace("sys.exit(7)", "sys.exit(0)")
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
    result = command("run", "--", *torchrun, "--no-python", sys.executable, "-c", job)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == ["1 0 True", "1 1 True"]


# A thread of the process never ends, and is in C++ most of the time.
BUSY = """
import sys, threading
from dmlcomm.proxy import commands as proxy
from dmlcomm.proxy.proxy import Proxy
from dmlcomm.ps import commands as ps
from dmlcomm.ps.server.server import Server
from dmlcomm.sim import Simulation

simulation = Simulation([1e9])
simulation.flow([0], 1)

def work():
    while True:
        simulation.run()

def closing(close):
    def close_and_work(self):
        close(self)
        threading.Thread(target=work, daemon=True).start()
    return close_and_work

Server.close, Proxy.close = closing(Server.close), closing(Proxy.close)
{"ps": ps, "proxy": proxy}[sys.argv[1]].app(sys.argv[2:])
"""


@pytest.mark.parametrize("name", ["ps", "proxy"])
def test_a_thread_that_is_in_the_core_does_not_abort_a_process_that_ends(tmp_path, name):
    own = {
        "ps": ["--listen", "127.0.0.1:0", "--workers", "1"],
        "proxy": ["--socket", str(tmp_path / "proxy")],
    }
    words = [name, "serve", "--insecure", "--until-eof", *own[name]]
    ended = subprocess.run(
        [sys.executable, "-c", BUSY, *words], input="", capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "listens" in ended.stdout
