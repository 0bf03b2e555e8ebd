"""Switches that send packets of urgent operations first: the window, and bridges of a lab."""

import contextlib
import json
import os
import random
import struct
import subprocess
import sys
from dataclasses import asdict

import pytest

from dmlcomm.lab import Lab
from dmlcomm.prio.switch import commands, filters, kernel, program
from dmlcomm.prio.switch.marks import OPTION, OPTION_BYTES, Mark, dscp_of, dscp_of_layer
from dmlcomm.prio.switch.settings import Settings
from dmlcomm.prio.switch.window import DRAIN_SHIFT, LEAST_BYTES, PriorityWindow, WindowSettings
from helpers.lab_agent import Agent
from helpers.lab_scripts import run_script
from helpers.waiting import eventually

pytestmark = pytest.mark.xdist_group("switch")

DEADLINE_S = 30
SWITCH = "switch0.0"
BRIDGE = "br0"
DAEMON, ASK = "dmlcomm.prio.switch.daemon", "dmlcomm.prio.switch.ask"
COMMAND_LINE = "dmlcomm.cli"
TRAFFIC = "marked_traffic"
NEVER_NS = 2_000_000_000
REFUSED = kernel.why_not_permitted()

needs_bpf = pytest.mark.skipif(REFUSED is not None, reason=f"no eBPF here: {REFUSED}")
CLASSIFIERS = [pytest.param("ebpf", marks=needs_bpf), "u32"]


def window_at(base, num_queues=4, slide_bytes=10_000, drain=None):
    """A window that begins with a small packet of the layer."""
    window = PriorityWindow(WindowSettings(num_queues, slide_bytes, NEVER_NS, drain))
    window.classify(base, LEAST_BYTES, 1)
    return window


# --- marks


def test_marks_are_those_of_the_sender():
    assert [dscp_of(ticket) for ticket in (0, 31, 32, 39, 40, 127)] == [1, 32, 33, 33, 34, 44]
    assert (Mark.DSCP.num_layers, Mark.IP_OPTION.num_layers) == (44, 128)
    tickets = [Mark.DSCP.tickets(layer) for layer in (0, 31, 32, 43)]
    assert tickets == ["0", "31", "32-39", "120-127"]
    assert Mark.IP_OPTION.tickets(100) == "100"


# --- the priority window


def test_a_layer_below_the_window_moves_it_down():
    """The paper's figure 5: layers 1 to 4 have queues; layer 0 comes, and layer 4 is above."""
    window = window_at(1)
    assert [window.classify(layer, 150, 1) for layer in (1, 2, 3, 4)] == [0, 1, 2, 3]
    assert window.classify(0, 150, 1) == 0
    assert [window.classify(layer, 150, 1) for layer in (1, 2, 3, 4, 50)] == [1, 2, 3, 3, 3]


def test_the_window_moves_ahead_when_its_highest_queue_has_sent_enough():
    window = window_at(5)
    assert [window.classify(5, 4_000, 1) for _ in range(3)] == [0, 0, 0]
    assert window.base == 4
    assert window.classify(5, 150, 1) == 1
    assert window.classify(4, 150, 1) == 0  # an empty queue


def test_the_window_does_not_move_ahead_of_bytes_that_wait():
    drain = 1 << DRAIN_SHIFT  # a byte per ns
    window = window_at(5, drain=drain)
    for _ in range(10):
        window.classify(5, 4_000, 1)
    assert window.base == 5
    window.classify(5, LEAST_BYTES, 10_001)  # of 40,000 bytes 10,000 have left
    assert window.base == 4


def test_the_window_ends_at_layer_0():
    window = window_at(0)
    for _ in range(10):
        assert window.classify(0, 20_000, 1) == 0
    assert window.base == 0


def test_the_window_rises_after_layer_0():
    window = window_at(3)
    window.classify(0, 1_000, 1)
    assert window.is_rising
    assert [window.classify(6, 5_000, 1) for _ in range(2)] == [3, 3]
    assert window.base == 1
    while window.base < 6:
        window.classify(6, 5_000, 1)
    assert window.classify(6, 50_000, 1) == 0
    assert window.base == 6


