"""Labs that are really built: up, exec, run, set, status, down, and what a killed one leaves."""

import contextlib
import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from dmlcomm.lab import Lab, LabError, Options, wire
from dmlcomm.lab.client import Client
from dmlcomm.lab.wire import names_in_use
from helpers.lab_scripts import lab_command
from helpers.waiting import eventually

pytestmark = [pytest.mark.usefixtures("lab_is_possible"), pytest.mark.xdist_group("lab")]

DEADLINE_S = 30
MARK = "DMLCOMM_TEST_MARK"
CAP_DAC_READ_SEARCH = "dac_read_search"


@pytest.fixture(scope="module")
def lab(lab_is_possible):
    with Lab("flat:3,2", rate="200mbit,50mbit") as built:
        yield built


@pytest.fixture
def mark():
    """A value that every process of a test carries; nobody may be left."""
    value = uuid.uuid4().hex
    yield value
    assert pids_of(value) == []


def pids_of(value):
    """Processes with the mark, seen from outside of the lab."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            with contextlib.suppress(OSError):
                variables = Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
                if f"{MARK}={value}".encode() in variables:
                    found.append(int(entry))
    return found


def wait_for_end(pidfds):
    """Until all these processes have ended."""
    deadline = time.monotonic() + DEADLINE_S
    for pidfd in pidfds:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        assert poll.poll(max(0, deadline - time.monotonic()) * 1000), "a process did not end"
        os.close(pidfd)


@contextlib.contextmanager
def running(process):
    """A process that is gone after the block, also when the test fails in it."""
    with process:
        try:
            yield process
        finally:
            process.kill()


def output(lab, node, *command):
    result = lab.exec(node, command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert result.returncode == 0, result.stderr
    return result.stdout


def network_namespaces():
    """Those in which there are processes."""
    found = set()
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/{entry}/ns/net"))
    return found


@pytest.fixture
def namespaces_of():
    """Called with a lab's name: the network namespaces of its nodes.

    They are held open to the end of the test: the kernel gives their numbers to no others.
    """
    with contextlib.ExitStack() as held:

        def namespaces_of(name):
            found = set()
            with Client(name) as client:
                for node in client.graph():
                    _, (net, uts) = client.descriptors("namespaces", node=node)
                    held.callback(os.close, net)
                    os.close(uts)
                    found.add(os.readlink(f"/proc/self/fd/{net}"))
            return found

        yield namespaces_of


def test_hosts_have_their_interfaces_in_level_order(lab):
    code = (
        "import psutil, socket, os\n"
        "names = [name for _, name in sorted(socket.if_nameindex())]\n"
        "print(socket.gethostname(), *names, socket.gethostbyname('host2'))\n"
        "print(*sorted(os.listdir('/sys/class/net')))\n"
        "print(*[psutil.net_if_addrs()[n][0].address for n in ('eth0', 'eth1', 'mgmt0')])\n"
    )
    assert output(lab, "host1", sys.executable, "-c", code).splitlines() == [
        "host1 lo eth0 eth1 mgmt0 10.255.0.3",
        "eth0 eth1 lo mgmt0",
        "10.0.0.2 10.1.0.2 10.255.0.2",
    ]


def test_nothing_outside_of_the_namespaces_is_touched():
    before = os.listdir("/sys/class/net")
    with Lab("bcube:2,2"):
        assert os.listdir("/sys/class/net") == before


def test_ranks_have_torchruns_environment(lab):
    variables = (
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "MASTER_ADDR",
    )
    variables += (
        "DMLCOMM_SOCKET_IFNAME",
        "DMLCOMM_TOPOLOGY",
        "GLOO_SOCKET_IFNAME",
        "HOME_OF_TEST",
    )
    command = ["bash", "-c", "echo " + " ".join(f"${name}" for name in variables)]
    arguments = ("-m", "2", "-e", "HOME_OF_TEST=here", "--gloo-nics", "0")
    result = lab.run(command, *arguments, capture_output=True, text=True, timeout=DEADLINE_S)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == [
        f"[{rank}] {rank} {rank % 2} 6 2 {rank // 2} 10.255.0.1 =eth0,=eth1 flat@200mbit,50mbit "
        "eth0,eth1 here"
        for rank in range(6)
    ]


def test_first_failure_ends_the_run_with_its_exit_code(lab, mark):
    command = ["bash", "-c", "[ $RANK != 1 ] || exit 7; sleep 600 & wait"]
    options = {"env": os.environ | {MARK: mark}, "timeout": DEADLINE_S}
    result = lab.run(command, "--linger", "0", capture_output=True, text=True, **options)
    assert result.returncode == 7
    assert "[1] ended with exit code 7" in result.stderr


def test_death_by_a_signal_is_128_and_its_number(lab):
    command = ["bash", "-c", "kill -KILL $$"]
    assert lab.run(command, capture_output=True, timeout=DEADLINE_S).returncode == 128 + 9


def test_signals_reach_the_ranks(lab, mark):
    command = ["bash", "-c", "trap 'echo got it; exit 3' TERM; echo ready; sleep 600 & wait"]
    options = {"stdout": subprocess.PIPE, "text": True, "env": os.environ | {MARK: mark}}
    with running(lab.popen_run(command, **options)) as run:
        assert sorted(run.stdout.readline() for _ in range(3)) == [
            f"[{rank}] ready\n" for rank in range(3)
        ]
        run.send_signal(signal.SIGTERM)
        rest = run.stdout.read()
        assert run.wait(DEADLINE_S) == 3
    assert sorted(rest.splitlines()) == [f"[{rank}] got it" for rank in range(3)]


def test_exec_passes_exit_code_and_input(lab):
    command = ["bash", "-c", "read word; echo $word; exit 5"]
    options = {"capture_output": True, "text": True, "timeout": DEADLINE_S}
    result = lab.exec("host0", command, input="hello\n", **options)
    assert (result.returncode, result.stdout) == (5, "hello\n")


def test_a_command_that_does_not_exist_is_a_short_error(lab):
    result = lab.run(["no-such-command"], capture_output=True, text=True, timeout=DEADLINE_S)
    assert result.returncode == 1
    assert 'no command "no-such-command"' in result.stderr
    assert "Traceback" not in result.stderr


def test_killing_the_run_kills_everything_that_it_started(lab, mark):
    # The inner shell has left its parent and its session: only the mark of the run finds it.
    command = ["bash", "-c", "setsid bash -c 'echo ready; sleep 600; :' & wait"]
    options = {"stdout": subprocess.PIPE, "env": os.environ | {MARK: mark}}
    with running(lab.popen_run(command, **options)) as run:
        for _ in range(3):
            run.stdout.readline()
        pidfds = [os.pidfd_open(pid) for pid in pids_of(mark)]
        assert len(pidfds) >= 7
        run.kill()
        wait_for_end(pidfds)
    assert output(lab, "host0", "echo", "still up") == "still up\n"


def test_killing_the_holder_ends_the_lab_and_its_runs(mark, namespaces_of):
    with Lab("flat:2,1") as lab:
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        environment = os.environ | {MARK: mark}
        with running(
            lab.popen_run(["bash", "-c", "echo ready; sleep 600"], env=environment, **options)
        ) as run:
            for _ in range(2):
                run.stdout.readline()
            namespaces = namespaces_of(lab.name)
            assert not namespaces.isdisjoint(network_namespaces())
            holder = next(entry["pid"] for entry in labs() if entry["name"] == lab.name)
            os.kill(holder, signal.SIGKILL)
            assert run.wait(DEADLINE_S) != 0
            assert "has ended" in run.stderr.read()
    assert lab.name not in names_in_use()
    assert namespaces.isdisjoint(network_namespaces())


def test_what_is_no_request_ends_its_connection_and_nothing_else(lab):
    for text in (b"this is no JSON\n", b"[1, 2]\n"):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(DEADLINE_S)
            connection.connect(wire.address(lab.name))
            connection.sendall(text)
            assert connection.recv(1) == b""
    with Client(lab.name) as client:
        assert len(client.graph()) > 3


def labs():
    return json.loads(lab_command("list", "--json").stdout)


def test_a_lab_ends_with_the_process_that_owns_it(mark, namespaces_of):
    code = (
        "import sys\n"
        "from dmlcomm.lab import Lab\n"
        "with Lab('flat:2,1', name=sys.argv[1]) as lab:\n"
        "    run = lab.popen_run(['sleep', '600'])\n"
        "    print('up', flush=True)\n"
        "    run.wait()\n"
    )
    name = f"owned-{mark}"
    command = [sys.executable, "-c", code, name]
    environment = os.environ | {MARK: mark}
    with running(subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)) as owner:
        assert owner.stdout.readline() == b"up\n"
        namespaces = namespaces_of(name)
        pidfds = [os.pidfd_open(pid) for pid in pids_of(mark)]
        owner.kill()
        wait_for_end(pidfds)
    assert name not in names_in_use()
    assert namespaces.isdisjoint(network_namespaces())


def test_up_run_kill_down_again_and_again_leaves_nothing(mark, namespaces_of):
    namespaces, files = set(), set(os.listdir("/tmp"))
    name = f"cycle-{os.getpid()}"
    environment = os.environ | {MARK: mark}
    for _ in range(3):
        up = lab_command("up", "bcube:2,2", "--rate", "100mbit", "--name", name, env=environment)
        assert up.returncode == 0, up.stderr
        namespaces |= namespaces_of(name)
        command = [sys.executable, "-m", "dmlcomm.lab", "run", "-n", name, "--", "sleep", "600"]
        with subprocess.Popen(command, env=environment) as run:
            run.kill()
        down = lab_command("down", "--name", name)
        assert down.returncode == 0, down.stderr
    assert name not in names_in_use()
    assert namespaces.isdisjoint(network_namespaces())
    assert {entry for entry in os.listdir("/tmp") if "lab" in entry} <= files


def test_a_stopped_holder_can_be_taken_down():
    with Lab("flat:1,1") as lab:
        holder = next(entry["pid"] for entry in labs() if entry["name"] == lab.name)
        os.kill(holder, signal.SIGSTOP)
        lab.down()
        assert lab.name not in names_in_use()


def test_labs_do_not_collide():
    with Lab("flat:2,1") as first, Lab("flat:2,1") as second:
        assert output(first, "host0", "hostname") == output(second, "host0", "hostname")
        first.set("host0:eth0", "down")
        assert all(link.up for link in second.links())


def test_a_name_has_one_lab(lab):
    result = lab_command("up", "flat:1,1", "--name", lab.name)
    assert result.returncode == 1
    assert f'there is a lab "{lab.name}" already' in result.stderr


def test_the_lab_that_is_meant_has_to_exist():
    result = lab_command("exec", "--name", "nosuch", "host0", "--", "true")
    assert result.returncode == 1
    assert '"nosuch" does not exist' in result.stderr
    assert "Traceback" not in result.stderr


def test_an_unknown_node_is_an_error_that_names_it(lab):
    result = lab_command("exec", "--name", lab.name, "host9", "--", "true")
    assert result.returncode == 1
    assert 'no node "host9"' in result.stderr


def test_status_reports_every_link_with_its_rate(lab):
    lab.set("host2:eth1", "rate=20mbit")
    result = lab_command("status", "--name", lab.name, "--interval", "0.1", "--json")
    links = {entry["a"]: entry for entry in json.loads(result.stdout)["links"]}
    assert len(links) == 6
    assert links["host0:eth0"]["set_rate_bps"] == 200_000_000
    assert links["host0:eth1"]["set_rate_bps"] == 50_000_000
    assert links["host2:eth1"]["set_rate_bps"] == 20_000_000
    assert "host2:eth1" in lab_command("status", "--name", lab.name, "--once").stdout
    lab.set("host2:eth1", "rate=50mbit")


def link_of(lab, place):
    result = lab_command("status", "--name", lab.name, "--interval", "0.1", "--json")
    return next(entry for entry in json.loads(result.stdout)["links"] if entry["a"] == place)


def test_the_directions_of_a_link_have_rates_of_their_own(lab):
    lab.set("host0:eth1", "out=20mbit")
    link = link_of(lab, "host0:eth1")
    assert (link["set_rate_bps"], link["set_back_rate_bps"]) == (20_000_000, 50_000_000)
    assert "rate 20Mbit" in output(lab, "host0", "tc", "qdisc", "show", "dev", "eth1")
    lab.set("host0:eth1", "in=10mbit")
    assert link_of(lab, "host0:eth1")["set_back_rate_bps"] == 10_000_000
    lab.set("host0:eth1", "rate=50mbit")
    link = link_of(lab, "host0:eth1")
    assert (link["set_rate_bps"], link["set_back_rate_bps"]) == (50_000_000, 50_000_000)


def test_a_link_has_an_mtu_of_its_own(lab):
    mtu = ("cat", "/sys/class/net/eth1/mtu")
    before = output(lab, "host0", *mtu).strip()
    lab.set("host0:eth1", "mtu=1400")
    assert output(lab, "host0", *mtu) == "1400\n"
    assert output(lab, "host1", *mtu).strip() == before
    lab.set("host0:eth1", f"mtu={before}")
    assert output(lab, "host0", *mtu).strip() == before
    with pytest.raises(LabError, match="MTU 20"):
        lab.set("host0:eth1", "mtu=20")


def test_background_traffic_flows_until_its_block_ends(lab):
    def received_bps(place):
        return link_of(lab, place)["b_to_a"]["rate_bps"]

    places = [f"host{number}:eth1" for number in range(3)]
    with lab.load("eth1", "10mbit"):
        eventually(lambda: all(received_bps(place) > 5e6 for place in places), "traffic")
    eventually(lambda: all(received_bps(place) < 1e6 for place in places), "silence")
    with pytest.raises(LabError, match="no load"), lab.load("eth7", "10mbit"):
        pass


def test_a_pulled_cable_takes_the_carrier_away(lab):
    carrier = ("cat", "/sys/class/net/eth1/carrier")
    assert output(lab, "host0", *carrier) == "1\n"
    lab.set("host0:eth1", "down")
    assert output(lab, "host0", *carrier) == "0\n"
    lab.set("host0:eth1", "up")
    assert output(lab, "host0", *carrier) == "1\n"


SEND = (
    "import socket, sys\n"
    "sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
    "for number in range(1000):\n"
    "    sender.sendto(b'data', (sys.argv[1], 5005))\n"
)


def datagrams_for_nobody(lab, node):
    """How many datagrams have arrived at a port that nobody listens to; the kernel counts them."""
    head, numbers = (
        line.split()
        for line in output(lab, node, "cat", "/proc/net/snmp").splitlines()
        if line.startswith("Udp:")
    )
    return int(dict(zip(head, numbers, strict=True))["NoPorts"])


def test_loss_takes_its_share_of_the_packets(lab, loss_is_possible):
    # Both hosts have to know each other's Ethernet address before packets are counted.
    refused = "import socket; print(socket.socket().connect_ex(('10.1.0.2', 9)))"
    assert output(lab, "host0", sys.executable, "-c", refused).strip() == str(errno.ECONNREFUSED)
    before = datagrams_for_nobody(lab, "host1")
    lab.set("host1:eth1", "loss=20%")
    output(lab, "host0", sys.executable, "-c", SEND, "10.1.0.2")
    # The link needs 10 ms for all of them, and a process more than that to start.
    received = datagrams_for_nobody(lab, "host1") - before
    lab.set("host1:eth1", "loss=0%")
    # 1000 packets with 20 % loss: five standard deviations are 63.
    assert abs(received - 800) < 70


def test_delay_works_or_says_what_the_kernel_lacks(lab):
    arguments = ("set", "--name", lab.name, "host0:eth1")
    result = lab_command(*arguments, "delay=20ms")
    if result.returncode != 0:
        assert "CONFIG_NET_SCH_NETEM" in result.stderr
        assert [link.shape.delay_us for link in lab.links()] == [0] * 6
        return
    begin = time.monotonic()
    output(lab, "host0", "bash", "-c", "exec 3<>/dev/tcp/10.1.0.2/9 || true")
    assert time.monotonic() - begin > 0.04
    assert lab_command(*arguments, "delay=0").returncode == 0


SERVE = (
    "import socket\n"
    "server = socket.create_server(('', 5006))\n"
    "print('ready', flush=True)\n"
    "connection = server.accept()[0]\n"
    "control = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)\n"
    "print(connection.recv(10), control.rstrip(b'\\0'))\n"
)
SAY_HI = (
    "import socket, sys\n"
    "connection = socket.create_connection((sys.argv[1], 5006), 5)\n"
    "connection.send(b'hi')\n"
    "print(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b'\\0'))\n"
)


def congestion_of_a_connection(lab, node, address):
    """What the two ends of a connection from host0 to ``node`` use; text has gone over it."""
    command = [sys.executable, "-c", SERVE]
    with running(lab.popen(node, command, stdout=subprocess.PIPE, text=True)) as server:
        assert server.stdout.readline() == "ready\n"
        ours = output(lab, "host0", sys.executable, "-c", SAY_HI, address).strip()
        received, theirs = server.stdout.readline().split()
    assert received == "b'hi'"
    return [ours, theirs]


@pytest.mark.parametrize(
    ("spec", "node", "address"),
    [("bcube:2,2", "host3", "10.1.1.2"), ("fattree:4,hosts=6", "host5", "10.1.0.3")],
)
def test_hosts_reach_each_other_over_several_hops(spec, node, address):
    with Lab(spec, options=Options(congestion="reno")) as lab:
        assert congestion_of_a_connection(lab, node, address) == ["b'reno'"] * 2


def test_the_congestion_control_outlives_an_interface():
    with Lab("flat:2,1", options=Options(congestion="reno")) as lab:
        link = lab.links()[0]
        for end in link.ends:
            lab.set(str(end), "down")
            lab.set(str(end), "up")
        assert congestion_of_a_connection(lab, "host1", "10.0.0.2") == ["b'reno'"] * 2
        assert congestion_of_a_connection(lab, "host0", "127.0.0.1") == ["b'reno'"] * 2


def test_an_unknown_congestion_control_is_an_error_that_names_the_known():
    lab = Lab("flat:2,1", options=Options(congestion="nosuch"))
    with pytest.raises(LabError, match=r'no congestion control "nosuch"; it has .*reno'), lab:
        pass


def test_it_works_without_privileges():
    if os.geteuid() != 0:
        pytest.skip("the other tests have just run without privileges")
    code = (
        "import os, sys\n"
        "from dmlcomm.lab import Lab, LabError\n"
        "try:\n"
        "    with Lab('fattree:2', rate='100mbit') as lab:\n"
        "        print(lab.run(['true']).returncode)\n"
        "except LabError as error:\n"
        "    print('refused:', error)\n"
    )
    # Reading files of others is no privilege over namespaces; the interpreter may be such a file.
    only = f"-all,+{CAP_DAC_READ_SEARCH}"
    drop = ["setpriv", "--reuid", "12345", "--regid", "12345", "--clear-groups"]
    drop += [f"--inh-caps={only}", f"--ambient-caps={only}", f"--bounding-set={only}"]
    result = subprocess.run(
        [*drop, sys.executable, "-B", "-c", code],
        env=os.environ | {"HOME": "/tmp"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    if result.stdout.startswith("refused:"):
        pytest.skip(f"this kernel allows labs for root only: {result.stdout}")
    assert (result.returncode, result.stdout) == (0, "0\n"), result.stderr
