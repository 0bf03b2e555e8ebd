"""The local proxy: trees, training, admission and commands."""

import configparser
import contextlib
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import yaml

from dmlcomm import PsModelError, PsRefusedError
from dmlcomm.network import proxy_socket
from dmlcomm.proxy import node, picture
from dmlcomm.proxy import proxy as proxy_module
from dmlcomm.proxy.proxy import Proxy, ProxyOptions
from dmlcomm.ps import Client, tree
from dmlcomm.ps.worker import redirect
from helpers import DEADLINE_S, eventually
from helpers.parameter_servers import clean_environment, run_threads, run_workers, servers

COUNT = 100_003
EXAMPLES = Path(__file__).parents[1] / "examples"


@contextlib.contextmanager
def proxies(folder, num, shape="auto", **others):
    """Paths of `num` proxies of this process, each as of another host."""
    with contextlib.ExitStack() as stack:
        options = [ProxyOptions(f"{folder}/{i}.sock", shape=shape, **others) for i in range(num)]
        yield [stack.enter_context(Proxy(one)).options.socket for one in options]


def attach(path, addresses, worker, token=""):
    return Client(addresses, worker=worker, token=token, timeout_s=DEADLINE_S, proxy=path)


@contextlib.contextmanager
def one_worker(tmp_path):
    """The socket of a proxy, the address of a server, and the client of the only worker."""
    with (
        proxies(tmp_path, 1) as [path],
        servers(workers=1) as addresses,
        attach(path, addresses, 0) as client,
    ):
        yield path, addresses, client


def way(proxy, addresses, uses_tls=False):
    return redirect.Route(proxy, addresses.split(","), "", uses_tls, 4).first(DEADLINE_S)


# --- trees


@pytest.mark.parametrize("shape", tree.SHAPES)
@pytest.mark.parametrize("first", [0, 2])
def test_a_tree_has_every_proxy_once_below_the_server(shape, first):
    racks = ["a", "a", "b", "b", "a"]
    parents = tree.parents(shape, racks, first)
    tops = tree.children_of(parents, tree.ROOT)
    assert sorted(place for top in tops for place in tree.below(parents, top)) == list(range(5))
    assert parents[first] == tree.ROOT


def test_shapes_have_their_degrees():
    one_rack, racks = [""] * 7, ["a"] * 4 + ["b"] * 3
    assert tree.parents("flat", one_rack) == [tree.ROOT] * 7
    assert tree.parents("chain", one_rack) == [tree.ROOT, 0, 1, 2, 3, 4, 5]
    assert tree.parents("binary", one_rack) == [tree.ROOT, 0, 0, 1, 1, 2, 2]
    assert tree.parents("rack", racks) == [tree.ROOT, 0, 0, 0, tree.ROOT, 4, 4]
    assert tree.parents("rack-binary", racks) == [tree.ROOT, 0, 0, 1, tree.ROOT, 4, 4]
    with pytest.raises(ValueError, match="expected one of auto, flat"):
        tree.parents("star", one_rack)


def test_trees_of_several_servers_keep_racks_together_and_have_other_aggregators():
    racks = ["a", "b"] * 4
    chains = [tree.parents("chain", racks, first) for first in range(2)]
    assert chains == [[tree.ROOT, 6, 0, 1, 2, 3, 4, 5], [7, tree.ROOT, 0, 1, 2, 3, 4, 5]]
    tops = [tree.children_of(tree.parents("rack", racks, first), tree.ROOT) for first in (0, 2, 4)]
    assert tops == [[0, 1], [2, 3], [4, 5]]


def test_inner_nodes_of_one_tree_are_leaves_of_another():
    racks = ["a"] * 8 + ["b"] * 8
    firsts = [tree.first_of(server, 4, racks) for server in range(4)]
    assert firsts == [0, 10, 4, 14]
    trees = [tree.parents("rack-binary", racks, first) for first in firsts]
    below = [sum(len(tree.children_of(one, place)) for one in trees) for place in range(16)]
    assert max(below) <= 5  # 14 of 16 places have a parent in each tree: 3.5 on average
    assert [tree.first_of(server, 5, ["a", "a"]) for server in range(5)] == [0, 0, 0, 1, 1]