def test_packets_that_wait_are_not_passed_by_later_ones_of_their_layer():
    window = window_at(0, drain=1 << DRAIN_SHIFT)  # a byte per ns
    window.classify(0, 20_000, 1)
    assert [window.classify(2, 9_000, 1) for _ in range(10)] == [2] * 10
    assert window.base == 0
    window.classify(9, 9_000, 1)  # above the window, where layers share a queue
    assert window.base == 1
    assert window.classify(2, 9_000, 200_000) == 1  # all before it have left
    assert window.classify(2, 9_000, 400_000) == 1
    assert window.base == 2


def test_urgent_packets_keep_the_window_from_rising():
    window = window_at(0)
    for _ in range(10):
        window.classify(0, 150, 1)
        window.classify(6, 9_000, 1)
    assert window.base == 0


def test_the_window_begins_anew_after_a_pause():
    window = window_at(0)
    assert window.classify(9, 150, 2 * NEVER_NS) == 0
    assert not window.is_rising


def test_the_next_iteration_needs_no_pause():
    window = window_at(11)
    for iteration in (1, 2):
        for layer in range(11, -1, -1):
            queues = [window.classify(layer, 1_500, iteration) for _ in range(200)]
            if layer < 11:
                assert queues == [0] * 200 if layer == 0 else queues[0] == 0
                assert window.base == max(0, layer - 1)
        assert window.is_rising


def test_packets_without_payload_do_not_move_the_window():
    window = window_at(5)
    for layer, queue in ((0, 0), (6, 1), (20, 3)):
        assert window.classify(layer, LEAST_BYTES - 1, 2 * NEVER_NS) == queue
    assert (window.base, window.is_rising, window.num_moves) == (5, False, 1)


# --- classifiers: the program in the kernel, and filters


def frame(layer, mark, num_bytes=1_000, version=4):
    """An Ethernet frame with the mark of a layer, or with none."""
    dscp = 0 if layer is None else dscp_of_layer(layer)
    if version == 6:
        head = b"\x86\xdd" + struct.pack(">I", 6 << 28 | dscp << 22)
    else:
        option = b""
        if mark is Mark.IP_OPTION:
            dscp, option = 0, bytes([OPTION, OPTION_BYTES, layer or 0, 0]) * (layer is not None)
        begin = (0x45 + len(option) // 4, dscp << 2, num_bytes - 14, 0, 0, 64, 6, 0, 1, 2)
        head = b"\x08\x00" + struct.pack(">BBHHHBBHII", *begin) + option
    return (bytes(12) + head).ljust(num_bytes, b"\0")


def tagged(packet):
    """With a VLAN tag, for all hosts. In a bridge the tag is beside the frame, not in it."""
    return b"\xff" * 6 + bytes([2, 0, 0, 0, 0, 1]) + b"\x81\x00\x00\x05" + packet[12:]


def late(mark):
    """A frame with what would be the mark of ticket 128, or of a later one."""
    return frame(mark.num_layers, mark)


def versions_of(mark):
    return (4, 6) if mark is Mark.DSCP else (4,)


@contextlib.contextmanager
def loaded(mark, settings):
    values = kernel.create_map(program.STATE_BYTES)
    code = kernel.load_program(program.build(mark, settings, values, 100))
    try:
        yield code, lambda decode: decode(kernel.read_map(values, program.STATE_BYTES))
    finally:
        os.close(code)
        os.close(values)


@needs_bpf
@pytest.mark.parametrize("drain", [None, 500, 40_000])
@pytest.mark.parametrize("mark", Mark)
def test_the_kernels_program_is_the_window(mark, drain):
    settings = WindowSettings(4, 5_000, NEVER_NS, drain)
    draw = random.Random(7)
    window, counts, num_waits = PriorityWindow(settings), [0] * 128, 0
    with loaded(mark, settings) as (code, read):
        for _ in range(2_000):
            layer = draw.randrange(draw.choice([3, 8, mark.num_layers]))
            num_bytes, version = draw.randrange(60, 1_500), draw.choice(versions_of(mark))
            got, _ = kernel.run_program(code, frame(layer, mark, num_bytes, version))
            now_ns = read(program.decode_last_ns)
            assert got == 100 + window.classify(layer, num_bytes, now_ns)
            counts[layer] += num_bytes
            num_waits += window.waits_to_rise
        found = read(program.decode_state)
    assert (found.base, found.is_rising, found.num_moves) == (
        window.base,
        window.is_rising,
        window.num_moves,
    )
    assert list(found.layer_bytes) == counts
    assert found.num_moves > 100
    if drain != 40_000:  # it depends on the machine
        assert (num_waits > 0) == (drain == 500)


@needs_bpf
@pytest.mark.parametrize("mark", Mark)
def test_the_kernels_program_leaves_other_packets_alone(mark):
    other = Mark.IP_OPTION if mark is Mark.DSCP else Mark.DSCP
    with loaded(mark, WindowSettings(4, 5_000, NEVER_NS, None)) as (code, read):
        for packet in (
            frame(None, mark),
            late(mark),
            frame(3, other),
            bytes(60),
            b"\x08\x06".rjust(60, b"\0"),
        ):
            assert kernel.run_program(code, packet)[0] == 0
        assert sum(read(program.decode_state).layer_bytes) == 0


@needs_bpf
@pytest.mark.parametrize(("drain", "base"), [(0, 5), (1 << 30, 0)], ids=["stuck", "fast"])
def test_the_kernels_program_counts_what_has_left(drain, base):
    with loaded(Mark.DSCP, WindowSettings(4, 5_000, NEVER_NS, drain)) as (code, read):
        kernel.run_program(code, frame(5, Mark.DSCP))
        for _ in range(100):
            kernel.run_program(code, frame(read(program.decode_state).base, Mark.DSCP))
        assert read(program.decode_state).base == base


def matches(packet, protocol, keys):
    """Whether a u32 filter takes a frame."""
    if int.from_bytes(packet[12:14], "big") != protocol:
        return False
    for key in keys:
        value, mask, place = (int(part, 0) for part in key.replace("/", "+").split("+"))
        word = int.from_bytes(packet[14 + place : 18 + place], "big")
        if word & mask != value:
            return False
    return True


@pytest.mark.parametrize("mark", Mark)
def test_filters_and_the_daemon_read_marks_alike(mark):
    layers = range(mark.num_layers)
    every = [(layer, f) for layer in layers for f in filters.filters_of(layer, mark)]
    for layer in (0, 1, 31, 32, mark.num_layers - 1):
        for version in versions_of(mark):
            packet = frame(layer, mark, version=version)
            assert filters.layer_of(packet, mark) == layer
            assert [number for number, f in every if matches(packet, *f)] == [layer]
    for unmarked in (frame(None, mark), late(mark)):
        assert filters.layer_of(unmarked, mark) is None
        assert not any(matches(unmarked, *f) for _, f in every)


# --- bridges of a lab


@pytest.fixture(scope="module")
def lab(lab_is_possible):
    with Lab("flat:3,1", rate="50mbit") as built:
        yield built


@pytest.fixture(scope="module")
def agent(lab):
    agent = Agent(lab.name, [DAEMON, ASK, TRAFFIC, COMMAND_LINE, commands.__name__])
    yield agent
    agent.close()


def command(*arguments):
    words = [sys.executable, "-m", "dmlcomm", "switch", *arguments]
    return subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE_S)


