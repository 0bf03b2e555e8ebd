"""Digits of grids, and what DMLCOMM_TOPOLOGY and its files may say."""

import itertools

import pytest

from dmlcomm.bml import grid
from dmlcomm.bml.specification import Network, TopologyError
from dmlcomm.network.setting import parse
from dmlcomm.network.topology_file import parse as parse_file

SIZES = [(2,), (3, 2), (2, 2, 2), (4, 3), (2, 3, 4)]


@pytest.mark.parametrize("sizes", SIZES)
def test_digits_name_every_host_once(sizes):
    hosts = range(grid.num_hosts(sizes))
    digits = [grid.to_digits(host, sizes) for host in hosts]
    assert sorted(digits) == sorted(itertools.product(*map(range, sizes)))
    assert [grid.from_digits(own, sizes) for own in digits] == list(hosts)


def test_digit_of_level_0_counts_fastest():
    assert [grid.to_digits(host, (3, 2)) for host in range(4)] == [(0, 0), (1, 0), (2, 0), (0, 1)]


@pytest.mark.parametrize("sizes", SIZES)
def test_neighbours_on_a_level_differ_in_that_digit_only_and_share_the_switch(sizes):
    hosts = range(grid.num_hosts(sizes))
    for a, level in itertools.product(hosts, range(len(sizes))):
        differ = [b for b in hosts if differing_levels(a, b, sizes) == [level]]
        switch = grid.switch_of(a, level, sizes)
        assert [b for b in grid.line(a, level, sizes) if b != a] == differ
        assert [b for b in hosts if grid.switch_of(b, level, sizes) == switch and b != a] == differ
        assert grid.line(a, level, sizes)[grid.to_digits(a, sizes)[level]] == a


def differing_levels(a, b, sizes):
    digits = zip(grid.to_digits(a, sizes), grid.to_digits(b, sizes), strict=True)
    return [level for level, (x, y) in enumerate(digits) if x != y]


@pytest.mark.parametrize(
    ("text", "sizes", "shown"),
    [
        ("auto", None, "auto"),
        ("flat", (), "flat"),
        ("bcube:3,2", (3, 3), "bcube:3,2"),
        ("bcube:16,4", (16,) * 4, "bcube:16,4"),
        ("grid:4x3", (4, 3), "grid:4x3"),
        ("grid:3x3", (3, 3), "bcube:3,2"),
    ],
)
def test_value_is_read(text, sizes, shown):
    network = parse(text)
    assert network == Network(sizes, source=f"DMLCOMM_TOPOLOGY={text}")
    assert str(network) == shown


@pytest.mark.parametrize(
    ("text", "rates_bps"),
    [
        ("auto@10gbit", (10 * 10**9,)),
        ("flat@200mbit,50mbit", (200 * 10**6, 50 * 10**6)),
        ("bcube:3,2@200mbit", (200 * 10**6,) * 2),
        ("grid:4x3@2.5gbit,1gbit", (25 * 10**8, 10**9)),
    ],
)
def test_value_may_have_rates(text, rates_bps):
    network = parse(text)
    assert network.rates_bps == rates_bps
    assert str(network) == text.partition("@")[0]
    assert network.fingerprint() != parse(str(network)).fingerprint()


@pytest.mark.parametrize(
    "text",
    [
        "flat@",
        "flat@10",
        "flat@0mbit",
        "flat@10gbit,",
        "@10gbit",
        "bcube:3,2@1gbit,1gbit,1gbit",
        "",
        "ring",
        "flat:2",
        "BCube:3,2",
        "bcube",
        "bcube:3",
        "bcube:3x2",
        "bcube:3,2,1",
        "bcube:3,2 ",
        "bcube:1,2",
        "bcube:2,0",
        "bcube:99,9",
        "grid:",
        "grid:4x",
        "grid:1x4",
        "grid:4,3",
    ],
)
def test_other_values_are_refused_with_what_is_expected(text):
    with pytest.raises(TopologyError) as error:
        parse(text)
    assert f'DMLCOMM_TOPOLOGY="{text}"' in str(error.value)
    assert "expected" in str(error.value)


def read(text):
    return parse_file(text, "cluster.yaml", "DMLCOMM_TOPOLOGY=file:cluster.yaml")


