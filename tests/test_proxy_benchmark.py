"""The proxies' benchmark in a small lab: proxies of hosts with NICs of their own."""

import pytest

from benchmarks.proxy.cluster import Cluster, Load
from benchmarks.proxy.training import train


def test_proxies_of_several_hosts_carry_less_to_the_server() -> None:
    with Cluster(Load(2, 2, 400_000, "unlimited", 1)) as cluster:
        direct, direct_bytes = cluster.run(None)
        for shape, models in (("flat", 2), ("chain", 1)):
            times, num_bytes = cluster.run(shape)
            assert times.wrong == 0
            # One model per host or tree; the first values are shared by few steps.
            assert models * 400_000 <= num_bytes < (models + 1) * 400_000
        assert direct.wrong == 0
        assert direct_bytes >= 4 * 400_000


def test_workers_learn_the_same_though_a_proxy_is_killed() -> None:
    pytest.importorskip("sklearn", reason="the demo's data comes with scikit-learn")
    training = train("a proxy is killed", 20, kill_at=3)
    assert 0 < training.median_s <= training.longest_s
