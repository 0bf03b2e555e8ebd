"""Max-min fair rates: against water-filling in exact numbers, against SimGrid, and by hand."""

import math
import random
from fractions import Fraction

import pytest

from dmlcomm.sim import max_min_rates
from helpers import simgrid_runs


def exact_rates(paths, capacities, weights, priorities):
    """Water-filling in fractions, as the textbook has it; all paths have links."""
    left = [Fraction(capacity) for capacity in capacities]
    rates = {}
    for priority in sorted(set(priorities)):
        rising = {flow for flow in range(len(paths)) if priorities[flow] == priority}
        while rising:
            weight_on = [Fraction(0)] * len(left)
            for flow in rising:
                for link in paths[flow]:
                    weight_on[link] += Fraction(weights[flow])
            level, full = min(
                (left[link] / weight, link) for link, weight in enumerate(weight_on) if weight
            )
            for flow in [flow for flow in rising if full in paths[flow]]:
                rising.remove(flow)
                rates[flow] = level * Fraction(weights[flow])
                for link in paths[flow]:
                    left[link] -= rates[flow]
    return [rates[flow] for flow in range(len(paths))]


def random_network(seed, may_repeat=True):
    """Paths and capacities: of chains, stars and meshes, with equal paths and equal capacities."""
    rng = random.Random(seed)
    num_links = rng.choice((1, 2, 5, 20, 100))
    longest = rng.randint(1, 6)
    capacities = [rng.choice((1e9, 10e9, rng.randint(1, 10**9))) for _ in range(num_links)]
    paths = []
    for _ in range(rng.choice((1, 3, 20, 100))):
        if paths and rng.random() < 0.2:
            paths.append(rng.choice(paths))
        elif may_repeat:
            paths.append([rng.randrange(num_links) for _ in range(rng.randint(1, longest))])
        else:
            paths.append(rng.sample(range(num_links), rng.randint(1, min(longest, num_links))))
    return paths, capacities, rng


@pytest.mark.parametrize("seed", range(60))
def test_random_networks_are_shared_as_in_exact_numbers(seed):
    paths, capacities, rng = random_network(seed)
    if seed % 3 == 0:
        capacities[rng.randrange(len(capacities))] = 0
    weights = [rng.choice((1, 1, 0.1, rng.uniform(0.01, 100))) for _ in paths]
    priorities = [rng.choice((0, 0, 7, 255)) for _ in paths]
    rates = max_min_rates(paths, capacities, weights, priorities)
    expected = exact_rates(paths, capacities, weights, priorities)
    # What rounding leaves of a link is nothing to a flow of a later priority.
    assert rates == pytest.approx([float(rate) for rate in expected], rel=1e-8, abs=2)


@pytest.mark.parametrize("seed", range(5))
def test_defaults_are_weight_1_and_priority_0(seed):
    paths, capacities, _ = random_network(seed)
    ones, zeros = [1.0] * len(paths), [0] * len(paths)
    expected = exact_rates(paths, capacities, ones, zeros)
    assert max_min_rates(paths, capacities) == pytest.approx([float(rate) for rate in expected])
    assert max_min_rates(paths, capacities, ones, zeros) == max_min_rates(paths, capacities)


def test_simgrid_shares_random_networks_alike():
    # One network out of many that do not meet: SimGrid takes half a second to start.
    paths, capacities = [], []
    for seed in range(40):
        more_paths, more_capacities, _ = random_network(seed, may_repeat=False)
        paths += [[len(capacities) + link for link in path] for path in more_paths]
        capacities += more_capacities
    flows = [(path, 0, 0) for path in paths]
    theirs = simgrid_runs.play(capacities, flows, wants_rates=True)["rates"]
    assert max_min_rates(paths, capacities) == pytest.approx(theirs, rel=1e-4, abs=16)