def ask(agent, operation, bridge=BRIDGE):
    return json.loads(agent.main(SWITCH, ASK, bridge, operation))


def start(agent, **options):
    settings = asdict(Settings(BRIDGE)) | {"mark": "dscp", "classifier": "auto"} | options
    report = json.loads(agent.main(SWITCH, DAEMON, json.dumps(settings)))
    assert "error" not in report, report


@contextlib.contextmanager
def scheduled(agent, **options):
    start(agent, **options)
    try:
        yield
    finally:
        answer = ask(agent, "stop")
        assert "error" not in answer, answer


def status(agent):
    """By port, when none is changing."""

    def answer():
        found = ask(agent, "status")
        return None if "ask again" in found.get("error", "") else found

    return {port["port"]: port for port in eventually(answer, "status")["ports"]}


class Traffic:
    """Connections to host 0; `events` are the receiver's lines."""

    def __init__(self, agent, num_connections, mark="dscp"):
        self._agent = agent
        self._mark = mark
        self._stack = contextlib.ExitStack()
        self._lines = self._start("host0", "receive", num_connections)
        self.wait_for("listens")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stack.close()

    def _start(self, host, name, *arguments):
        return self._stack.enter_context(self._agent.started(host, f"{TRAFFIC}:{name}", *arguments))

    def send(self, host, ticket, num_bytes):
        self._start(host, "send", "10.0.0.1", ticket, num_bytes, self._mark)

    def wait_for(self, event):
        for line in self._lines:
            report = json.loads(line)
            if report["event"] == event:
                return report
        raise AssertionError(f"the receiver ended before {event}")


