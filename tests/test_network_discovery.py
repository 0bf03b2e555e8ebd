"""What ranks conclude from each other's interfaces: pure, on hosts that do not exist."""

import itertools
import random
from dataclasses import replace

import pytest

from dmlcomm.bml import grid
from dmlcomm.bml.specification import Network, TopologyError
from dmlcomm.lab import build
from dmlcomm.network.discovery import discover
from dmlcomm.network.facts import Facts
from dmlcomm.network.setting import parse
from dmlcomm.rail import Rail
from dmlcomm.topology import graph as topology

AUTO = Network()
GRIDS = [f"bcube:{n},{k}" for n in (2, 3, 4) for k in (2, 3)] + ["grid:4x3", "grid:2x3x4"]


def lab_facts(spec, ranks_per_host=1):
    """What the ranks in a lab would publish."""
    graph = build(spec)
    return [
        Facts(f"id of {host}", host, tuple(map(rail_of, topology.ends_of(graph, host))))
        for host in topology.hosts(graph)
        for _ in range(ranks_per_host)
    ]


def rail_of(end):
    return rail(end.interface, end.address)


def rail(interface, address, **changes):
    ip, _, prefix = address.partition("/")
    return Rail(interface, ip, int(prefix), **changes)


def with_rails(facts, host, *rails):
    return [replace(f, rails=rails) if f.host_name == host else f for f in facts]


def assert_is_grid(plan, facts):
    """Hosts have different places, and rail l leads to those that differ in digit l only."""
    rails = [
        [next(r for r in fact.rails if r.interface == name) for name in names]
        for fact, names in zip(facts, plan.interfaces_of_rank, strict=True)
    ]
    assert sorted(plan.host_of_rank) == list(range(grid.num_hosts(plan.grid)))
    for a, b in itertools.combinations(range(len(facts)), 2):
        digits = [grid.to_digits(plan.host_of_rank[rank], plan.grid) for rank in (a, b)]
        differ = [level for level, (x, y) in enumerate(zip(*digits, strict=True)) if x != y]
        shared = [
            level
            for level, (x, y) in enumerate(zip(rails[a], rails[b], strict=True))
            if x.subnet == y.subnet
        ]
        assert shared == (differ if len(differ) == 1 else [])


@pytest.mark.parametrize("spec", GRIDS)
@pytest.mark.parametrize("asked", ["auto", "the same"])
def test_lab_is_found_as_it_was_built(spec, asked):
    facts = lab_facts(spec)
    plan = discover(facts, AUTO if asked == "auto" else parse(spec), is_whole_job=True)
    assert plan.grid == parse(spec).sizes
    assert plan.host_of_rank == tuple(range(len(facts)))
    names = tuple(f"eth{level}" for level in range(len(plan.grid)))
    assert plan.interfaces_of_rank == (names,) * len(facts)
    assert plan.warnings == ()


@pytest.mark.parametrize("spec", GRIDS)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("asked", ["auto", "the same"])
def test_order_of_hosts_and_interfaces_and_addresses_do_not_matter(spec, seed, asked):
    random_ = random.Random(seed)
    facts = shuffled(lab_facts(spec), random_)
    network = AUTO if asked == "auto" else parse(spec)
    plan = discover(facts, network, is_whole_job=True)
    assert_is_grid(plan, facts)
    assert sorted(plan.grid) == sorted(parse(spec).sizes)
    if network.is_grid:
        assert plan.grid == network.sizes


def shuffled(facts, random_):
    """Hosts and their interfaces in any order, in subnets that have nothing to do with levels."""
    subnets = sorted({rail.subnet for fact in facts for rail in fact.rails})
    numbers = random_.sample(range(1, 250), len(subnets))
    renamed = {}
    for fact in facts:
        for old in fact.rails:
            last = int(old.address.rpartition(".")[2])
            number = numbers[subnets.index(old.subnet)]
            renamed[old] = Rail(f"n{random_.random()}", f"192.168.{number}.{17 + last}", 28)
    facts = [
        replace(
            fact, rails=tuple(random_.sample([renamed[r] for r in fact.rails], len(fact.rails)))
        )
        for fact in facts
    ]
    return random_.sample(facts, len(facts))


def test_ranks_of_a_host_share_its_place():
    plan = discover(lab_facts("bcube:2,2", ranks_per_host=2), AUTO, is_whole_job=True)
    assert plan.grid == (2, 2)
    assert plan.host_of_rank == (0, 0, 1, 1, 2, 2, 3, 3)


