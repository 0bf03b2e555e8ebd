"""``dmlcomm run``: servers on this host, and a command that uses them."""

import contextlib
import queue
import re
import secrets
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click
from click.exceptions import Exit

from dmlcomm._shell import FAILED, command_argument, inherited_environment, wait_for
from dmlcomm.ps.commands import (
    checkpoint_every_option,
    checkpoint_option,
    replicas_option,
    rule_option,
)

READY_LINE = re.compile(r"dmlcomm ps: server \d+ of \d+ listens on (\S+?),?(\s.*)?")
PROXY_LINE = re.compile(r"dmlcomm proxy: listens at (\S+)")
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0  # a server may be writing its last checkpoint


@click.command()
@command_argument
@click.option("--servers", type=click.IntRange(min=1), default=1, help="How many to start.")
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    help="Workers; default: the number that torchrun is told, else 1.",
)
@replicas_option
@checkpoint_option
@checkpoint_every_option
@rule_option
@click.option("--proxy", is_flag=True, help="Start a proxy of this host, too; the command uses it.")
@click.option(
    "--priority",
    type=click.IntRange(0, 7),
    help="Of the job among those of its hosts; 0 goes first.",
)
def run(
    command: tuple[str, ...],
    servers: int,
    workers: int | None,
    replicas: int,
    checkpoint: Path | None,
    checkpoint_every: int,
    rule: str | None,
    proxy: bool,
    priority: int | None,
) -> None:
    """Start parameter servers on this host, and a command that finds them in its environment.

    Signals go to the command. When it ends the servers are stopped; the exit code is that of the
    command.

    COMMAND is the command, after --.
    """
    options = [
        *("--workers", str(workers or workers_of(command))),
        *("--servers", str(servers)),
        *("--replicas", str(replicas)),
        *("--checkpoint-every", str(checkpoint_every)),
        *(("--checkpoint", str(checkpoint)) if checkpoint else ()),
        *(("--rule", rule) if rule else ()),
    ]
    environment = inherited_environment()
    environment.setdefault("DMLCOMM_PS_TOKEN", secrets.token_hex(16))
    if priority is not None:
        environment["DMLCOMM_JOB_PRIORITY"] = str(priority)
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(_server(index, options, environment)) for index in range(servers)
        ]
        addresses = [_address(f"server {i}", queued) for i, queued in enumerate(started)]
        environment["DMLCOMM_PS_SERVERS"] = ",".join(addresses)
        if proxy:
            environment["DMLCOMM_PROXY"] = stack.enter_context(_proxy(environment))
        code = _run(command, environment)
    raise Exit(code)


def workers_of(command: Sequence[str]) -> int:
    """How many processes a torchrun command starts; 1 for other commands.

    Only what stands before the script counts, and only numbers: "gpu" or "auto" need --workers.
    """
    words = " ".join(command)
    if not re.search(r"\btorchrun\b|\btorch\.distributed\.(run|launch)\b", words):
        return 1
    total = 1
    for option in ("nproc[-_]per[-_]node", "nnodes"):
        match = re.search(rf"--{option}[= ](\d+)(?=\s|$)", words)
        total *= int(match[1]) if match else 1
    return total


@contextlib.contextmanager
def _server(
    index: int, options: Sequence[str], environment: Mapping[str, str]
) -> Iterator["queue.SimpleQueue[str | None]"]:
    arguments = ["ps", "serve", "--index", str(index), *options]
    with _background(arguments, READY_LINE, environment) as addresses:
        yield addresses


@contextlib.contextmanager
def _proxy(environment: Mapping[str, str]) -> Iterator[str]:
    """A proxy at a path of its own, which is returned."""
    with tempfile.TemporaryDirectory(prefix="dmlcomm-") as folder:
        arguments = ["proxy", "serve", "--socket", f"{folder}/proxy.sock"]
        with _background(arguments, PROXY_LINE, environment) as paths:
            yield _address("the proxy", paths)


@contextlib.contextmanager
def _background(
    arguments: Sequence[str], ready_line: "re.Pattern[str]", environment: Mapping[str, str]
) -> Iterator["queue.SimpleQueue[str | None]"]:
    """A `dmlcomm` that serves. It puts its address there, and None when it has ended.

    It ends with this block, or with this process in any case.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "dmlcomm", *arguments, "--log-level", "warning", "--until-eof"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # ^C is for the command: servers are stopped when it has ended.
        start_new_session=True,
    )
    addresses: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    arguments_of_reader = (process, ready_line, addresses)
    reader = threading.Thread(target=_pass_output_on, args=arguments_of_reader, daemon=True)
    reader.start()
    try:
        yield addresses
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join(STOP_TIMEOUT_S)


def _pass_output_on(
    process: "subprocess.Popen[str]",
    ready_line: "re.Pattern[str]",
    addresses: "queue.SimpleQueue[str | None]",
) -> None:
    """Reads what a server prints until it ends, as a full pipe would stop it.

    What its rule prints goes to stderr, for stdout is the command's.
    """
    assert process.stdout is not None
    for line in process.stdout:
        match = ready_line.fullmatch(line.rstrip())
        if match is not None:
            addresses.put(match[1])
        else:
            print(line, end="", file=sys.stderr, flush=True)
    addresses.put(None)


def _address(who: str, addresses: "queue.SimpleQueue[str | None]") -> str:
    with contextlib.suppress(queue.Empty):
        address = addresses.get(timeout=START_TIMEOUT_S)
        if address is not None:
            return address
    print(f"dmlcomm run: {who} did not start", file=sys.stderr, flush=True)
    raise Exit(FAILED)


def _run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    try:
        process = subprocess.Popen(command, env=environment)
    except OSError as error:
        print(f"dmlcomm run: {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        return 127
    return wait_for(process)
