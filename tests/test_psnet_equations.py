"""PSNet's equations against values worked out by hand, and its circuits."""

import doctest
import itertools

import pytest

from dmlcomm.psnet import equations
from dmlcomm.psnet.equations import Job, Phases
from dmlcomm.topology import psnet

GIGABIT = 125e6  # bytes per second
LATENCY_S = 20e-6


def test_examples_in_the_documentation_hold():
    found = [doctest.testmod(module) for module in (equations, psnet)]
    assert sum(result.attempted for result in found) >= 4
    assert sum(result.failed for result in found) == 0


def test_batch_completion_time_is_between_no_and_full_overlap():
    phases = Phases(pull_s=2.0, compute_s=1.0, push_s=3.0, update_s=0.5, sync_s=0.25)
    assert phases.bct_max_s == 6.75
    assert phases.bct_min_s == 3.0
    assert Phases(pull_s=1.0, compute_s=4.0, push_s=1.0, update_s=0.5).bct_min_s == 4.5


@pytest.mark.parametrize(
    ("k", "workers", "seconds"),
    [
        # The paper's evaluation: latency 20 us, R = 3, S = 200 MB; here P = 2 and B_w = 1 Gb/s. A
        # server's 3 K ports are shared by W workers, a worker's port by 2 servers (62.5 MB/s).
        (1, 6, 1.6),  # 3 * 125 / 6 = 62.5 MB/s: both limits are met
        (1, 12, 3.2),  # 31.25 MB/s at the servers
        (2, 12, 1.6),  # the workers' ports limit,
        (4, 12, 1.6),  # so more for the servers brings nothing
        (2, 24, 3.2),
        (4, 24, 1.6),
        (4, 48, 3.2),
    ],
)
def test_numerical_evaluation_of_one_module(k, workers, seconds):
    job = Job(200e6, servers=2, workers=workers)
    found = equations.deployed_transfer_s(job, psnet.spread(workers, 3), GIGABIT, k, LATENCY_S)
    assert found == pytest.approx(seconds + 40e-6)


@pytest.mark.parametrize(("k", "seconds"), [(1, 3.2), (2, 1.6), (3, 1.6)])
def test_uneven_deployment_waits_for_its_fullest_tor(k, seconds):
    # worker(1,1,4): K * 125 / 4 MB/s at the third ToR, 62.5 MB/s at the workers: flat from K = 2.
    job = Job(200e6, servers=2, workers=6)
    found = equations.deployed_transfer_s(job, (1, 1, 4), GIGABIT, k)
    assert found == pytest.approx(seconds + 40e-6)


@pytest.mark.parametrize(("r", "seconds"), [(1, 4.8), (2, 9.6), (5, 24.0)])
def test_fat_tree_is_limited_above_its_tors(r, seconds):
    # 6 workers at one server's NIC, 6 of 12 flows on each of its ToR's two uplinks: 125/6/r MB/s.
    job = Job(200e6, servers=2, workers=6)
    found = equations.fat_tree_transfer_s(job, GIGABIT, flows=6, over_subscription=r)
    assert found == pytest.approx(seconds + 120e-6)


def test_one_module_is_three_times_as_fast_as_a_fat_tree():
    job = Job(528e6, servers=2, workers=6)
    module = equations.deployed_transfer_s(job, (2, 2, 2), GIGABIT, latency_s=0)
    tree = equations.fat_tree_transfer_s(job, GIGABIT, flows=6, latency_s=0)
    assert tree / module == pytest.approx(3)


@pytest.mark.parametrize("tors", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("workers", [0, 1, 2, 3, 5, 8, 13])
def test_workers_are_spread_evenly(workers, tors):
    found = psnet.spread(workers, tors)
    assert sum(found) == workers
    assert max(found) - min(found) <= 1
    assert [psnet.circuit(found).count(tor) for tor in range(tors)] == list(found)
    assert equations.moves(psnet.circuit(found), tors) == []


@pytest.mark.parametrize("tors", [2, 3])
@pytest.mark.parametrize("workers", [1, 4, 5])
def test_an_uneven_circuit_is_made_even_with_the_fewest_moves(workers, tors):
    even = sorted(psnet.spread(workers, tors))
    for before in itertools.product(range(tors), repeat=workers):
        after = list(before)
        found = equations.moves(before, tors)
        for worker, tor in found:
            assert after[worker] != tor
            after[worker] = tor
        assert sorted(after.count(tor) for tor in range(tors)) == even
        assert len(found) == least_moves([before.count(tor) for tor in range(tors)], even)


def least_moves(counts, even):
    """By trying every way in which the even counts can be given to the ToRs."""
    ways = itertools.permutations(even)
    return min(sum(max(0, n - w) for n, w in zip(counts, way, strict=True)) for way in ways)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="at least one of each"):
        Job(1e6, servers=0, workers=1)
    job = Job(1e6, servers=2, workers=6)
    with pytest.raises(ValueError, match="5 of 6 workers"):
        equations.deployed_transfer_s(job, (2, 2, 1), GIGABIT)
    with pytest.raises(ValueError, match="0 to 2"):
        equations.moves([0, 3], 3)
    with pytest.raises(ValueError, match="ToRs"):
        psnet.spread(3, 0)


@pytest.mark.parametrize(
    ("first", "flows"),
    # What limits: flows through R ports between the modules, or the servers' own ports.
    [((2, 30), 60), ((1, 30), 90), ((3, 45), 60), ((1, 45), 135), ((4, 60), 60)],
)
def test_two_modules_are_limited_by_what_passes_between_them(first, flows):
    job = Job(200e6, servers=4, workers=60)
    seconds = equations.joined_transfer_s(job, 3, first, worker_bandwidth=125e6, latency_s=0)
    assert seconds == pytest.approx(50e6 * flows / (3 * 125e6))