def test_file_says_everything():
    network = read("""
        topology: bcube:2,2
        hosts: {d: [1, 1], a: [0, 0], c: [0, 1], b: [1, 0]}
        interfaces: {1: ens5, 0: eth2}
        rates: {0: 200mbit, 1: 2.5gbit}
    """)
    assert network.sizes == (2, 2)
    assert network.hosts == ("a", "b", "c", "d")
    assert network.interfaces == ("eth2", "ens5")
    assert network.rates_bps == (200_000_000, 2_500_000_000)
    assert network.number_of("c.example.org") == 2
    assert network.number_of("e") is None


def test_hosts_may_be_a_list_and_rates_one_for_all():
    network = read("grid: [2, 3]\nhosts: [a, b, c, d, e, f]\nrates: 10gbit\n")
    assert network.sizes == (2, 3)
    assert network.hosts == tuple("abcdef")
    assert network.rates_bps == (10**10, 10**10)


def test_equal_files_have_equal_fingerprints():
    text = "topology: bcube:2,2"
    first = parse_file(text, "a.yaml", "file:a.yaml").fingerprint()
    assert first == parse_file("grid: [2, 2]", "b.yaml", "file:b.yaml").fingerprint()
    assert first == parse("bcube:2,2").fingerprint()
    assert first != parse_file(f"{text}\nrates: 1gbit", "a.yaml", "").fingerprint()


def test_file_is_read_from_its_path(tmp_path):
    path = tmp_path / "cluster.yaml"
    path.write_text("topology: bcube:2,2")
    assert parse(f"file:{path}").sizes == (2, 2)
    with pytest.raises(TopologyError, match=r"nothing\.yaml cannot be read"):
        parse(f"file:{tmp_path}/nothing.yaml")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "keys and values"),
        ("- bcube", "keys and values"),
        ("topology: [", "not legal YAML"),
        ("topology: bcube:2,2\ntopology: flat", "topology is there twice"),
        ("topology: bcube:2,2\nport: 3", "unknown key port"),
        ("rates: 1gbit", "either topology or grid"),
        ("topology: flat\ngrid: [2, 2]", "either topology or grid"),
        ("topology: torus", "torus is not legal"),
        ("topology: file:other.yaml", "is not legal"),
        ("grid: 4x3", r"\[4, 3\]"),
        ("grid: []", "1 level or more"),
        ("grid: [4, 1]", "2 ports or more"),
        ("grid: [4, true]", r"\[4, 3\]"),
        ("topology: flat\nhosts: [a, b]", "hosts needs a grid"),
        ("topology: auto\ninterfaces: {0: eth0}", "interfaces needs a grid"),
        ("topology: bcube:2,1\nhosts: a", "a list of names"),
        ("topology: bcube:2,1\nhosts: [a]", "expected 2 hosts, not 1"),
        ("topology: bcube:2,1\nhosts: [a, a]", "a is there twice"),
        ("topology: bcube:2,1\nhosts: [1, 2]", "names of hosts, not 1"),
        ("topology: bcube:2,1\nhosts: {a: [0], a: [1]}", "a is there twice"),
        ("topology: bcube:2,1\nhosts: {a: [0], b: [0]}", "a and b have the same digits"),
        ("topology: bcube:2,1\nhosts: {a: [0], b: [2]}", "hosts: b: expected 1 digits"),
        ("topology: bcube:2,1\nhosts: {a: [0], b: [0, 1]}", "hosts: b: expected 1 digits"),
        ("topology: bcube:2,1\nhosts: {a: 0, b: [1]}", "hosts: a: expected 1 digits"),
        ("topology: bcube:2,2\ninterfaces: {0: eth0}", r"levels \[0, 1\], not \[0\]"),
        ("topology: bcube:2,2\ninterfaces: [eth0, eth1]", "a mapping from each level"),
        ("topology: bcube:2,2\ninterfaces: {0: eth0, 1: eth0}", "eth0 is there twice"),
        ("topology: bcube:2,2\ninterfaces: {0: eth0, 1: 5}", "name of an interface, not 5"),
        ("topology: bcube:2,2\nrates: {0: 1gbit, 2: 1gbit}", r"levels \[0, 1\], not \[0, 2\]"),
        ("topology: bcube:2,2\nrates: fast", "a rate such as"),
        ("topology: bcube:2,2\nrates: {0: 0gbit, 1: 1gbit}", "a rate such as"),
    ],
)
def test_wrong_file_is_refused_with_its_name_and_the_reason(text, reason):
    with pytest.raises(TopologyError, match=reason) as error:
        read(text)
    assert "cluster.yaml" in str(error.value)