def bytes_beside(agent, bulk_ticket, mark="dscp"):
    """What a connection that has begun before brought while 3 MB of ticket 0 came."""
    with Traffic(agent, 2, mark) as traffic:
        traffic.send("host1", bulk_ticket, 1 << 30)
        traffic.wait_for("flows")
        traffic.send("host2", 0, 3_000_000)
        ended = traffic.wait_for("ended")
        assert ended["number"] == 1
        return ended["bytes"][0]


@pytest.mark.alone
@pytest.mark.parametrize("classifier", CLASSIFIERS)
def test_urgent_packets_overtake(agent, classifier):
    """Side by side both would bring 3 MB."""
    with scheduled(agent, classifier=classifier):
        assert bytes_beside(agent, 6) < 1_000_000


def test_packets_with_the_papers_option_are_told_apart(agent):
    with scheduled(agent, mark="ip-option"):
        with Traffic(agent, 1, "ip-option") as traffic:
            traffic.send("host1", 100, 100_000)
            traffic.wait_for("ended")
        port = eventually(lambda: [p for p in [status(agent)["port0"]] if p["layers"]], "bytes")[0]
    assert [layer["tickets"] for layer in port["layers"]] == ["100"]
    assert sum(queue["sent_bytes"] for queue in port["queues"]) > 100_000


@pytest.mark.alone
def test_packets_without_a_mark_keep_their_share(agent):
    """40 % of the rate would be 2 MB beside 3."""
    with scheduled(agent, unmarked_share=0.4):
        assert 700_000 < bytes_beside(agent, None) < 2_900_000


@pytest.mark.parametrize("classifier", CLASSIFIERS)
def test_the_window_follows_the_layers(agent, classifier):
    unmarked = tagged(frame(2, Mark.DSCP)).hex()
    with scheduled(agent, classifier=classifier, idle_ms=600_000, slide_bytes=100_000):
        agent.call("host1", f"{TRAFFIC}:send_frames", "eth0", unmarked, 50)
        with Traffic(agent, 8) as traffic:
            before = ((9, 50_000), (7, 50_000), (0, 50_000))
            for ticket, num_bytes in (*before, *[(4, 400_000)] * 5):  # the queue is empty between
                traffic.send("host1", ticket, num_bytes)
                traffic.wait_for("ended")
                if ticket == 0:
                    eventually(
                        lambda: status(agent)["port0"]["window"]["first"] == "0", "window at 0"
                    )
        eventually(lambda: status(agent)["port0"]["window"]["first"] == "4", "window at 4")
        port = status(agent)["port0"]
    counted = {entry["tickets"]: entry["bytes"] for entry in port["layers"]}
    assert list(counted) == ["0", "4", "7", "9"]
    assert counted["0"] > 50_000
    assert counted["4"] > 2_000_000
    assert sum(queue["sent_bytes"] for queue in port["queues"]) > 2_150_000
    assert port["unmarked"]["sent_bytes"] > 50_000
    assert port["window"]["is_rising"]
    assert port["window"]["moves"] >= 6


def queues_of(agent):
    return sorted(agent.run(SWITCH, "tc", "-d", "qdisc", "show").splitlines())


def test_a_start_after_a_killed_process_takes_its_queues_over(lab, agent):
    """Token buckets come back as they were, also one whose burst is rounded when it is read, one
    with bytes more per packet, and one of more than 34 Gb/s."""
    for port, options in (
        ("port1", "rate 45mbit burst 33333 limit 300000 overhead 24 mpu 64"),
        ("port2", "rate 40gbit burst 10mb limit 20mb"),
    ):
        words = f"tc qdisc replace dev {port} root handle 5: tbf {options}"
        agent.run(SWITCH, *words.split())
    before = queues_of(agent)
    start(agent, rate_bps=100_000_000_000)
    found = ask(agent, "status")
    assert {port["rate_bps"] for port in found["ports"]} == {100_000_000_000}
    agent.run(SWITCH, "kill", "-KILL", str(found["pid"]))
    assert "htb" in "".join(queues_of(agent))
    with scheduled(agent):
        rates = [port["rate_bps"] for port in status(agent).values()]
        assert rates == [50_000_000, 45_000_000, 40_000_000_000]
        assert "overhead 24" in agent.run(SWITCH, "tc", "-d", "class", "show", "dev", "port1")
    assert queues_of(agent) == before
    for host in (1, 2):
        lab.set(f"host{host}:eth0", "rate=40mbit")
        lab.set(f"host{host}:eth0", "rate=50mbit")


