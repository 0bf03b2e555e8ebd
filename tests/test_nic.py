"""NIC selection on tables of made-up interfaces, and once on the real ones."""

import logging

import pytest

from dmlcomm.network import nic
from dmlcomm.network.nic import Interface, InterfaceError, select
from dmlcomm.rail import Rail


def interface(name, index, *addresses, **changes):
    values = {"is_up": True, "is_loopback": False, "mtu": 1500, "speed_mbps": 10_000}
    return Interface(name, index, addresses=addresses, **(values | changes))


HOST = [
    interface("lo", 1, "127.0.0.1/8", "::1/128", is_loopback=True, speed_mbps=None),
    interface("eth0", 2, "10.0.0.2/24", "fe80::2/64"),
    interface("eth1", 4, "fe80::3/64", "10.0.1.2/24", mtu=9000),
    interface("eth10", 3, "10.0.10.2/24"),
    interface("eth2", 5, "10.0.2.2/24", is_up=False),
    interface("eth3", 6),
    interface("ib0", 7, "fe80::4/64", "fd00::4/64"),
    interface("docker0", 8, "172.17.0.1/16"),
    interface("veth12ab", 9, "169.254.1.1/16"),
    interface("br0", 10, "10.9.0.1/16", is_bridge=True),
    interface("wg0", 11, "10.8.0.1/16", is_tunnel=True),
]


def names(pattern, interfaces=HOST):
    return [rail.interface for rail in select(pattern, interfaces).rails]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("", ["eth0", "eth10", "eth1", "ib0"]),
        ("eth0", ["eth0"]),
        ("eth1", ["eth1"]),  # exact before prefix: not eth10
        ("eth", ["eth0", "eth10", "eth1"]),
        ("=eth1", ["eth1"]),
        ("ib0,eth1", ["ib0", "eth1"]),
        ("ib,eth", ["ib0", "eth0", "eth10", "eth1"]),
        ("eth1,eth", ["eth1", "eth0", "eth10"]),
        ("^eth", ["ib0"]),
        ("^eth1", ["eth0", "eth10", "ib0"]),
        ("^=eth0,ib", ["eth10", "eth1"]),
        ("^lo,docker0", ["eth0", "eth10", "eth1", "ib0"]),
        ("lo", ["lo"]),
        ("br0", ["br0"]),
        ("docker", ["docker0"]),
    ],
)
def test_pattern_chooses(pattern, expected):
    assert names(pattern) == expected


def test_order_does_not_depend_on_how_the_system_lists_interfaces():
    assert names("", HOST[::-1]) == names("")


def test_rail_carries_what_the_kernel_says():
    selection = select("eth1", HOST)
    (rail,) = selection.rails
    assert rail == Rail("eth1", "10.0.1.2", 24, speed_mbps=10_000, mtu=9000)
    assert "rails: eth1 (10.0.1.2/24, MTU 9000, 10000 Mb/s)" in nic.describe(selection)


def test_ipv6_is_taken_where_there_is_no_ipv4_and_link_local_never():
    assert select("ib0", HOST).rails[0].address == "fd00::4"
    ipv6_only = interface("eth9", 3, "fe80::9/64")
    assert select("", [ipv6_only]).rejected["eth9"].startswith("no usable address")


def test_every_interface_is_either_a_rail_or_has_a_reason():
    for pattern in ("", "eth", "^eth0", "=ib0"):
        selection = select(pattern, HOST)
        taken = {rail.interface for rail in selection.rails}
        assert taken | selection.rejected.keys() == {i.name for i in HOST}
        assert not taken & selection.rejected.keys()


def test_reasons_of_the_default():
    assert select("", HOST).rejected == {
        "lo": "loopback",
        "eth2": "down",
        "eth3": "no usable address (IPv4, or IPv6 beyond link-local)",
        "docker0": "docker",
        "veth12ab": "veth pair",
        "br0": "bridge",
        "wg0": "tunnel",
    }


def test_an_interface_without_carrier_is_a_candidate_and_no_rail():
    unplugged = interface("eth4", 9, "10.0.4.2/24", has_carrier=False)
    selection = select("eth0,eth4", [*HOST, unplugged])
    assert [rail.interface for rail in selection.candidates] == ["eth0", "eth4"]
    assert [rail.interface for rail in selection.rails] == ["eth0"]
    assert selection.rejected["eth4"] == "no carrier"
    with pytest.raises(InterfaceError, match="eth4: no carrier"):
        select("eth4", [unplugged])


@pytest.mark.parametrize("pattern", ["wlan", "=eth", "eth2", "^eth,ib"])
def test_a_pattern_without_match_says_what_exists_and_why_not(pattern):
    with pytest.raises(InterfaceError) as error:
        select(pattern, HOST)
    message = str(error.value)
    assert f'DMLCOMM_SOCKET_IFNAME="{pattern}"' in message
    assert all(f"{i.name}: " in message for i in HOST)


def test_default_without_network_chooses_nothing_and_never_loopback():
    assert select("", HOST[:1]).rails == ()
    assert select("", []).rails == ()


def test_real_interfaces_are_listed_by_index():
    interfaces = nic.list_interfaces()
    assert [i.index for i in interfaces] == sorted(i.index for i in interfaces)
    loopback = next(i for i in interfaces if i.is_loopback)
    assert "127.0.0.1/8" in loopback.addresses


def test_choice_is_logged_once(caplog, monkeypatch):
    monkeypatch.setattr(nic, "_logged_choices", set())
    with caplog.at_level(logging.INFO, logger="dmlcomm"):
        rails = nic.select_candidates("lo")
        assert nic.select_candidates("lo") == rails
    assert len(caplog.records) == 1
    assert "lo (127.0.0.1/8" in caplog.text
