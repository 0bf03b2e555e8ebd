"""The proxies' benchmark in a small lab: proxies of hosts with NICs of their own."""

from benchmarks.proxy.cluster import Cluster, Load


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