def test_small_weights_get_what_large_ones_leave():
    # Each of the heavy flows is held at a link of its own, to 500 Mb/s in all.
    for count, weights in ((1000, (1e6, 1e-6)), (20_000, (1e6, 1e-3)), (20_000, (1, 1e-6))):
        capacities = [1e9, *[5e8 / count] * count]
        paths = [*([0, 1 + flow] for flow in range(count)), [0], [0]]
        rates = max_min_rates(paths, capacities, [weights[0]] * count + [weights[1]] * 2)
        assert rates[-2:] == pytest.approx([2.5e8, 2.5e8], rel=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_weights_may_differ_much(seed):
    paths, capacities, rng = random_network(seed)
    weights = [10 ** rng.uniform(-6, 6) for _ in paths]
    expected = exact_rates(paths, capacities, weights, [0] * len(paths))
    rates = max_min_rates(paths, capacities, weights)
    assert rates == pytest.approx([float(rate) for rate in expected], rel=1e-6, abs=2)


def test_known_shares():
    assert max_min_rates([[0], [0, 1], [1]], [10e9, 20e9]) == [5e9, 5e9, 15e9]
    assert max_min_rates([[0], [0]], [12], weights=[1, 3]) == [3, 9]
    assert max_min_rates([[0], [0, 1], [1]], [10, 4], priorities=[1, 0, 2]) == [6, 4, 0]
    assert max_min_rates([[0, 0], [0]], [9]) == [3, 3]
    assert max_min_rates([[], [0]], [5]) == [math.inf, 5]
    assert max_min_rates([[0], [0, 1]], [8, 0]) == [8, 0]
    assert max_min_rates([], []) == []


def test_many_flows_on_one_link_and_many_bottlenecks_on_one_flow():
    assert max_min_rates([[0]] * 50_000, [50_000]) == [1.0] * 50_000
    # Flow i has the links 0 ... i, of which the last has the least left.
    count = 300
    paths = [list(range(i + 1)) for i in range(count)]
    capacities = [float(count - i) for i in range(count)]
    assert max_min_rates(paths, capacities) == pytest.approx([1.0] * count)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([[0, 3]], [1, 1]), ValueError, r"flow 0 names link 3, but links .* 0 to 1"),
        (([[-1]], [1]), ValueError, r"flow 0 names link -1"),
        (([[0]], []), ValueError, r"flow 0 names link 0, but there are no links"),
        (([[0]], [math.nan]), ValueError, r"link 0 has the capacity nan: expected 0 to"),
        (([[0]], [1e308], [1e-6]), ValueError, r"capacity 1e\+308: expected 0 to 1e\+18"),
        (([[0]], [math.inf]), ValueError, r"link 0 has the capacity inf"),
        (([[0]], [1], [-2.0]), ValueError, r"flow 0 has the weight -2: expected 1e-06 to 1e\+06"),
        (([[0]], [1], [1e-300]), ValueError, r"flow 0 has the weight 1e-300: expected"),
        (([[0]], [1], [1, 2]), ValueError, r"1 paths, but 2 weights: give one to each"),
        (([[0]], [1], []), ValueError, r"1 paths, but no weights: give one to each"),
        (([[0]], [1], None, [300]), ValueError, r"priority 300: expected 0 \(first\) to 255"),
        (([[0], 5], [1]), TypeError, r"flow 1 has the path 5: expected a list of links"),
        (([[0], ["a"]], [1]), TypeError, r"flow 1 names the link 'a': expected a whole number"),
        (([[0.5]], [1]), TypeError, r"flow 0 names the link 0.5: expected a whole number"),
        (([[0]], ["1"]), TypeError, r"link 0 has the capacity '1': expected bits per second"),
        (([[2**70]], [1]), ValueError, r"names the link 1180\d+: expected a whole number of 64"),
        (([[0]], [10**400]), ValueError, r"link 0 has the capacity 10+: expected bits per sec"),
        (([[0]], {0: 1}), TypeError, r"capacities: expected a list"),
        (([[0]], None), TypeError, r"capacities: expected a list"),
        (([[0]], [1], [None]), TypeError, r"flow 0 has the weight None: expected a number"),
    ],
)
def test_a_wrong_argument_is_named(arguments, error, message):
    with pytest.raises(error, match=message):
        max_min_rates(*arguments)
