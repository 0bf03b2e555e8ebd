"""The proxies' benchmark in a small lab: proxies of hosts with NICs of their own."""

import random

import pytest

from benchmarks.proxy import failing_cluster, failures, many_jobs, one_receiver, priorities
from benchmarks.proxy.cluster import Cluster, Load
from benchmarks.proxy.failing_cluster import Setting
from benchmarks.proxy.lab_hosts import Network
from benchmarks.proxy.training import train
from dmlcomm.lab import Lab
from dmlcomm.ps.protocol import HEARTBEAT_TIMEOUT_S


def test_proxies_of_several_hosts_carry_less_to_the_server() -> None:
    with Cluster(Load(Network(2, 1, "unlimited"), 400_000, 1, workers_each=2)) as cluster:
        direct = cluster.run(None)
        for shape, models in (("flat", 2), ("chain", 1)):
            outcome = cluster.run(shape)
            assert outcome.wrong == 0
            assert outcome.shape == shape
            # One model per host or tree; the first values are shared by few steps.
            assert models * 400_000 <= outcome.bytes_in < (models + 1) * 400_000
        assert direct.wrong == 0
        assert direct.bytes_in >= 4 * 400_000


def test_workers_learn_the_same_though_a_proxy_is_killed() -> None:
    pytest.importorskip("sklearn", reason="the demo's data comes with scikit-learn")
    training = train("a proxy is killed", 20, kill_at=3)
    assert 0 < training.median_s <= training.longest_s


def test_a_proxy_that_is_stopped_on_a_host_of_the_lab_is_missed() -> None:
    setting = Setting(servers=1, proxies=3, shape="chain", count=1000, in_lab=True)
    with failing_cluster.Cluster(setting, failures.WORKER) as cluster:
        cluster.wait_for_clocks("the workers begin")
        cluster.wait_for_proxies()
        outage = failures.INNER_EVENTS["stop inner"](cluster, random.Random(0))
        assert outage.seconds > HEARTBEAT_TIMEOUT_S / 2
        assert outage.moved_s > HEARTBEAT_TIMEOUT_S / 2
        cluster.finish()


@pytest.mark.alone
def test_a_job_goes_before_one_of_a_later_priority(tmp_path) -> None:
    folder = str(tmp_path)
    with Lab(f"flat:{priorities.HOSTS},1", rate="400mbit") as lab, priorities.proxies(lab, folder):
        outcome = priorities.measure(lab, folder, 2, [priorities.ALL_HOSTS], compute_s=0)
    assert outcome.wrong == 0
    # Both send all the time: without the arbiter each has a half.
    assert 0 < outcome.bulk_share < 0.35


@pytest.mark.alone
def test_a_job_goes_before_one_that_another_host_sends_to_the_same_receiver(tmp_path) -> None:
    folder = str(tmp_path)
    with (
        Lab(f"flat:{one_receiver.HOSTS},1", rate="400mbit") as lab,
        priorities.proxies(lab, folder, "--classes", str(one_receiver.CLASSES)),
        one_receiver.scheduled(lab),
    ):
        outcome = one_receiver.measure(lab, folder, steps=2, compute_s=0)
    assert outcome.wrong == 0
    assert 0 < outcome.bulk_share < 0.35


def test_simulated_jobs_end_in_the_order_of_their_priorities(monkeypatch) -> None:
    for name, value in {"JOBS": 4, "STEPS": 1, "HOSTS": 4, "WORKERS": 4, "SERVERS": 1}.items():
        monkeypatch.setattr(many_jobs, name, value)
    alike, arbitrated = many_jobs.play(1, False), many_jobs.play(1, True)
    assert min(arbitrated) < min(alike)
