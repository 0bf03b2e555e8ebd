"""`dmlcomm inspect`: ranks that hang answer from outside."""

import contextlib
import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from rich.console import Console

from dmlcomm import inspect_command, inspection
from dmlcomm._core import inspector_folder
from dmlcomm.ps import Client
from helpers import DEADLINE_S, eventually
from helpers.parameter_servers import ServerProcess, checkpoint_of, clean_environment, command
from helpers.ranks import Ranks, report

WORLD_SIZE = 3


def hang_with_the_lock(rank, world_size):
    dist.all_reduce(torch.ones(3))
    report(os.getpid())
    if rank == 1:
        ctypes.PyDLL(None).sleep(1000)  # nobody else gets the interpreter's lock
    dist.all_reduce(torch.ones(5))


def job_of(pids):
    """The job with these processes, as the command has it; {} if there is none."""
    result = command("inspect", "--json")
    jobs = json.loads(result.stdout)["jobs"] if result.stdout else []
    own = [job for job in jobs if {p["pid"] for p in job["processes"]} >= set(pids)]
    return own[0] if own else {}


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_rank_that_hangs_with_the_interpreters_lock_is_named(transport):
    with Ranks(hang_with_the_lock, WORLD_SIZE, env={"DMLCOMM_TRANSPORT": transport}) as ranks:
        pids = ranks.first_messages()

        def is_found():
            lines = job_of(pids).get("findings", [])
            return any(
                f"rank 1 (pid {pids[1]}) has not called collective #2" in line for line in lines
            ) and all(
                any(f"rank {rank}: all_reduce(sum, f32, 5 elements" in line for line in lines)
                for rank in (0, 2)
            )

        eventually(is_found, "the missing rank is named")
        job = job_of(pids)
        assert any(line.endswith(("waits for 1", "waits for 1, 2")) for line in job["findings"])
        shown = command("inspect", job["job"])
        assert shown.returncode == 0, shown.stderr
        assert "has not called collective #2" in shown.stdout
        assert command("inspect", "no such job").returncode == 1
        lines = command("inspect", job["job"], "--prometheus").stdout.splitlines()
        label = f'{{job_number="{job["job"]}",group="default_pg",rank="0"'
        assert f"dmlcomm_rank_operations{label}}} 1" in lines
        assert any(line.startswith(f"dmlcomm_rail_sent_bytes_total{label},rail=") for line in lines)


def free_ports(num):
    """The first of so many neighbours, below those that the kernel gives to others."""
    for first in range(9400, 30000, num):
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + num):
                    listener = stack.enter_context(socket.socket())
                    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    listener.bind(("127.0.0.1", port))
            except OSError:
                continue
        return first
    raise AssertionError("no free ports")


def read(url):
    with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:
        return answer.read().decode()


def test_ranks_serve_their_metrics_while_their_interpreter_hangs():
    first = free_ports(WORLD_SIZE)
    with Ranks(hang_with_the_lock, WORLD_SIZE, env={"DMLCOMM_METRICS_PORT": str(first)}) as ranks:
        ranks.first_messages()
        for rank in range(WORLD_SIZE):
            url = f"http://127.0.0.1:{first + rank}"
            calls = 1 if rank == 1 else 2
            label = f'group="default_pg",rank="{rank}"}} {calls}'
            eventually(
                lambda url=url, label=label: any(
                    line.startswith("dmlcomm_rank_last_collective{job_number=")
                    and line.endswith(label)
                    for line in read(f"{url}/metrics?name=all").splitlines()
                ),
                "the last collective of the rank",
            )
            with pytest.raises(urllib.error.HTTPError, match="404"):
                read(f"{url}/other")
            with pytest.raises(urllib.error.HTTPError, match="405"):
                urllib.request.urlopen(f"{url}/metrics", data=b"x", timeout=DEADLINE_S)
        with socket.create_connection(("127.0.0.1", first)):  # who says nothing holds nobody up
            assert read(f"http://127.0.0.1:{first}/metrics")


def reduce_once(rank, world_size):
    dist.all_reduce(torch.ones(1))


def test_rank_whose_port_is_taken_warns_and_goes_on():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with Ranks(reduce_once, 1, env={"DMLCOMM_METRICS_PORT": str(port)}) as ranks:
            ranks.collect()
            log = ranks.ranks[0].log.read_text()
    assert f"rank 0 of this host serves no metrics: listen on 127.0.0.1 port {port}" in log
    assert "DMLCOMM_METRICS_PORT" in log


