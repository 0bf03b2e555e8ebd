"""The examples run as their users run them, and learn something."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dmlcomm.lab import Lab, LabError
from examples import demo_lab

EXAMPLES = Path(__file__).parents[1] / "examples"


def torchrun(script, num_ranks, *arguments, must_end_well=True, restarts=0, **environment):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--max-restarts", str(restarts)]
    command += ["--nproc-per-node", str(num_ranks), str(EXAMPLES / script), *arguments]
    result = subprocess.run(
        command,
        env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"} | environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0 or not must_end_well, result.stdout + result.stderr
    return result.stdout


def losses(output):
    return [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", output)]


pytestmark = pytest.mark.xdist_group("examples")


@pytest.fixture(scope="module")
def minimal_losses():
    """Of the smallest example, with dmlcomm."""
    return losses(torchrun("ddp_minimal.py", 2))


def test_minimal_example_learns(minimal_losses):
    first, last = minimal_losses
    assert last < first / 10


def test_fsdp2_example_learns():
    first, last = losses(torchrun("fsdp2.py", 2))
    assert last < first / 10


def test_elastic_example_goes_on_from_its_checkpoint_after_the_death_of_a_rank(tmp_path):
    arguments = ["--checkpoint", str(tmp_path / "elastic.pt"), "--kill-at", "35"]
    a_new_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    output = torchrun("elastic.py", 2, *arguments, restarts=1, **a_new_store)
    assert "life 0: 2 ranks begin at step 0" in output
    assert re.search(r"life 1: 2 ranks begin at step [23]0", output), output
    assert losses(output)[-1] < 0.1


def test_distributed_optimizer_example_learns():
    first, last = losses(torchrun("distributed_optimizer.py", 2))
    assert last < first / 10


@pytest.mark.usefixtures("lab_is_possible")
def test_hosts_that_average_once_in_many_steps_learn_as_ddp_from_a_fraction_of_the_bytes():
    pytest.importorskip("sklearn", reason="the demo's data comes with scikit-learn")
    command = [sys.executable, str(EXAMPLES / "diloco.py"), "--epochs", "2", "--inner-steps", "11"]
    with Lab("flat:2,1", rate="1gbit") as lab:
        result = lab.run(
            command, "--ranks-per-host", "2", capture_output=True, text=True, timeout=240
        )
    assert result.returncode == 0, result.stdout + result.stderr
    (ddp, of_ddp), (diloco, of_diloco) = (
        [
            float(number)
            for number in re.search(rf"{name} +(\S+)% +(\S+) MB", result.stdout).groups()
        ]
        for name in ("DDP", "DiLoCo")
    )
    # Each of two hosts sends 3,274,634 numbers to the other one, in 44 steps or in 4 rounds of half
    # of the bytes; up to one and a half times as many where the cost model takes a ring.
    assert of_ddp > 0.95 * 2 * 44 * 4 * 3.274634
    assert of_diloco > 0.95 * 2 * 4 * 2 * 3.274634
    assert of_diloco < of_ddp / 22 * 1.6
    assert ddp > 85
    assert diloco == pytest.approx(ddp, abs=5)


def test_minimal_example_gives_the_same_losses_with_gloo(minimal_losses):
    # gloo's threads may outlive the script and end it with "terminate called without an active
    # exception" (torch 2.15), after it has done its work.
    gloo = losses(torchrun("ddp_minimal.py", 2, "--backend", "gloo", must_end_well=False))
    assert len(gloo) == 2
    assert minimal_losses == pytest.approx(gloo, abs=1e-5)


def test_demo_trains_with_dmlcomm(tmp_path):
    pytest.importorskip("sklearn", reason="the demo's data comes with scikit-learn")
    output = tmp_path / "result.json"
    little = ("--epochs", "3", "--timed-blocks", "1")
    torchrun("demo_lenet.py", 4, *little, "--output", str(output))
    result = json.loads(output.read_text())
    assert result["parameters"] == 3_274_634
    assert result["num_ranks"] == 4
    assert result["history"][-1]["accuracy"] > 0.9
    assert result["step_ms"] > 0


@pytest.mark.alone
@pytest.mark.usefixtures("lab_is_possible")
def test_demo_in_the_lab_shows_what_every_nic_sends(tmp_path, run_python):
    pytest.importorskip("sklearn", reason="the demo's data comes with scikit-learn")
    pytest.importorskip("matplotlib")
    run_python(str(EXAMPLES / "demo_lab.py"), "--folder", str(tmp_path), "--steps", "2")
    results = json.loads((tmp_path / "lab.json").read_text())
    ours, gloo = results["dmlcomm"], results["gloo, one NIC"]
    # Of 13.1 MB, 2(4 - 1)/4 go over two NICs alike, and headers with them.
    assert list(ours["sent_bytes"].values()) == pytest.approx([9.8e6] * 2, rel=0.1)
    assert ours["step_s"] < gloo["step_s"]
    assert (tmp_path / "lab.png").stat().st_size > 1000


def test_demo_ends_well_where_no_lab_is_possible(tmp_path, monkeypatch, capsys):
    def refuse(*_, **__):
        raise LabError("a lab needs root or user namespaces")

    monkeypatch.setattr(demo_lab, "Lab", refuse)
    demo_lab.main(tmp_path)
    assert "a lab needs root or user namespaces" in " ".join(capsys.readouterr().out.split())


def test_replicas_of_torchft_take_another_one_in_for_one_that_dies(tmp_path):
    pytest.importorskip("torchft", reason="torchft is not installed")
    from torchft.coordination import LighthouseServer

    # A step needs three replicas, so nobody is at the end before the newcomer is there.
    lighthouse = LighthouseServer(
        bind="0.0.0.0:0", min_replicas=3, join_timeout_ms=500, heartbeat_timeout_ms=2000
    )

    def start(name, *arguments):
        with (tmp_path / name).open("w") as log:
            return subprocess.Popen(
                [sys.executable, str(EXAMPLES / "torchft_replica.py"), "--name", name, *arguments],
                env=os.environ | {"TORCHFT_LIGHTHOUSE": lighthouse.address()},
                stdout=log,
                stderr=log,
            )

    replicas = [start("a"), start("b"), start("dies", "--kill-at", "20")]
    try:
        assert replicas[2].wait(120) == -signal.SIGKILL, (tmp_path / "dies").read_text()
        replicas[2] = start("newcomer")
        assert [replica.wait(120) for replica in replicas] == [0, 0, 0]
    finally:
        for replica in replicas:
            replica.kill()
        lighthouse.shutdown()
    outputs = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert "dies: step 19, 3 replicas" in outputs.pop("dies")
    assert "newcomer: step 99, 3 replicas" in outputs["newcomer"]
    weights = [re.search(r"sum of weights (\S+)", output)[1] for output in outputs.values()]
    assert len(set(weights)) == 1
    assert losses(outputs["a"])[-1] < 0.1