def test_the_price_counts_the_busiest_port_and_the_way_of_a_piece():
    prices = tree.Prices(rate_bps=8e9, shard_bytes=1e9, hop_s=1e-12)
    found = {s: tree.price(s, [""] * 8, prices) for s in tree.SHAPES}
    piece_s = tree.MOST_PIECE_BYTES / 1e9
    rest_s = 1 - piece_s
    # Eight shards into the server's NIC; as many of a proxy as it has others below it, and its own.
    # A piece waits for those that come to the same node.
    assert found["flat"] == pytest.approx(8 * rest_s + 2 * 8 * piece_s)
    assert found["rack"] == pytest.approx(8 * rest_s + 2 * (1 + 7) * piece_s)
    assert found["binary"] == pytest.approx(3 * rest_s + 2 * (1 + 2 + 2 + 1) * piece_s)
    assert found["chain"] == pytest.approx(2 * rest_s + 2 * 8 * piece_s)
    # A proxy has one shard of each of four trees, and those below it.
    four = tree.price("chain", [""] * 8, prices, 4)
    assert four == pytest.approx(8 * rest_s + 2 * 8 * piece_s)


@pytest.mark.parametrize(
    ("shard_bytes", "expected"),
    [(1e3, 1e3), (1e6, 1 << 18), (32 << 20, 1 << 19), (1e9, 1 << 20)],
)
def test_the_price_has_the_pieces_that_servers_make(shard_bytes, expected):
    assert tree.piece_bytes(shard_bytes) == expected


@pytest.mark.parametrize(
    ("racks", "prices", "shape"),
    [
        (["a"] * 8, tree.Prices(shard_bytes=1e9), "chain"),
        (["a"] * 8, tree.Prices(shard_bytes=1e3), "flat"),
        # The same size takes long on slow NICs only.
        (["a"] * 8, tree.Prices(shard_bytes=1e6, rate_bps=1e8), "binary"),
        (["a"] * 8, tree.Prices(shard_bytes=1e6, rate_bps=1e11), "flat"),
        # So does the way on slow switches.
        (["a"] * 8, tree.Prices(shard_bytes=1e9, hop_s=2.0), "flat"),
        # A rack in the middle of a chain sends and receives two shards by its uplink.
        (["a", "a", "b", "b", "c", "c"], tree.Prices(shard_bytes=1e9), "chain"),
        (["a", "a", "b", "b", "c", "c"], tree.Prices(0, 1e9, oversubscription=4), "rack"),
    ],
)
def test_auto_goes_by_sizes_rates_and_uplinks(racks, prices, shape):
    assert tree.choose(racks, prices) == shape


def test_of_what_proxies_know_the_narrowest_counts():
    told = [tree.Prices(1e9, 0, 1), tree.Prices(0, 8e6, 4, 1e-3), tree.Prices(1e10, 1e6, 0)]
    assert tree.common(told) == tree.Prices(1e9, 8e6, 4, 1e-3)
    wrong_ones = tree.Prices(-1), tree.Prices(0, -1), tree.Prices(0, 0, 0.5), tree.Prices(hop_s=-1)
    for wrong in wrong_ones:
        with pytest.raises(ValueError, match="expected"):
            wrong.check()


# --- training