def test_metrics_are_served_over_http_until_an_interrupt():
    with Ranks(hang_with_the_lock, WORLD_SIZE) as ranks:
        pids = ranks.first_messages()
        job = eventually(lambda: job_of(pids), "the job")["job"]
        arguments = [sys.executable, "-m", "dmlcomm", "inspect", job, "--metrics-port", "0"]
        served = subprocess.Popen(
            arguments, env=clean_environment(), stdout=subprocess.PIPE, text=True
        )
        assert served.stdout is not None
        url = f"http://127.0.0.1:{served.stdout.readline().split()[-1]}"
        with urllib.request.urlopen(f"{url}/metrics", timeout=DEADLINE_S) as answer:
            lines = answer.read().decode().splitlines()
        label = f'{{job_number="{job}",group="default_pg",rank="1"'
        assert f"dmlcomm_rank_failed{label}}} 0" in lines
        with pytest.raises(urllib.error.HTTPError, match="under /metrics"):
            urllib.request.urlopen(f"{url}/other", timeout=DEADLINE_S)
        served.send_signal(signal.SIGINT)
        assert served.wait(DEADLINE_S) == 0


def test_one_form_of_output_at_a_time():
    result = command("inspect", "--json", "--metrics-port", "0")
    assert result.returncode == 1
    assert "--json, --prometheus and --metrics-port: expected one of them" in result.stderr