def test_ports_that_come_back_are_scheduled_again(lab, agent):
    before = queues_of(agent)
    with scheduled(agent, classifier="u32"):  # which has a descriptor that comes and goes too
        assert list(status(agent)) == ["port0", "port1", "port2"]
        agent.run(SWITCH, "ip", "link", "set", "port1", "nomaster")
        eventually(lambda: "port1" not in status(agent), "port1 let go")
        assert [q for q in queues_of(agent) if "port1" in q] == [q for q in before if "port1" in q]
        agent.run(SWITCH, "ip", "link", "set", "port1", "master", "br0")
        eventually(lambda: "port1" in status(agent), "port1 taken again")
        lab.set("host2:eth0", "rate=20mbit")
        eventually(
            lambda: status(agent)["port2"]["rate_bps"] == 20_000_000, "port2 at its new rate"
        )
        lab.set("host2:eth0", "down")
        lab.set("host2:eth0", "up", "rate=50mbit")
        eventually(
            lambda: status(agent)["port2"]["rate_bps"] == 50_000_000, "port2 at its old rate"
        )
    assert queues_of(agent) == before


OPTIONS = (
    "--mark ip-option --queues 2 --slide-bytes 5000 --idle-ms 300 --unmarked-share 0.2 "
    "--rate 40mbit --classifier u32"
)


def test_the_status_shows_window_queues_and_bytes_by_ticket(capsys):
    def queue(sent_bytes, **more):
        return {"sent_bytes": sent_bytes, "backlog_bytes": 2000, "drops": 3, **more}

    port = {
        "port": "port0",
        "rate_bps": 40_000_000,
        "window": {"first": "0", "last": "1", "is_rising": True, "moves": 5},
        "queues": [queue(1000, tickets="0"), queue(2_000_000, tickets="1 and later")],
        "unmarked": queue(7),
        "layers": [{"tickets": "0", "bytes": 1000}, {"tickets": "120-127", "bytes": 5_000_000}],
    }
    commands._show({"switch": "s0", "ports": [port], "not_scheduled": {"port1": "no rate"}})
    text = capsys.readouterr().out
    assert "s0 port0: 40 Mb/s, window 0 to 1, rising, 5 moves" in " ".join(text.split())
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines()]
    assert [row for row in rows if row] == [
        ["0", "0", "1 kB", "2 kB", "3"],
        ["1", "1 and later", "2 MB", "2 kB", "3"],
        ["last", "no mark", "7 B", "2 kB", "3"],
    ]
    assert "bytes by ticket: 0: 1 kB, 120-127: 5 MB" in text
    assert "not scheduled: no rate" in text


def test_the_command_starts_shows_and_stops(lab, agent):
    place = ("--lab", lab.name)
    begun = command("start", *place, *OPTIONS.split())
    assert begun.stdout == f"{SWITCH} is scheduled: 3 ports, 2 queues each, u32\n", begun.stderr
    shown = command("status", *place).stdout
    assert f"{SWITCH} port0: 40 Mb/s, window 0 to 1" in shown.replace("\n", " ")
    (switch,) = json.loads(command("status", *place, "--json").stdout)["switches"]
    settings = ["ip-option", 2, 5000, 300, 0.2, 40_000_000, "u32"]
    names = "mark num_queues slide_bytes idle_ms unmarked_share rate_bps classifier"
    assert [switch[name] for name in names.split()] == settings
    assert [queue["tickets"] for queue in switch["ports"][0]["queues"]] == ["0", "1 and later"]
    again = command("start", *place)
    assert (again.returncode, "scheduled already" in again.stderr) == (1, True)
    assert len(status(agent)) == 3
    assert command("stop", *place).returncode == 0
    for operation in ("stop", "status"):
        assert "is not scheduled" in ask(agent, operation)["error"]