@pytest.mark.parametrize("asked", ["auto", "flat"])
def test_rails_of_a_flat_network_are_matched_by_subnet(asked):
    facts = lab_facts("flat:3,2")
    swapped = with_rails(facts, "host1", *reversed(facts[1].rails))
    plan = discover(swapped, parse(asked), is_whole_job=True)
    assert plan.grid == ()
    assert plan.host_of_rank == (0, 1, 2)
    assert plan.interfaces_of_rank == (("eth0", "eth1"),) * 3


def test_rails_in_one_subnet_go_by_their_order():
    facts = [
        Facts(name, name, (rail("b", f"10.0.0.{n}/16"), rail("a", f"10.0.1.{n}/16")))
        for n, name in enumerate("xyz", 1)
    ]
    plan = discover(facts, AUTO, is_whole_job=True)
    assert plan.grid == ()
    assert plan.interfaces_of_rank == (("b", "a"),) * 3


def test_one_level_is_a_flat_network():
    for asked in ("auto", "bcube:4,1"):
        plan = discover(lab_facts("bcube:4,1"), parse(asked), is_whole_job=True)
        assert (plan.grid, plan.host_of_rank) == ((), (0, 1, 2, 3))


def test_flat_is_not_looked_at_for_a_grid():
    plan = discover(lab_facts("bcube:2,2"), parse("flat"), is_whole_job=True)
    assert plan.grid == ()
    assert plan.interfaces_of_rank == (("eth0", "eth1"),) * 4


def test_one_host_is_flat_with_the_rails_that_it_has():
    plan = discover(lab_facts("bcube:3,2", ranks_per_host=4)[:4], AUTO, is_whole_job=True)
    assert (plan.grid, plan.host_of_rank, plan.reason) == ((), (0,) * 4, "one host")
    assert plan.interfaces_of_rank == (("eth0", "eth1"),) * 4


def part_of(spec, hosts, network=None, job_is_grid=True):
    facts = lab_facts(spec)
    network = parse(spec) if network is None else network
    return discover([facts[host] for host in hosts], network, False, job_is_grid)


@pytest.mark.parametrize("hosts", [(0, 4), (0, 4, 8), (0, 1, 3), range(4), range(7), range(8)])
@pytest.mark.parametrize("asked", ["auto", "bcube:3,2"])
def test_part_of_a_grid_that_is_none_is_flat_without_error(hosts, asked):
    plan = part_of("bcube:3,2", hosts, parse(asked))
    assert plan.grid == ()
    assert plan.host_of_rank == tuple(range(len(hosts)))
    assert plan.interfaces_of_rank == (("eth0", "eth1"),) * len(hosts)


@pytest.mark.parametrize("asked", ["auto", "the same"])
@pytest.mark.parametrize(
    ("spec", "hosts", "sizes", "interfaces"),
    [
        ("bcube:3,2", (1, 2, 4, 5), (2, 2), ("eth0", "eth1")),
        ("bcube:3,2", (3, 4, 5), (3,), ("eth0", "eth1")),  # a row
        ("bcube:3,2", (1, 4, 7), (3,), ("eth1", "eth0")),  # a column
        ("bcube:3,2", (1, 7), (2,), ("eth1", "eth0")),
        ("bcube:2,3", (4, 5, 6, 7), (2, 2), ("eth0", "eth1", "eth2")),
        ("bcube:2,3", (0, 1, 4, 5), (2, 2), ("eth0", "eth2", "eth1")),
        ("bcube:2,3", (1, 3), (2,), ("eth1", "eth0", "eth2")),
        ("grid:2x3x4", (0, 2, 4, 18, 20, 22), (3, 2), ("eth1", "eth2", "eth0")),
    ],
)
def test_grid_within_a_grid_is_found_and_its_other_rails_are_spares(
    spec, hosts, sizes, interfaces, asked
):
    plan = part_of(spec, hosts, AUTO if asked == "auto" else parse(spec))
    assert plan.grid == sizes
    assert plan.host_of_rank == tuple(range(len(hosts)))
    assert plan.interfaces_of_rank == (interfaces,) * len(hosts)


def test_part_of_a_network_that_may_be_no_grid_keeps_all_its_rails():
    plan = part_of("bcube:3,2", (3, 4, 5), AUTO, job_is_grid=False)
    assert plan.grid == ()
    assert plan.interfaces_of_rank == (("eth0", "eth1"),) * 3


# --- rates