def test_metrics_that_cannot_be_asked_for_are_an_answer(monkeypatch):
    def refuse():
        raise PermissionError("the folder is not trusted")

    monkeypatch.setattr(inspect_command, "ask_all", refuse)
    with inspect_command.metrics_server("", "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(urllib.error.HTTPError, match="500"):
            urllib.request.urlopen(
                f"http://127.0.0.1:{server.server_port}/metrics", timeout=DEADLINE_S
            )
        server.shutdown()


def metrics_on_the_dashboard(pattern):
    dashboard = json.loads((Path(__file__).parents[1] / "docs" / "grafana.json").read_text())
    return {
        name
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
        for name in re.findall(rf"\b{pattern}\w+", target["expr"])
    }


def test_dashboard_shows_every_metric_of_parameter_servers_and_no_other(tmp_path):
    options = ("--checkpoint", str(tmp_path), "--checkpoint-every", "1", "--metrics-port", "0")
    with ServerProcess(*options) as server, Client(server.address, worker=0) as client:
        client.init("w", np.zeros(3, np.float32), rule="add")
        client.push_pull("w", np.ones(3, np.float32))
        eventually(lambda: checkpoint_of(server.address).get("w"), "a checkpoint")
        url = f"http://127.0.0.1:{server.line.rpartition(' ')[2]}/metrics"
        page = urllib.request.urlopen(url, timeout=DEADLINE_S).read().decode()
    served = set(re.findall(r"^(dmlcomm_ps_\w+)", page, re.MULTILINE))
    served = {name for name in served if not name.endswith("_created")}
    assert metrics_on_the_dashboard("dmlcomm_ps_") == served


def test_dashboard_shows_every_metric_of_ranks_and_no_other():
    shown = metrics_on_the_dashboard("dmlcomm_(?!ps_)")
    with Ranks(hang_with_the_lock, WORLD_SIZE) as ranks:
        ranks.first_messages()
        described = re.findall(r"# TYPE (\w+)", inspection.metrics(inspection.ask_all()))
    assert len(described) == len(set(described))
    assert shown == set(described)


def rail_named(interface, bits_per_second=0, agreed_bits_per_second=0, *times_us):
    counts = ("bytes_sent", "bytes_received", "frames_repeated", "lanes_lost", "lanes_back")
    learned = {
        "bits_per_second": bits_per_second,
        "agreed_bits_per_second": agreed_bits_per_second,
    }
    names = ("round_trip_us", "agreed_round_trip_us", "agreed_message_us")
    learned |= dict(zip(names, times_us or (0, 0, 0), strict=True))
    names = ("urgent_waits", "urgent_wait_us", "longest_urgent_wait_us", "blocking_us")
    waits = dict.fromkeys(names, 0)
    return {"interface": interface, **dict.fromkeys(counts, 5), **learned, **waits}


def test_tables_show_what_rails_have_learned():
    rails = [
        rail_named("eth0", 198_500_000, 181_000_000, 310, 400, 210),
        rail_named("eth1", 0, 10**10, 1500, 0, 30),
        rail_named("local"),
    ]
    rails[1] |= {"urgent_waits": 4, "urgent_wait_us": 1000, "longest_urgent_wait_us": 2600}
    rails[1]["blocking_us"] = 3100
    shown = state(0, 5)
    shown["groups"][0].update(num_operations=0, rails=rails)
    with StringIO() as out:
        Console(file=out, width=240).print(inspect_command._view({"1": [shown]}, (0.0, {})))
        lines = out.getvalue().splitlines()

    def cells(first):
        (line,) = [line for line in lines if first in line]
        return [cell.strip() for cell in re.split("[│┃]", line)[1:-1]]

    columns = cells("round trip")
    learned = slice(columns.index("rate"), columns.index("message") + 1)
    assert cells("eth0")[learned] == ["198.5 Mb/s", "181 Mb/s", "310 us", "400 us", "210 us"]
    assert cells("eth1")[learned] == ["", "10 Gb/s", "1.5 ms", "", "30 us"]
    assert cells("local")[learned] == [""] * 5
    waits = [cells(rail)[columns.index("urgent wait")] for rail in ("eth0", "eth1", "local")]
    assert waits == ["", "250 us, 2.6 ms at most; kernel 3.1 ms", ""]
    assert cells("local")[columns.index("lost")] == "5"


def test_top_prints_a_line_of_json_for_each_look():
    with Ranks(hang_with_the_lock, WORLD_SIZE) as ranks:
        pids = ranks.first_messages()
        job = eventually(lambda: job_of(pids), "the job")["job"]
        arguments = [sys.executable, "-m", "dmlcomm", "top", job, "--json", "--interval", "0.1"]
        top = subprocess.Popen(
            arguments, env=clean_environment(), stdout=subprocess.PIPE, text=True
        )
        assert top.stdout is not None
        for _ in range(2):
            (shown,) = json.loads(top.stdout.readline())["jobs"]
            assert shown["job"] == job
            # Processes of other jobs that do not answer may be among them.
            assert {process["pid"] for process in shown["processes"]} >= set(pids)
        top.send_signal(signal.SIGINT)
        top.communicate(timeout=DEADLINE_S)
        assert top.returncode == 0


def test_top_shows_rates_until_it_is_interrupted():
    with Ranks(hang_with_the_lock, WORLD_SIZE) as ranks:
        pids = ranks.first_messages()
        eventually(lambda: job_of(pids), "the job")
        arguments = [sys.executable, "-m", "dmlcomm", "top", job_of(pids)["job"]]
        top = subprocess.Popen(
            [*arguments, "--interval", "0.1"],
            env=clean_environment(COLUMNS="200", LINES="60", FORCE_COLOR="1"),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert top.stdout is not None
        seen = ""
        while "MB/s" not in seen:
            line = top.stdout.readline()
            assert line, seen
            seen += line
        top.send_signal(signal.SIGINT)
        top.communicate(timeout=DEADLINE_S)
        assert top.returncode == 0
        assert str(pids[0]) in seen


def train_with_servers(rank, world_size, addresses):
    with Client(addresses, worker=rank) as client:
        client.init("w", torch.zeros(4))
        client.push_pull("w", torch.ones(4))
        for _ in range(rank):
            client.push("w", torch.ones(4))
            client.clock()
        report(os.getpid())
        ctypes.PyDLL(None).sleep(1000)


def test_servers_of_a_job_show_their_clocks_and_who_is_behind():
    arguments = ("--workers", "2", "--servers", "2")
    with ServerProcess(*arguments) as first, ServerProcess(*arguments, "--index", "1") as second:
        addresses = f"{first.address},{second.address}"
        with Ranks(train_with_servers, 2, [addresses]) as ranks:
            pids = [*ranks.first_messages(), first.process.pid, second.process.pid]

            def clocks():
                processes = job_of(pids).get("processes", [])
                return [
                    (server["server"], model["name"], model["clock"], model["clocks"])
                    for process in processes
                    for server in process["servers"]
                    for model in server["models"]
                ]

            ends = {"0": 1, "1": 2}
            expected = [(0, "w", 1, ends), (1, "w", 1, ends)]
            eventually(lambda: sorted(clocks()) == expected, "the clocks of both servers")
            job = job_of(pids)
            assert re.fullmatch("[0-9a-f]{16}", job["job"])  # that of the ranks
            waits = "model w waits for 0 (at 1); others are at 2"
            who = f"server 1 of 2 (pid {second.process.pid})"
            assert f"{who}: {waits}" in job["findings"]
            os.kill(pids[1], signal.SIGKILL)
            lost = f"server 0 of 2 (pid {first.process.pid}): worker 1 is lost: "
            eventually(
                lambda: any(line.startswith(lost) for line in job_of(pids[2:])["findings"]),
                "the lost worker is named",
            )
            assert waits not in command("inspect", job["job"]).stdout
            shown = command("inspect", job["job"]).stdout
            assert "parameter servers" in shown
            assert "server 1 of 2" in shown


def test_processes_are_one_job_by_the_connections_between_them():
    def process(pid, job="", served=(), connected=(), parent=""):
        server = {"workers": [{"connection": one} for one in served], "parent": parent}
        worker = {"connections": [{"connection": one} for one in connected]}
        groups = [{"number": job}] if job else []
        return {"pid": pid, "job": job, "groups": groups} | {
            "servers": [server] if served else [],
            "workers": [worker] if connected else [],
        }

    silent = {"pid": 9, "error": "timed out"}
    states = [
        *(process(1, "a"), process(2, "a", connected=["x"]), process(3, served=["y"])),
        *(process(4, connected=["y"]), process(5, served=["x"], parent="z"), silent),
        *(process(6, served=["z"]), process(7)),
    ]
    jobs = inspection.jobs_of(states)
    pids = {name: sorted(state["pid"] for state in own) for name, own in jobs.items()}
    assert pids == {"a": [1, 2, 5, 6, 9], "ps-3": [3, 4, 9]}


def test_process_that_is_stopped_is_named():
    with Ranks(hang_with_the_lock, WORLD_SIZE) as ranks:
        pids = ranks.first_messages()
        os.kill(pids[2], signal.SIGSTOP)
        expected = f"process {pids[2]} does not answer"
        eventually(
            lambda: any(line.startswith(expected) for line in job_of(pids).get("findings", [])),
            "the stopped process is named",
        )
        os.kill(pids[2], signal.SIGCONT)


@contextlib.contextmanager
def another_user():
    os.seteuid(12345)
    try:
        yield
    finally:
        os.seteuid(0)


def first_byte_at(path):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(DEADLINE_S)
        connection.connect(str(path))
        return connection.recv(1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_told_nothing():
    """Also where it reaches the socket: the process itself looks who asks."""
    with (
        ServerProcess() as server,
        Client(server.address),
        tempfile.TemporaryDirectory(dir="/tmp") as folder,
    ):
        path = next(Path(inspector_folder()).glob(f"{server.process.pid}*.sock"))
        door = Path(folder) / "door"  # beside the folder, which is this user's alone
        door.hardlink_to(path)
        for place in (door, door.parent):
            place.chmod(0o777)
        assert first_byte_at(door) == b"{"
        with another_user():
            assert first_byte_at(door) == b""
            with pytest.raises(PermissionError):
                first_byte_at(path)


def test_folder_of_others_is_not_trusted_and_sockets_of_the_dead_are_removed(tmp_path):
    tmp_path.chmod(0o755)
    with pytest.raises(PermissionError, match="not a folder of this user alone"):
        inspection.ask_all(tmp_path)
    tmp_path.chmod(0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "1.sock"))
    assert inspection.ask_all(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_ends_while_it_is_asked_is_gone(tmp_path):
    tmp_path.chmod(0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "1.sock"))
        listener.listen()

        def end():
            connection, _ = listener.accept()
            listener.close()
            connection.close()

        ending = threading.Thread(target=end)
        ending.start()
        assert inspection.ask_all(tmp_path) == []
        ending.join()
    assert list(tmp_path.iterdir()) == []


LISTENS = """
import json, socket, sys
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(sys.argv[1])
    listener.listen()
    print("ready", flush=True)
    with listener.accept()[0] as connection:
        group = {"name": sys.argv[1]}
        connection.sendall(json.dumps({"pid": 5, "job": "", "groups": [group]}).encode())
"""


def test_processes_that_have_the_same_id_in_their_containers_are_told_apart(tmp_path):
    tmp_path.chmod(0o700)
    names = [str(tmp_path / f"5-{number}.sock") for number in range(2)]
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen([sys.executable, "-c", LISTENS, name], stdout=subprocess.PIPE)
            )
            for name in names
        ]
        assert [process.stdout.readline() for process in processes] == [b"ready\n"] * 2
        found = {state["pid"]: state["groups"] for state in inspection.ask_all(tmp_path)}
    assert found == {
        process.pid: [{"name": name}] for process, name in zip(processes, names, strict=True)
    }


def operation(sequence, *awaited):
    text = f"all_reduce(sum, f32, 5 elements) #{sequence}"
    return {"operation": text, "sequence": sequence, "waits_for": list(awaited)}


def state(rank, last_called, *operations, size=3):
    group = {
        **{"name": "default_pg", "number": "1", "rank": rank, "num_ranks": size, "error": ""},
        **{"last_called": last_called, "last_begun": f"barrier() #{last_called}"},
        "operations": list(operations),
    }
    return {"pid": 100 + rank, "job": "1", "groups": [group], "servers": [], "workers": []}


def test_findings_say_who_waits_and_who_is_missing():
    lines = inspection.findings([state(0, 5, operation(5, 1, 2)), state(1, 4)])
    assert lines == [
        "group default_pg, rank 0: all_reduce(sum, f32, 5 elements) #5 waits for 1, 2",
        "group default_pg, rank 1 (pid 101) has not called collective #5, which others wait for; "
        "before, it called barrier() #4",
        "group default_pg, rank 2: no process of this host; ask on its host",
    ]
    assert inspection.findings([state(rank, 5) for rank in range(3)]) == []