def test_a_bridge_of_the_machine_is_scheduled_until_the_stop_or_its_end(agent):
    """The command line, in the network of a node, knows nothing of the lab."""

    def printed(*arguments):
        return " ".join(agent.main(SWITCH, COMMAND_LINE, "switch", *arguments).split())

    for words in ("br9 type bridge", "left9 type veth peer name right9"):
        agent.run(SWITCH, "ip", "link", "add", *words.split())
    agent.run(SWITCH, "ip", "link", "set", "left9", "master", "br9")
    before = queues_of(agent)
    begun = printed("start", "--bridge", "br9", "--rate", "1gbit", "--queues", "2")
    assert begun.startswith("br9 is scheduled: 1 ports, 2 queues each, ")
    assert printed("status", "--bridge", "br9").startswith("br9 left9: 1 Gb/s, window 0 to 1")
    assert printed("stop", "--bridge", "br9") == "br9 is not scheduled any more"
    assert queues_of(agent) == before

    start(agent, bridge="br9", rate_bps=1_000_000_000)
    assert "htb" in agent.run(SWITCH, "tc", "qdisc", "show", "dev", "left9")
    agent.run(SWITCH, "ip", "link", "del", "br9")
    eventually(
        lambda: "br9 is not scheduled" in ask(agent, "status", "br9").get("error", ""),
        "the end of the process",
    )
    assert "htb" not in agent.run(SWITCH, "tc", "qdisc", "show", "dev", "left9")
    agent.run(SWITCH, "ip", "link", "del", "left9")


def test_of_several_switches_an_error_at_one_holds_up_no_other(lab_is_possible):
    with Lab("flat:2,2", rate="50mbit") as two:
        assert command("start", "--lab", two.name, "--switch", "switch1.0").returncode == 0
        begun = command("start", "--lab", two.name)
        assert (begun.returncode, "switch1.0: br0 is scheduled already" in begun.stderr) == (
            1,
            True,
        )
        assert "switch0.0 is not scheduled any more" in begun.stdout
        ended = command("stop", "--lab", two.name)
        assert (ended.returncode, "switch0.0: br0 is not scheduled" in ended.stderr) == (1, True)
        assert "switch1.0 is not scheduled any more" in ended.stdout


def test_queues_that_could_not_be_put_back_are_refused(lab, agent):
    """One of the kernel's kinds, which somebody has set."""
    agent.run(
        SWITCH, "tc", "qdisc", "replace", "dev", "port1", "root", "handle", "5:", "pfifo_fast"
    )
    before = queues_of(agent)
    with pytest.raises(AssertionError, match='port1 has a queueing discipline "pfifo_fast"'):
        start(agent)
    assert queues_of(agent) == before
    lab.set("host1:eth0", "rate=40mbit")
    lab.set("host1:eth0", "rate=50mbit")


def test_without_rights_the_error_names_them(lab):
    words = ["setpriv", "--bounding-set", "-net_admin", sys.executable, "-m", "dmlcomm", "switch"]
    result = lab.exec(
        SWITCH,
        [*words, "start", "--bridge", "br0"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert result.returncode == 1
    assert "CAP_NET_ADMIN" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "--bridge br0 of this machine, or --lab NAME"),
        (("--bridge", "br0", "--switch", "switch0.0"), "needs --lab"),
        (("--bridge", "there-is-none"), "there is no interface there-is-none here"),
        (("--lab", "there-is-none"), 'the lab "there-is-none" does not exist'),
        (("--bridge", "br0", "--rate", "fast"), "expected a rate"),
    ],
)
def test_wrong_places_are_errors(arguments, text):
    result = command("start", *arguments)
    assert result.returncode == 1
    assert text in result.stderr.replace("\n", " ")


# A large message with a ticket, and one with a late ticket.
SENDS = """
tensor = torch.zeros(400_000)
group = dist.group.WORLD
for ticket in (3, 200):
    with dmlcomm.ticket(ticket):
        (dist.send if rank == 1 else dist.recv)(tensor, 1 - rank)
end()
"""


@pytest.mark.parametrize("marking", ["dscp", "ip-option", "none"])
def test_a_jobs_packets_carry_its_tickets(lab, agent, marking):
    mark = "dscp" if marking == "none" else marking
    with scheduled(agent, mark=mark):
        arguments = ("--on", "host[01]", "-e", f"DMLCOMM_TICKET_MARK={marking}")
        done = run_script(lab, SENDS, *arguments, deadline_s=60)
        assert done.returncode == 0, done.stderr
        port = status(agent)["port0"]
    layers = {entry["tickets"]: entry["bytes"] for entry in port["layers"]}
    if marking == "none":
        assert layers == {}
    else:
        assert list(layers) == ["3"]
        assert 1_600_000 < layers["3"] < 3_000_000
    assert port["unmarked"]["sent_bytes"] > 1_600_000
