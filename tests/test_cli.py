"""The ``dmlcomm`` command, run as users run it."""

import importlib.metadata
import json
import os
import re
import socket
import subprocess
import sys

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from dmlcomm import doctor
from dmlcomm._shell import Group
from dmlcomm.cli import app


def dmlcomm(*arguments, **environment):
    """Runs the command in a clean environment plus the given DMLCOMM_ variables."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("DMLCOMM_")}
    return subprocess.run(
        [sys.executable, "-m", "dmlcomm", *arguments],
        env=inherited | environment | {"COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=60,
    )


def report(**environment):
    return json.loads(dmlcomm("doctor", "--json", **environment).stdout)


def test_version_is_the_installed_one():
    result = dmlcomm("--version")
    assert result.returncode == 0
    assert re.fullmatch(r"dmlcomm (\d+\.\d+\S*|not installed)", result.stdout.strip())


@pytest.mark.parametrize("group", [[], ["lab"], ["ps"]])
def test_group_without_a_command_shows_its_help_as_an_error(group):
    result = dmlcomm(*group)
    assert result.returncode == 2
    assert result.stdout == dmlcomm(*group, "--help").stdout
    assert result.stderr == ""


def test_commands_are_listed_in_their_order_with_the_whole_first_paragraph():
    lines = dmlcomm("ps", "--help").stdout.splitlines()
    assert [line.split(maxsplit=1) for line in lines[lines.index("Commands:") + 1 :]] == [
        ["serve", "Run one server until SIGTERM or SIGINT. Prints one line when it listens."],
        ["status", "Show servers, workers, clocks, shards, bytes and rates."],
    ]


def test_shells_complete_commands():
    asked = ShellComplete(app, {}, "dmlcomm", "_DMLCOMM_COMPLETE")
    assert "ps" in [found.value for found in asked.get_completions([], "")]
    assert [found.value for found in asked.get_completions(["ps"], "")] == ["serve", "status"]


@pytest.mark.parametrize(("option", "value"), [("--mtu", "1e3"), ("--ranks-per-host", "0")])
def test_value_that_is_refused_is_named_with_its_option(option, value):
    result = dmlcomm("plan", option, value)
    assert result.returncode == 2
    (line,) = (line for line in result.stderr.splitlines() if line.startswith("Error: "))
    assert option in line
    assert value in line


def test_interrupted_command_ends_without_a_message_as_shells_report_it():
    @click.command()
    def endless():
        raise KeyboardInterrupt

    result = CliRunner().invoke(Group("dmlcomm", commands=[endless]), ["endless"])
    assert (result.exit_code, result.output) == (130, "")


def test_server_does_not_load_what_other_commands_need():
    code = (
        "import sys; from dmlcomm.cli import app;"
        "app(['ps', 'serve', '--help'], standalone_mode=False); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "dmlcomm.ps.commands" in loaded
    assert loaded.isdisjoint({"dmlcomm.lab", "networkx", "rich", "yaml", "torch"})


def test_core_module_does_not_import_torch():
    code = (
        "import importlib.util, sys, pathlib;"
        "spec = importlib.util.find_spec('dmlcomm');"
        "sys.path.insert(0, spec.submodule_search_locations[0]);"
        "import _core; _core.config(); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_doctor_reports_every_section():
    found = report()
    assert found["problems"] == []
    system_congestion = found["congestion_controls"]["system_default"]
    told = (found["transports"], system_congestion, found["interfaces"])
    assert found["advice"] == doctor.advice({"transport": "auto"}, *told)
    assert found["versions"]["torch"] == importlib.metadata.version("torch")
    assert found["cpu"]["kernels"] in ("baseline", "avx2", "avx512", "neon")
    assert {t["name"] for t in found["transports"]} == {
        "shm",
        "shm, single copy",
        "tcp",
        "ucx",
    }
    assert all(t["detail"] for t in found["transports"])
    assert "all_reduce" in found["algorithms"]
    for interface in found["interfaces"]:
        assert (interface["rail"] is None) == (interface["why_not"] is not None)
    loopback = next(i for i in found["interfaces"] if i["name"] == "lo")
    assert loopback["why_not"] == "loopback"


def test_doctor_marks_values_that_differ_from_the_default():
    changed = {
        entry["variable"]: (entry["value"], entry["default"])
        for entry in report(DMLCOMM_SPIN_US="7", DMLCOMM_TRANSPORT="tcp")["configuration"]
        if entry["changed"]
    }
    assert changed == {"DMLCOMM_SPIN_US": (7, 50), "DMLCOMM_TRANSPORT": ("tcp", "auto")}


@pytest.mark.parametrize("variable", ["DMLCOMM_PS_TOKEN", "DMLCOMM_SECRET"])
def test_doctor_does_not_print_secrets(variable):
    result = dmlcomm("doctor", "--json", **{variable: "geheim"})
    assert "geheim" not in result.stdout
    values = {e["variable"]: e["value"] for e in json.loads(result.stdout)["configuration"]}
    assert values[variable] == "(set)"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("DMLCOMM_TRANSPORT", "pigeon"),
        ("DMLCOMM_SOCKET_IFNAME", "nosuchnic"),
        ("DMLCOMM_TOPOLOGY", "torus:3"),
        ("DMLCOMM_TOPOLOGY", "bcube:2,20"),
        ("DMLCOMM_TOPOLOGY", "file:nosuchfile.yaml"),
        ("DMLCOMM_TCP_CONGESTION", "nosuchcc"),
        ("DMLCOMM_ALGORITHM", "all_reduce=teleport"),
    ],
)
def test_doctor_names_a_configuration_that_cannot_work(variable, value):
    result = dmlcomm("doctor", **{variable: value})
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    text = " ".join(result.stdout.split())
    assert variable in text
    assert value.rpartition("=")[2] in text
    assert "No problem found" not in text


@pytest.mark.parametrize(
    ("transport", "works", "detail", "congestion", "is_paced"),
    [
        ("ucx", True, "UCX 1.13.1: tcp/lo", "bbr", "inside a host"),
        ("ucx", True, "UCX 1.13.1: tcp/lo posix/memory", "bbr", "outside"),
        ("auto", True, "UCX 1.13.1: tcp/lo", "bbr", ""),
        ("ucx", True, "UCX 1.13.1: tcp/lo", "cubic", ""),
        ("ucx", True, "UCX 1.13.1: rc_verbs/mlx5_0:1", "bbr", ""),
        ("ucx", False, "UCX does not load", "bbr", ""),
    ],
)
def test_doctor_advises_another_congestion_control_where_it_paces_ucx(
    transport, works, detail, congestion, is_paced
):
    ucx = {"name": "ucx", "works": works, "detail": detail}
    interfaces = [
        {"name": "lo", "addresses": ["127.0.0.1/8"], "rail": None},
        {"name": "eth0", "addresses": ["10.0.0.2/24", "fd00::2/64"], "rail": 0},
    ]
    config = {"transport": transport, "ucx_remote_memory": "auto"}
    found = doctor.advice(config, [ucx], congestion, interfaces)
    assert [congestion in text for text in found] == [True] * bool(is_paced)
    # Of the rail, whose address connections inside the host have; none of the others'.
    routes = [("10.0.0.2", "eth0", "10.0.0.2")] if is_paced == "inside a host" else []
    for text in found:
        assert ("inside a host" in text) == bool(routes)
        change = r"change local (\S+) dev (\S+) .* src (\S+) congctl cubic"
        assert re.findall(change, text) == routes


def test_doctor_shows_the_levels_of_this_host(tmp_path):
    found = report(DMLCOMM_TOPOLOGY="bcube:3,1", DMLCOMM_SOCKET_IFNAME="lo")
    assert found["topology"]["levels"] == ["lo"]
    path = tmp_path / "cluster.yaml"
    path.write_text(f"grid: [2]\nhosts: [other, {socket.gethostname()}]\ninterfaces: {{0: lo}}")
    result = dmlcomm("doctor", DMLCOMM_TOPOLOGY=f"file:{path}", DMLCOMM_SOCKET_IFNAME="lo")
    assert result.returncode == 0, result.stdout
    assert re.search(r"digits of this host\W+1\b", result.stdout)
    assert re.search(r"level 0\W+lo\b", result.stdout)


def test_doctor_prints_tables_for_people():
    result = dmlcomm("doctor", DMLCOMM_SOCKET_IFNAME="lo")
    assert result.returncode == 0, result.stderr
    assert "rail 0" in result.stdout
    assert "No problem found" in result.stdout


def test_unknown_command_is_a_short_error():
    result = dmlcomm("doktor")
    assert result.returncode == 2
    assert "No such command" in result.stderr
