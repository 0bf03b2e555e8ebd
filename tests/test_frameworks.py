"""The examples run with the real frameworks, and learn; `make frameworks` installs these."""

import importlib.util
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import yaml

import dmlcomm
from helpers import run_ranks

EXAMPLES = Path(__file__).parents[1] / "examples"
FOLDER = EXAMPLES / "frameworks"


def needs(*packages):
    """Skips a test where one of them is not installed, unless this is `make frameworks`."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing and "REQUIRE_FRAMEWORKS" in os.environ:
        raise ModuleNotFoundError(f"{', '.join(missing)}: not installed")
    return pytest.mark.skipif(
        bool(missing), reason=f"`make frameworks` has {', '.join(missing)}; not installed here"
    )


def run(*command, **environment):
    """The output of a command that must end well."""
    result = subprocess.run(
        [str(word) for word in command],
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stdout
    return result.stdout


def torchrun(script, num_ranks, *arguments):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return run(*launcher, "--nproc-per-node", num_ranks, FOLDER / script, *arguments)


def accelerate_launch(script, num_ranks, *arguments):
    """Several processes, also without a GPU."""
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu"]
    launcher += ["--num_processes", num_ranks, "--main_process_port", 0]
    return run(*launcher, FOLDER / script, *arguments)


def right_answers(output, num_ranks):
    """In percent; ranks have talked over dmlcomm, as the group says."""
    pattern = rf"dmlcomm, {num_ranks} ranks: (\d+\.\d)% of the test set are right"
    (percent,) = set(re.findall(pattern, output))  # Ray shows what ranks print more than once
    return float(percent)


def curve(folder, name):
    """(step, value) of a curve of TensorBoard."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (run,) = {file.parent for file in folder.rglob("events.*")}
    events = EventAccumulator(str(run))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def check_collectives(folder, name, loss, steps):
    """Each of these steps has communicated since the one before; the loss is logged with them."""
    assert [step for step, _ in curve(folder, loss)] == list(steps)
    found = curve(folder, name)
    assert [step for step, _ in found] == list(steps)
    counts = [count for _, count in found]
    assert all(now >= before + 10 for before, now in itertools.pairwise(counts)), counts


@needs("lightning", "tensorboard", "sklearn")
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_lightning_trains_and_logs_counters(strategy, tmp_path):
    options = ["--strategy", strategy, "--curves", tmp_path]
    assert right_answers(torchrun("lightning_digits.py", 2, *options), 2) > 90
    check_collectives(tmp_path, "dmlcomm/collectives", "loss", range(9, 90, 10))


@needs("ray", "sklearn")
def test_ray_trains():
    assert right_answers(run(sys.executable, FOLDER / "ray_digits.py", "--ranks", 2), 2) > 90


@needs("accelerate", "sklearn")
@pytest.mark.parametrize("launcher", [torchrun, accelerate_launch])
def test_accelerate_trains(launcher):
    assert right_answers(launcher("accelerate_digits.py", 2), 2) > 90


@needs("accelerate", "sklearn")
def test_accelerate_trains_in_one_process_without_a_group():
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--cpu"]
    output = run(*launcher, FOLDER / "accelerate_digits.py")
    assert float(re.search(r"no process group: (\d+\.\d)%", output)[1]) > 90


@needs("transformers", "accelerate", "tensorboard", "sklearn")
@pytest.mark.parametrize("launcher", [torchrun, accelerate_launch])
def test_trainer_of_hugging_face_trains_and_logs_counters(launcher, tmp_path):
    assert right_answers(launcher("transformers_digits.py", 2, "--curves", tmp_path), 2) > 90
    check_collectives(tmp_path, "train/dmlcomm/collectives", "train/loss", range(50, 451, 50))


def logs_of_a_trainer(rank, n):
    """How often a function is called at the ends of steps and of epochs."""
    from transformers import TrainerControl, TrainerState

    calls = []
    callback = dmlcomm.transformers_callback(calls.append)
    state = TrainerState(is_world_process_zero=rank == 0)
    for happens in (callback.on_step_end, callback.on_epoch_end):
        for should_log in (False, True):
            control = TrainerControl(should_log=should_log)
            happens(None, state, control)
            assert control.should_log == should_log
    return len(calls)


@needs("transformers")
def test_counters_of_rank_0_alone_go_to_a_function_whenever_the_trainer_logs():
    assert run_ranks(logs_of_a_trainer, 2) == [2, 0]


def log_of_one_step(rank, world_size, folder):
    import wandb
    from torch.utils.tensorboard import SummaryWriter

    dist.all_reduce(torch.ones(1))
    with wandb.init(mode="offline", dir=folder) as run:
        dmlcomm.log_counters(wandb.log)
        logged = dict(run.summary)
    with SummaryWriter(folder) as writer:
        dmlcomm.log_counters(writer, step=3)
    return logged


@needs("wandb", "tensorboard")
def test_counters_go_to_weights_and_biases_and_to_a_summary_writer(tmp_path):
    (logged,) = run_ranks(log_of_one_step, 1, tmp_path)
    ((step, count),) = curve(tmp_path, "dmlcomm/collectives")
    assert step == 3
    assert logged["dmlcomm/collectives"] == count >= 1


@needs("sklearn")
def test_sharded_training_goes_on_from_its_checkpoint_with_fewer_ranks(tmp_path):
    folder = tmp_path / "checkpoint"
    output = torchrun("fsdp2_checkpoint.py", 2, "--folder", folder, "--epochs", 3)
    assert "2 ranks begin at epoch 0" in output
    assert right_answers(output, 2) > 90
    loaded = torchrun("fsdp2_checkpoint.py", 1, "--folder", folder, "--epochs", 3)
    assert "1 ranks begin at epoch 3" in loaded
    assert right_answers(loaded, 1) == right_answers(output, 2)