@pytest.mark.parametrize("shape", [tree.AUTO, *tree.SHAPES])
def test_workers_of_a_tree_get_what_the_servers_would_give(tmp_path, shape):
    workers = 6

    def train(worker, paths, addresses):
        with attach(paths[worker // 2], addresses, worker) as client:
            first = np.full(COUNT, 3, np.float32)
            weights = client.init("w", first, rule="sgd", reduce="sum", lr=0.5)
            assert (weights == 3).all()
            for _ in range(3):
                weights = client.push_pull("w", np.full(COUNT, worker, np.float32))
            client.push("w", np.full(COUNT, worker, np.float32))
            client.clock()
            client.barrier()
            return client.pull("w", staleness=1)[[0, -1]].tolist(), weights[[0, -1]].tolist()

    with proxies(tmp_path, 3, shape) as paths, servers(2, workers=workers) as addresses:
        seen = run_threads(lambda worker: train(worker, paths, addresses), workers)
    three, four = 3 - 3 * 7.5, 3 - 4 * 7.5
    assert all(weights == [three] * 2 for _, weights in seen)
    # Of either server, with or without the last clock.
    assert all(set(late) <= {three, four} for late, _ in seen)


# 10 Gbit/s, as nobody knows the rate of loopback.
@pytest.mark.parametrize(
    ("count", "prices", "shape"),
    [
        (100_000, tree.UNKNOWN, "flat"),
        (3_000_000, tree.UNKNOWN, "chain"),
        (1000, tree.Prices(shard_bytes=1e8), "chain"),
        (100_000, tree.Prices(rate_bps=1e5), "chain"),
        (3_000_000, tree.Prices(hop_s=0.1), "flat"),
    ],
)
def test_auto_goes_by_the_size_of_the_model_and_what_it_is_told(tmp_path, count, prices, shape):
    def train(worker, paths, addresses):
        with attach(paths[worker], addresses, worker) as client:
            client.barrier()  # needs no tree
            client.init("w", np.zeros(count, np.float32), reduce="sum")
            assert client.push_pull("w", np.ones(count, np.float32))[-1] == 3
            status = proxy_socket.ask(paths[worker], {"status": True}, DEADLINE_S)
            client.barrier()
            return status["jobs"][0]["nodes"][0]["shape"]

    with proxies(tmp_path, 3, prices=prices) as paths, servers(workers=3) as addresses:
        assert run_threads(lambda w: train(w, paths, addresses), 3) == [shape] * 3


def test_auto_takes_another_tree_when_a_much_larger_model_comes(tmp_path):
    workers = 3

    def train(worker, paths, addresses):
        shapes, sums = [], []
        with attach(paths[worker], addresses, worker) as client:
            for name, count in count_of.items():
                client.init(name, np.zeros(count, np.int64), rule="add", reduce="sum")
                for model in ("small", name):
                    gradient = np.ones(count_of[model], np.int64)
                    sums.append(client.push_pull(model, gradient)[-1])
                status = proxy_socket.ask(paths[worker], {"status": True}, DEADLINE_S)
                shapes.append(status["jobs"][0]["nodes"][0]["shape"])
                client.barrier()
        return shapes, sums

    count_of = {"small": 1000, "large": 3_000_000}
    with proxies(tmp_path, workers) as paths, servers(workers=workers) as addresses:
        seen = run_threads(lambda worker: train(worker, paths, addresses), workers)
    assert seen == [(["flat", "chain"], [3, 6, 9, 3])] * workers


@pytest.mark.parametrize(
    ("dtype", "options", "at_once"),
    [
        (np.float32, {"rule": "add", "reduce": "sum"}, 3),
        (np.float32, {"rule": "add", "reduce": "sum", "wire": "bf16"}, 3),
        (np.int32, {"rule": "add", "reduce": "sum"}, 3),
        (np.float32, {"rule": "add", "reduce": "mean"}, 0),
        (np.float32, {"rule": "assign", "reduce": "sum"}, 0),
    ],
)
def test_a_pull_that_may_be_stale_shows_sums_on_their_way_up(tmp_path, dtype, options, at_once):
    """Of clocks before the worker's own; as long as they are not in the version that it sees."""
    turn = threading.Barrier(2, timeout=DEADLINE_S)

    def work(worker, path, addresses):
        with attach(path, addresses, worker) as client:

            def pull(staleness):
                return client.pull("w", staleness=staleness)[[0, -1]].tolist()

            client.init("w", np.zeros(COUNT, dtype), **options)
            if worker == 0:
                client.push("w", np.full(COUNT, 3, dtype))
                client.clock()
                assert pull(1) == pull(None) == [at_once] * 2
            turn.wait()
            if worker == 1:
                assert pull(1) == [0, 0]
                client.push("w", np.full(COUNT, 5, dtype))
                client.clock()
            seen = pull(0)
            assert pull(1) == seen
            return seen[0]

    with proxies(tmp_path, 1) as [path], servers(2, workers=2) as addresses:
        seen = run_threads(lambda worker: work(worker, path, addresses), 2)
    assert seen == {"sum": [8, 8], "mean": [4, 4]}[options["reduce"]]


def test_narrow_floats_travel_narrow(tmp_path):
    def train(worker, path, addresses):
        with attach(path, addresses, worker) as client:
            client.init("w", np.zeros(COUNT, np.float32), wire="bf16", reduce="sum")
            weights = client.push_pull("w", np.full(COUNT, worker + 1, np.float32))
            return set(weights.tolist())

    with proxies(tmp_path, 1) as [path], servers(workers=2) as addresses:
        assert run_threads(lambda worker: train(worker, path, addresses), 2) == [{3.0}, {3.0}]


def test_the_others_go_on_without_a_worker_that_is_killed(tmp_path):
    victim = (
        "import os, sys, signal, numpy as np\n"
        "from dmlcomm.ps import Client\n"
        "client = Client(worker=1)\n"
        "client.init('w', np.zeros(10, np.float32), rule='add', reduce='sum')\n"
        "client.push_pull('w', np.ones(10, np.float32))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with proxies(tmp_path, 1) as [path], servers(workers=2) as addresses:
        environment = clean_environment(DMLCOMM_PS_SERVERS=addresses, DMLCOMM_PROXY=path)
        process = subprocess.Popen([sys.executable, "-c", victim], env=environment)
        with attach(path, addresses, 0) as client:
            client.init("w", np.zeros(10, np.float32), rule="add", reduce="sum")
            assert (client.push_pull("w", np.ones(10, np.float32)) == 2).all()
            assert (client.push_pull("w", np.ones(10, np.float32)) == 3).all()
            client.barrier()
        assert process.wait(DEADLINE_S) < 0


# --- admission


@pytest.mark.parametrize("options", [{"apply": "push"}, {"tables": True}])
def test_models_that_cannot_be_added_up_are_refused_where_a_proxy_is_demanded(tmp_path, options):
    with (
        proxies(tmp_path, 1) as [path],
        servers() as addresses,
        attach(path, addresses, 0) as client,
        pytest.raises(PsModelError, match="DMLCOMM_PROXY=auto or none"),
    ):
        client.init("w", [np.zeros((4, 2), np.float32)], **options)


@pytest.mark.parametrize("options", [{"apply": "push"}, {"tables": True}])
def test_auto_goes_direct_for_good_with_models_that_cannot_be_added_up(
    tmp_path, monkeypatch, caplog, options
):
    path = f"{tmp_path}/0.sock"
    monkeypatch.setattr(proxy_socket, "default_sockets", lambda: [path])

    def train(client):
        client.init("dense", np.zeros(COUNT, np.int64), rule="add", reduce="sum")
        client.push("dense", np.ones(COUNT, np.int64))  # the proxy has it, and loses it
        client.clock()
        client.init("w", [np.zeros((4, 2), np.float32)], rule="add", reduce="sum", **options)
        client._connections.return_to_proxy(client._recreate, DEADLINE_S)
        assert not client.by_proxy
        return client.push_pull("dense", np.ones(COUNT, np.int64))[[0, -1]].tolist()

    with proxies(tmp_path, 1, "chain"), servers(2, workers=2) as addresses:
        assert run_workers(train, 2, addresses, proxy="auto") == [[4, 4]] * 2
    reasons = [line for line in caplog.messages if "goes another way" in line and "dense" in line]
    assert len(reasons) == 2  # each worker says it once


def test_jobs_that_are_not_carried_are_told_why(tmp_path):
    with proxies(tmp_path, 1) as [path]:
        with (
            servers(2, replicas=1) as addresses,
            pytest.raises(PsRefusedError, match="have replicas"),
        ):
            attach(path, addresses, 0)
        with (
            servers(token="secret") as addresses,
            pytest.raises(PsRefusedError, match="expects the job's token"),
        ):
            attach(path, addresses, 0, token="guess")
        with pytest.raises(PsRefusedError, match="no job with TLS"):
            way(path, "127.0.0.1:1", uses_tls=True)
        assert proxy_socket.ask(path, {"status": True}, DEADLINE_S)["jobs"] == []


def test_a_proxy_is_for_its_user_alone(tmp_path):
    with proxies(tmp_path / "new", 1) as [path]:
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert stat.S_IMODE(os.stat(tmp_path / "new").st_mode) == 0o700
        with pytest.raises(OSError, match="another proxy listens there"):
            Proxy(ProxyOptions(path))
        with pytest.raises(PsRefusedError, match="this is no request"):
            proxy_socket.ask(path, {"servers": 3}, DEADLINE_S)
    assert not os.path.exists(path)


def test_a_user_who_is_admitted_sees_no_jobs_of_others(tmp_path, monkeypatch):
    other = os.getuid() + 1
    user = [os.getuid()]
    monkeypatch.setattr(proxy_module, "peer_of", lambda connection: (1, user[0]))
    with proxies(tmp_path, 1, users=(other,)) as [path], servers() as addresses:

        def seen():
            status = proxy_socket.ask(path, {"status": True}, DEADLINE_S)
            return len(status["jobs"]), len(status["priorities"]) > 0

        with attach(path, addresses, 0):
            assert seen() == (1, True)
            user[0] = other
            assert seen() == (0, False)
            proxy_socket.ask(path, {"servers": [addresses], "token": ""}, DEADLINE_S)
            assert seen()[0] == 1
            user[0] = os.getuid()


def test_auto_takes_a_proxy_that_is_there(tmp_path, monkeypatch, caplog):
    path = f"{tmp_path}/0.sock"
    monkeypatch.setattr(proxy_socket, "default_sockets", lambda: [path])
    with servers() as addresses:
        assert way("auto", addresses) == ([addresses], False)
        with proxies(tmp_path, 1):
            there, by_proxy = way("auto", addresses)
            assert by_proxy
            assert there != [addresses]
            assert way("none", addresses) == ([addresses], False)
            # It does not carry TLS; then workers go direct.
            assert way("auto", addresses, uses_tls=True) == ([addresses], False)
            assert "carries no job with TLS" in caplog.messages[-1]


# --- commands


def dmlcomm(*arguments, **environment):
    command = [sys.executable, "-m", "dmlcomm", *arguments]
    options = {"capture_output": True, "text": True, "timeout": DEADLINE_S}
    return subprocess.run(command, env=clean_environment(**environment), **options)


def command_of_the_unit():
    unit = configparser.ConfigParser(interpolation=None)
    unit.read(EXAMPLES / "proxy.service")
    assert unit["Service"]["RuntimeDirectory"] == "dmlcomm"
    return unit["Service"]["ExecStart"].removeprefix("/usr/bin/env ").split()


def command_of_the_container():
    services = yaml.safe_load((EXAMPLES / "proxy_containers.yaml").read_text())["services"]
    for service in services.values():
        assert service["network_mode"] == service["pid"] == service["ipc"] == "host"
        assert service["volumes"] == ["proxy:/run/dmlcomm"]
    return services["proxy"]["command"].split()


@pytest.mark.parametrize("command_of", [command_of_the_unit, command_of_the_container])
def test_the_examples_start_a_proxy_where_workers_look_for_it(tmp_path, command_of):
    program, *arguments = [word for word in command_of() if word != "$PROXY_OPTIONS"]
    assert program == "dmlcomm"
    place = arguments.index(proxy_socket.SYSTEM_SOCKET)
    arguments[place] = f"{tmp_path}/0.sock"
    command = [sys.executable, "-m", "dmlcomm", *arguments]
    with subprocess.Popen(
        command, env=clean_environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == f"dmlcomm proxy: listens at {tmp_path}/0.sock\n"
        process.terminate()
        assert process.wait(DEADLINE_S) == 0


def test_run_starts_a_proxy_that_the_command_uses():
    script = (
        "import json, os, subprocess, sys, numpy as np\n"
        "from dmlcomm.ps import Client\n"
        "with Client(worker=0) as client:\n"
        "    client.init('net', np.zeros(9, np.float32), rule='add')\n"
        "    assert (client.push_pull('net', np.ones(9, np.float32)) == 1).all()\n"
        "    status = [sys.executable, '-m', 'dmlcomm', 'proxy', 'status']\n"
        "    status += ['--socket', os.environ['DMLCOMM_PROXY']]\n"
        "    print(subprocess.check_output([*status, '--json'], text=True))\n"
        "    print(subprocess.check_output(status, text=True), file=sys.stderr)\n"
    )
    command = ["run", "--servers", "2", "--proxy", "--", sys.executable, "-c", script]
    result = dmlcomm(*command)
    assert result.returncode == 0, result.stderr
    [job] = json.loads(result.stdout)["jobs"]
    assert [node["server"] for node in job["nodes"]] == [0, 1]
    assert all(node["workers"] == [0] and node["place"] == 0 for node in job["nodes"])
    assert 'model "net": clock 1, 0 open windows' in result.stderr


def test_status_and_draw_say_what_there_is(tmp_path):
    missing = dmlcomm("proxy", "status", "--socket", f"{tmp_path}/none")
    assert missing.returncode == 1
    assert "no proxy answers" in missing.stderr
    with proxies(tmp_path, 1) as [path]:
        assert dmlcomm("proxy", "status", "--socket", path).stdout == "no job is attached\n"
    drawn = dmlcomm("proxy", "draw", "--hosts", "4", "--tree", "binary").stdout
    assert drawn.startswith("server\n`-- proxy 0\n    |-- proxy 1\n    |   `-- proxy 3\n")
    assert "<- drawn" in drawn
    drawn = dmlcomm("proxy", "draw", "--hosts", "2", "--latency-us", "100000").stdout
    assert drawn.startswith("server\n|-- proxy 0\n`-- proxy 1\n")


@pytest.mark.parametrize(
    ("arguments", "environment", "reason"),
    [
        (("--log-level", "loud"), {}, 'log level "loud"; expected one of error, warning, info'),
        (("--transport", "loud"), {}, "transport='loud'; expected 'auto', 'tcp' or 'shm'"),
        ((), {"DMLCOMM_TRANSPORT": "ucx"}, "transport='ucx'; expected 'auto', 'tcp' or 'shm'"),
    ],
)
def test_options_that_cannot_work_are_a_short_error(tmp_path, arguments, environment, reason):
    command = ["proxy", "serve", "--socket", f"{tmp_path}/none", *arguments]
    result = dmlcomm(*command, **environment)
    assert (result.returncode, result.stdout) == (1, "")
    assert reason in result.stderr
    assert "Traceback" not in result.stderr


def test_watch_refreshes_until_it_is_interrupted(tmp_path):
    with proxies(tmp_path, 1) as [path]:
        command = [sys.executable, "-m", "dmlcomm", "proxy", "status", "--watch", "--socket", path]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}

        def heed_interrupts() -> None:  # which a shell has its background jobs ignore
            signal.signal(signal.SIGINT, signal.SIG_DFL)

        with subprocess.Popen(
            command, env=clean_environment(), preexec_fn=heed_interrupts, **pipes
        ) as watching:
            for _ in range(2):
                assert watching.stdout.readline() == "no job is attached\n"
            watching.send_signal(signal.SIGINT)
            assert watching.communicate(timeout=DEADLINE_S)[1] == ""
            assert watching.returncode == 0


def test_draw_shows_the_trees_that_run(tmp_path):
    workers = 3
    file = tmp_path / "trees.png"

    def train(worker, paths, addresses, meet):
        with attach(paths[worker], addresses, worker) as client:
            client.init("w", np.zeros(10, np.float32))
            client.push_pull("w", np.ones(10, np.float32))
            meet.wait(DEADLINE_S)
            if worker == 2:
                command = ["proxy", "draw", "--running", "--socket", paths[2]]
                drawn = dmlcomm(*command, "--picture", str(file))
                seen.append(drawn.stdout + drawn.stderr)
            meet.wait(DEADLINE_S)

    seen = []
    with proxies(tmp_path, workers, "chain", rack="r") as paths, servers(workers=workers) as server:
        idle = dmlcomm("proxy", "draw", "--running", "--socket", paths[0])
        assert idle.stdout == "no job is attached\n"
        meet = threading.Barrier(workers)
        run_threads(lambda worker: train(worker, paths, server, meet), workers)
    host = socket.gethostname()
    assert seen == [
        f"job 0, server 0 ({server})\n"
        f"`-- proxy 0 ({host}, r): workers 0\n"
        f"    `-- proxy 1 ({host}, r): workers 1\n"
        f"        `-- proxy 2 ({host}, r): workers 2; this one\n"
    ]
    assert file.read_bytes().startswith(b"\x89PNG")


def test_a_picture_has_every_node_at_a_place_of_its_own(tmp_path):
    pytest.importorskip("matplotlib", reason="pictures are drawn with it")
    for shape in tree.SHAPES:
        positions = picture.positions_of(tree.parents(shape, ["a"] * 4 + ["b"] * 3))
        assert len(set(positions.values())) == 8
        assert all(y < positions[tree.ROOT][1] for node, (_, y) in positions.items() if node >= 0)
    file = tmp_path / "trees.png"
    assert dmlcomm("proxy", "draw", "--racks", "2", "--picture", str(file)).returncode == 0
    assert file.read_bytes().startswith(b"\x89PNG")
    refused = dmlcomm("proxy", "draw", "--picture", f"{tmp_path}/none/trees.png")
    assert "No such file" in refused.stderr


def test_prometheus_sees_jobs_trees_and_models(tmp_path):
    options = ProxyOptions(f"{tmp_path}/0.sock", metrics="127.0.0.1:0")
    with (
        Proxy(options) as proxy,
        servers(workers=1) as addresses,
        attach(options.socket, addresses, 0) as client,
    ):
        client.init("w", np.zeros(10, np.float32))
        client.push_pull("w", np.ones(10, np.float32))
        with urllib.request.urlopen(f"http://{proxy.metrics}/metrics", timeout=DEADLINE_S) as page:
            lines = page.read().decode().splitlines()
    of = f'{{server="{addresses}"}}'
    assert "dmlcomm_proxy_jobs 1.0" in lines
    assert f"dmlcomm_proxy_workers{of} 1.0" in lines
    assert f"dmlcomm_proxy_in_tree{of} 1.0" in lines
    assert f"dmlcomm_proxy_received_bytes_total{of} 80.0" in lines  # first values and a push
    for to, way in (("worker 0", "received"), ("parent", "sent")):
        of = f'{{server="{addresses}",to="{to}"}}'
        assert f"dmlcomm_proxy_edge_{way}_bytes_total{of} 80.0" in lines
    of = f'{{model="w",server="{addresses}"}}'
    assert f"dmlcomm_proxy_model_clock{of} 1.0" in lines
    assert f"dmlcomm_proxy_model_copy_clock{of} 1.0" in lines
    assert f"dmlcomm_proxy_model_copy_bytes{of} 40.0" in lines


def test_a_proxy_counts_what_its_edges_carry_and_its_copies_save(tmp_path, monkeypatch):
    monkeypatch.setattr(node, "RATE_INTERVAL_S", 0.05)
    with one_worker(tmp_path) as (path, _, client):

        def seen():
            (job,) = proxy_socket.ask(path, {"status": True}, DEADLINE_S)["jobs"]
            return job["nodes"][0]

        def step():
            client.push_pull("w", np.ones(COUNT, np.float32))
            return {edge["to"]: edge for edge in seen()["edges"]}

        client.init("w", np.zeros(COUNT, np.float32))
        num_bytes = 4 * COUNT
        first = seen()["models"][0]
        before, after = step(), step()
        assert before.keys() == {"parent", "worker 0"}
        for to, edge in before.items():
            for way in ("bytes_sent", "bytes_received"):
                assert after[to][way] - edge[way] == num_bytes, (to, way)
        eventually(lambda: min(rates(step())) > 0, "rates of all edges")
        count = seen()["models"][0]
        assert count["pulls"] - first["pulls"] >= 2
        assert count["pulls_at_once"] == first["pulls_at_once"]
        client.pull("w", staleness=1)
        client.pull("w")
        (model,) = seen()["models"]
        assert model["pulls"] - count["pulls"] == 2
        assert model["pulls_at_once"] - count["pulls_at_once"] == 2
        assert (model["copy_bytes"], model["copy_clock"]) == (num_bytes, model["clock"])


def test_a_proxy_and_a_worker_know_since_when_they_have_their_way(tmp_path):
    before = time.monotonic()
    with one_worker(tmp_path) as (path, addresses, client):
        client.init("w", np.zeros(10, np.float32))
        client.push_pull("w", np.ones(10, np.float32))

        def parent_since():
            (job,) = proxy_socket.ask(path, {"status": True}, DEADLINE_S)["jobs"]
            return job["nodes"][0]["parent_since"]

        eventually(lambda: parent_since() is not None, "the tree is made")
        assert before < client.way_since < parent_since() < time.monotonic()
        result = dmlcomm("proxy", "status", "--socket", path)
        assert re.search(rf"below {addresses} for \d+ s\n", result.stdout)


def rates(edges):
    return [edge[f"{way}_per_second"] for edge in edges.values() for way in ("sent", "received")]


def test_a_job_is_seen_by_its_servers(tmp_path):
    with one_worker(tmp_path) as (_, addresses, client):
        client.init("w", np.zeros(10, np.float32))
        client.push_pull("w", np.ones(10, np.float32))
        status = dmlcomm("ps", "status", addresses, "--json")
        workers = json.loads(status.stdout)["servers"][0]["workers"]
    [proxy] = [w for w in workers if w["is_proxy"]]
    [worker] = [w for w in workers if not w["is_proxy"]]
    assert proxy["bytes_in"] == 2 * 40  # the first values and a push
    assert (worker["worker"], worker["clock"], worker["alive"]) == (0, 1, True)