def with_speeds(facts, *speeds_mbps):
    """All hosts have NICs of these speeds, but the last one's are half as fast."""
    return [
        replace(
            fact,
            rails=tuple(
                replace(rail, speed_mbps=speed and (speed // 2 if fact is facts[-1] else speed))
                for rail, speed in zip(fact.rails, speeds_mbps, strict=True)
            ),
        )
        for fact in facts
    ]


@pytest.mark.parametrize("spec", ["flat:3,2", "bcube:2,2"])
def test_rates_are_those_of_the_slowest_host(spec):
    facts = with_speeds(lab_facts(spec), 10_000, 2_000)
    assert discover(facts, AUTO, is_whole_job=True).rates_bps == (5 * 10**9, 10**9)


def test_rates_are_known_of_all_rails_or_of_none():
    facts = with_speeds(lab_facts("bcube:2,2"), 10_000, None)
    assert discover(facts, AUTO, is_whole_job=True).rates_bps == ()


def test_rates_that_the_user_gives_go_before_those_of_the_nics():
    facts = with_speeds(lab_facts("bcube:2,2"), 10_000, 10_000)
    for text, rates in [("auto@200mbit", (2, 2)), ("bcube:2,2@200mbit,300mbit", (2, 3))]:
        plan = discover(facts, parse(text), is_whole_job=True)
        assert plan.rates_bps == tuple(rate * 10**8 for rate in rates)


def test_a_part_of_the_job_has_the_slowest_rate_since_its_rails_may_be_any_level():
    plan = part_of("bcube:3,2", (1, 4, 7), parse("bcube:3,2@200mbit,300mbit"))
    assert plan.rates_bps == (200 * 10**6,) * 2


@pytest.mark.parametrize("spec", ["fattree:4,hosts=10", "flat:3,1"])
def test_one_rail_each_is_flat(spec):
    plan = discover(lab_facts(spec), AUTO, is_whole_job=True)
    assert plan.grid == ()
    assert set(plan.interfaces_of_rank) == {("eth0",)}


def test_a_different_number_of_rails_is_flat_and_says_why():
    facts = lab_facts("bcube:2,2")
    plan = discover(with_rails(facts, "host3", facts[3].rails[0]), AUTO, is_whole_job=True)
    assert plan.grid == ()
    assert plan.reason == "no grid: host0 has 2 rails, and host3 has 1"
    assert plan.interfaces_of_rank[3] == ("eth0",)


def test_hosts_without_rails_are_flat():
    facts = [Facts(name, name) for name in "ab"]
    assert discover(facts, AUTO, is_whole_job=True).interfaces_of_rank == ((), ())


def test_ranks_of_a_host_that_chose_differently_keep_their_choice():
    facts = lab_facts("bcube:2,2", ranks_per_host=2)
    facts[3] = replace(facts[3], rails=facts[3].rails[:1])
    plan = discover(facts, AUTO, is_whole_job=True)
    assert plan.grid == ()
    assert plan.interfaces_of_rank[2:4] == (("eth0", "eth1"), ("eth0",))
    with pytest.raises(TopologyError, match=r"ranks 2 and 3 of host1 .* DMLCOMM_SOCKET_IFNAME"):
        discover(facts, parse("bcube:2,2"), is_whole_job=True)


# --- networks that are not what was asked for


def error_of(facts, network):
    with pytest.raises(TopologyError) as error:
        discover(facts, network, is_whole_job=True)
    return str(error.value)


def test_missing_cable_is_named_with_its_place():
    facts = lab_facts("bcube:3,2")
    facts = with_rails(facts, "host5", facts[5].rails[0], rail("eth1", "10.1.7.2/24"))
    message = error_of(facts, parse("bcube:3,2"))
    assert message.count("level ") == 1
    for part in (
        "DMLCOMM_TOPOLOGY=bcube:3,2",
        "level 1, switch 1.2: host5 (digits 2, 1): expected eth1 (10.1.7.2/24)",
        "in the subnet 10.1.2.0/24 with host2's eth1 (10.1.2.1/24), host8's eth1 (10.1.2.3/24)",
        "found in 10.1.7.0/24, with no other host",
        "DMLCOMM_SOCKET_IFNAME",
        "dmlcomm doctor",
    ):
        assert part in message


def test_swapped_cables_of_two_hosts_are_both_named():
    facts = lab_facts("bcube:3,2")
    a, b = facts[0].rails, facts[4].rails
    facts = with_rails(facts, "host0", a[0], rail("eth1", "10.1.1.9/24"))
    facts = with_rails(facts, "host4", b[0], rail("eth1", "10.1.0.9/24"))
    message = error_of(facts, parse("bcube:3,2"))
    assert "switch 1.0: host0" in message
    assert "switch 1.1: host4" in message
    assert message.count("level ") == 2


def test_missing_interface_is_named():
    facts = lab_facts("grid:4x3")
    message = error_of(with_rails(facts, "host6", facts[6].rails[1]), parse("grid:4x3"))
    assert (
        "level 0, switch 0.1: host6 (digits 2, 1) has no interface for this level: "
        "its interfaces are eth1 (10.1.2.2/24)" in message
    )


def test_flat_network_is_no_bcube():
    message = error_of(lab_facts("flat:9,2"), parse("bcube:3,2"))
    assert "level 0, switch 0.1: expected a subnet of its own; found 10.0.0.0/24" in message
    assert "and " in message


def test_other_sizes_are_refused():
    assert "bcube:3,2 has 9 hosts, but the ranks are on 8" in error_of(
        lab_facts("bcube:2,3"), parse("bcube:3,2")
    )
    assert "the network is not grid:6x4" in error_of(lab_facts("grid:2x3x4"), parse("grid:6x4"))


def test_sizes_in_another_order_of_levels_fit():
    facts = lab_facts("grid:4x3")
    plan = discover(facts, parse("grid:3x4"), is_whole_job=True)
    assert plan.grid == (3, 4)
    assert set(plan.interfaces_of_rank) == {("eth1", "eth0")}
    assert_is_grid(plan, facts)


@pytest.mark.parametrize("seed", [None, 1])
def test_management_network_is_left_out_of_a_grid_that_was_asked_for(seed):
    facts = [
        replace(fact, rails=(rail("mgmt", f"10.9.0.{host + 1}/24"), *fact.rails))
        for host, fact in enumerate(lab_facts("bcube:3,2"))
    ]
    if seed is not None:
        random.Random(seed).shuffle(facts)
    plan = discover(facts, parse("bcube:3,2"), is_whole_job=True)
    assert_is_grid(plan, facts)
    assert set(plan.interfaces_of_rank) == {("eth0", "eth1")}


# --- named hosts and interfaces


def test_named_hosts_have_the_numbers_of_the_file():
    facts = lab_facts("bcube:2,2")
    # Mirrored in digit 0: the grid is the same, the numbers are not.
    network = replace(parse("bcube:2,2"), hosts=("host1", "host0", "host3", "host2"))
    plan = discover(facts, network, is_whole_job=True)
    assert plan.host_of_rank == (1, 0, 3, 2)
    assert_is_grid(plan, facts)


def test_names_that_do_not_fit_the_cables_are_an_error():
    hosts = ("host0", "host1", "host3", "host2")
    message = error_of(lab_facts("bcube:2,2"), replace(parse("bcube:2,2"), hosts=hosts))
    assert "level 1" in message
    assert "order of their first ranks" not in message


def test_hosts_that_are_not_in_the_file_are_named():
    network = replace(parse("bcube:2,2"), hosts=("host0", "host1", "host2", "other"))
    assert "host3 is not among the hosts" in error_of(lab_facts("bcube:2,2"), network)
    twins = [replace(fact, host_name="host0") for fact in lab_facts("bcube:2,2")]
    assert "two hosts have the name host0" in error_of(twins, network)


def test_named_interfaces_are_the_levels():
    facts = lab_facts("bcube:3,2")
    plan = discover(
        facts, replace(parse("bcube:3,2"), interfaces=("eth1", "eth0")), is_whole_job=True
    )
    assert set(plan.interfaces_of_rank) == {("eth1", "eth0")}
    assert_is_grid(plan, facts)
    message = error_of(facts, replace(parse("bcube:3,2"), interfaces=("eth0", "eth7")))
    assert "has no interface for this level: its interfaces are eth0" in message


# --- cables that are pulled at the start


@pytest.mark.parametrize("asked", ["auto", "bcube:2,2"])
def test_no_carrier_on_a_grid_is_a_warning_of_that_host(asked):
    facts = lab_facts("bcube:2,2", ranks_per_host=2)
    first, second = facts[4].rails
    facts = with_rails(facts, "host2", first, replace(second, has_carrier=False))
    plan = discover(facts, parse(asked), is_whole_job=True)
    assert plan.grid == (2, 2)
    ((rank, text),) = plan.warnings
    assert rank == 4
    assert "rail 1 of host2, eth1 (10.1.0.2/24), has no carrier" in text


def test_no_carrier_on_one_host_of_a_flat_network_keeps_the_rail():
    facts = lab_facts("flat:3,2")
    first, second = facts[1].rails
    facts = with_rails(facts, "host1", replace(first, has_carrier=False), second)
    plan = discover(facts, AUTO, is_whole_job=True)
    assert plan.interfaces_of_rank == (("eth0", "eth1"),) * 3
    assert [rank for rank, _ in plan.warnings] == [1]


def test_what_is_plugged_nowhere_is_no_rail():
    facts = [
        replace(f, rails=(f.rails[0], replace(f.rails[1], has_carrier=False)))
        for f in lab_facts("flat:3,2")
    ]
    plan = discover(facts, AUTO, is_whole_job=True)
    assert plan.interfaces_of_rank == (("eth0",),) * 3
    assert plan.warnings == ()