# What the job's script calls of Slurm; srun starts the tasks of one host.
SLURM = {
    "scontrol": '[ "$*" = "show hostnames host-a" ] && echo localhost',
    "srun": """
[ "$1" = --kill-on-bad-exit=1 ] && shift
echo "$SRUN_CPUS_PER_TASK cores for each of the $LOCAL_WORLD_SIZE tasks of a host"
for ((i = 0; i < SLURM_NTASKS; i++)); do
  SLURM_STEP_NUM_TASKS=$SLURM_NTASKS SLURM_PROCID=$i SLURM_LOCALID=$i "$@" &
  tasks+=($!)
done
for task in "${tasks[@]}"; do wait "$task" || exit; done""",
}


def job_with_a_free_port():
    for job in range(10000):
        with socket.socket() as probe:
            if probe.connect_ex(("localhost", 20000 + job)) != 0:
                return job
    raise AssertionError("no port is free")


def test_slurm_script_starts_the_ranks(tmp_path):
    for name, body in SLURM.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    output = run(
        shutil.which("bash"),
        FOLDER / "slurm.sbatch",
        EXAMPLES / "ddp_minimal.py",
        PATH=path,
        SLURM_JOB_ID=str(job_with_a_free_port()),
        SLURM_JOB_NODELIST="host-a",
        SLURM_NTASKS="2",
        SLURM_TASKS_PER_NODE="2(x1)",
        SLURM_CPUS_PER_TASK="3",
    )
    assert "3 cores for each of the 2 tasks of a host" in output
    first, last = (float(loss) for loss in re.findall(r"loss (\d+\.\d+)", output))
    assert last < first / 10


def documents(name):
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def pods(tree):
    """Templates of pods, at any depth."""
    if isinstance(tree, list):
        tree = dict(enumerate(tree))
    if not isinstance(tree, dict):
        return
    if "containers" in tree.get("spec", {}):
        yield tree
    for value in tree.values():
        yield from pods(value)


def networks():
    return {
        network["metadata"]["name"]: json.loads(network["spec"]["config"])
        for network in documents("kubernetes_networks.yaml")
    }


def test_each_network_of_pods_has_a_nic_and_a_subnet_of_its_own():
    found = networks().values()
    assert len(found) == 2
    assert len({network["master"] for network in found}) == 2
    assert len({network["ipam"]["range"] for network in found}) == 2


@pytest.mark.parametrize("name", ["kubernetes_pytorchjob.yaml", "kubernetes_trainjob.yaml"])
def test_pods_use_the_nics_of_the_networks_that_they_name(name):
    found = list(pods(documents(name)))
    assert found
    for pod in found:
        attached = pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"].split(", ")
        assert attached == list(networks())
        (container,) = pod["spec"]["containers"]
        environment = {entry["name"]: entry["value"] for entry in container["env"]}
        # Multus calls them net1, net2 and so on.
        used = ",".join(f"net{number}" for number, _ in enumerate(attached, 1))
        assert environment == {"DMLCOMM_SOCKET_IFNAME": used}


def test_dranet_gives_pods_the_nics_that_they_use():
    _, template, _, job = documents("kubernetes_dranet.yaml")
    devices = template["spec"]["spec"]["devices"]
    names = {
        request: config["opaque"]["parameters"]["interface"]["name"]
        for config in devices["config"]
        for request in config["requests"]
    }
    assert list(names) == [request["name"] for request in devices["requests"]]
    ((pod,), claims) = list(pods(job)), [{"name": template["metadata"]["name"]}]
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["claims"] == claims
    assert [{"name": claim["name"]} for claim in pod["spec"]["resourceClaims"]] == claims
    used = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert used["DMLCOMM_SOCKET_IFNAME"] == ",".join(names.values())
    assert f"--nnodes={job['spec']['completions']}" in container["command"]


def losses_of(given, kept, place=""):
    """Places of `given` that `kept` does not have in the same way."""
    if isinstance(given, dict):
        for key, value in given.items():
            if key in (kept or {}):
                yield from losses_of(value, kept[key], f"{place}.{key}")
            else:
                yield f"{place}.{key}"
    elif isinstance(given, list):
        yield from losses_of(dict(enumerate(given)), dict(enumerate(kept or [])), place)
    elif given != kept:
        yield place


@needs("kubeflow_trainer_api")
def test_trainjob_has_only_fields_that_kubeflow_knows():
    from kubeflow_trainer_api import models

    found = documents("kubernetes_trainjob.yaml")
    assert [document["kind"] for document in found] == ["TrainingRuntime", "TrainJob"]
    for document in found:
        kind = getattr(models, f"TrainerV1alpha1{document['kind']}")
        assert list(losses_of(document, kind.from_dict(document).to_dict())) == []


@needs("kubeflow")
def test_pytorchjob_has_only_fields_that_kubeflow_knows():
    from types import SimpleNamespace

    from kubeflow.training.api_client import ApiClient

    (document,) = documents("kubernetes_pytorchjob.yaml")
    assert document["kind"] == "PyTorchJob"
    client = ApiClient()
    job = client.deserialize(SimpleNamespace(data=json.dumps(document)), "KubeflowOrgV1PyTorchJob")
    assert list(losses_of(document, client.sanitize_for_serialization(job))) == []
