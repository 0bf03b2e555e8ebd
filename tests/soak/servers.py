"""Rounds of parameter servers and their workers, on this host, directly or by proxies.

With replicas no acknowledged push may be lost; with checkpoints only those since the last one, and
only when servers were killed. No push is ever applied twice.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import psutil

from dmlcomm.lab import Lab
from helpers import eventually
from helpers.lab_hosts import dark, management_address, on_host
from helpers.parameter_servers import (
    ServerProcess,
    addresses_of,
    clean_environment,
    command,
    status_of,
)
from helpers.proxies import ProxyProcess
from soak.clocks import Clocks
from soak.disk import Disk
from soak.faults import PEER_TIMEOUT_S, Event, Failure, SoakError, pause
from soak.members import STACKS_S, Job, Member, Usage
from soak.network import Network
from soak.worker import MODEL, MOST_PUSHES

# Clocks after which a job ends, from the one at which a worker holds the others.
LAST_CLOCKS = 20
# How far the time of day jumps, either way.
JUMPS_S = (0.5, 10.0, 3600.0, 86400.0)
PROXY_TREE = "chain"


@dataclass(frozen=True)
class Setting:
    """What the job is.

    Attributes:
        keeps: "replicas" or "checkpoints".
        count: elements per worker.
        proxies: that carry the workers in turns; 0: workers go directly.
        topology: of a lab with a server or a worker on each host; "" is this host.
    """

    servers: int
    workers: int
    transport: str
    keeps: str
    count: int
    proxies: int = 0
    topology: str = ""


SETTINGS = tuple(
    Setting(servers, workers, transport, keeps, count)
    for servers, workers in ((2, 2), (3, 2), (2, 3))
    for transport in ("auto", "tcp")
    for keeps, count in (("replicas", 1000), ("replicas", 100_003), ("checkpoints", 10_007))
)
# Servers with replicas have no proxies.
BY_PROXIES = tuple(
    Setting(servers, 4, transport, "checkpoints", 10_007, proxies)
    for servers, proxies in ((1, 2), (2, 2), (2, 3))
    for transport in ("auto", "tcp")
)
IN_LABS = tuple(
    Setting(2, 2, "auto", keeps, count, topology=topology)
    for topology in ("flat:4,1", "flat:4,2")
    for keeps, count in (("replicas", 1000), ("replicas", 100_003), ("checkpoints", 10_007))
)
RATE = "400mbit"


class Round:
    """A context manager: servers and workers of a setting, and faults for them."""

    def __init__(self, setting: Setting, seed: int) -> None:
        self.setting = setting
        self._rng = random.Random(seed)
        self._seed = seed
        self._lives = 0  # of workers, so far
        self._replicas = setting.keeps == "replicas"
        self._stack = contextlib.ExitStack()
        self._before: list[Usage] = []  # the most of a server, and of a proxy

    def __enter__(self) -> "Round":
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="dmlcomm-soak-"))
        self._folder = Path(folder)
        self._clocks = Clocks(self._folder)
        # Hosts of a lab have what is mounted before.
        self._disk = self._stack.enter_context(Disk(self._folder / "checkpoints"))
        self._lab = None
        if self.setting.topology:
            self._lab = self._stack.enter_context(Lab(self.setting.topology, rate=RATE))
            self._network = Network(self._lab, self._rng)
        self._servers: list[ServerProcess] = []
        self._addresses = ""
        self._proxies: list[ProxyProcess | None] = [None] * self.setting.proxies
        self._stack.callback(self._end_processes)
        for index in range(self.setting.servers):
            self._servers.append(self._serve(index))
        self._addresses = addresses_of(self._servers)
        for index in range(self.setting.proxies):
            self._carry(index)
        self._job = self._stack.enter_context(Job(self._folder))
        for worker in range(self.setting.workers):
            self._start(worker)
        self._job.wait_for_progress("the workers begin")
        if not self._replicas:  # who is killed before has nothing to go on from
            for server in self._servers:
                self._eventually(lambda s=server: self._checkpoint(s).get("clock"), "a checkpoint")
        self._before = [_most(usages) for usages in self._usages()]
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def faults(self) -> dict[str, Callable[[], None]]:
        """By name. Each returns when all workers go on."""
        chosen = {
            "kill a worker": self._kill_worker,
            "pause a worker": self._pause_worker,
            "freeze a worker": self._freeze_worker,
            "clock jump": self._jump,
        }
        if not self._replicas and (self._disk.is_small or not self.setting.proxies):
            # The limit of files holds for shared memory, too, which new trees need.
            chosen["full disk"] = self._full_disk
        if self._lab is not None:
            chosen |= {
                "flap": self._network.flap,
                "loss": self._network.lose,
                "one way": self._network.one_way,
                "cut off a worker": self._cut_off_worker,
            }
            if self._replicas:
                chosen["cut off a server"] = self._cut_off_server
        chosen["pause a server"] = self._pause_server
        if self.setting.proxies:
            chosen |= {
                "kill a proxy": self._kill_proxy,
                "pause a proxy": self._pause_proxy,
                "freeze a proxy": self._freeze_proxy,
            }
        if not self._replicas:
            chosen |= {
                "restart a server": self._restart_server,
                "restart all servers": self._restart_all,
            }
        else:
            chosen |= {
                "kill a server": self._kill_server,
                "freeze a server": self._freeze_server,
                "kill server and worker": self._kill_server_and_worker,
            }
        return chosen

    def events(self, count: int) -> Iterator[Event]:
        """So many faults, and the workers end in order."""
        for _ in range(count):
            pause(self._rng, 0.3)
            faults = self.faults()
            name = self._rng.choice(list(faults))
            begin = time.monotonic()
            try:
                faults[name]()
                self._go_on("the workers go on")
            except SoakError as error:
                raise SoakError(f"{name}: {error}\n{self._state(error)}", error.failure) from error
            yield Event(name, time.monotonic() - begin)
        self._finish()

    # --- faults

    def _kill_worker(self) -> None:
        victim = self._rng.randrange(self.setting.workers)
        self._replace(victim)

    def _pause_worker(self) -> None:
        self._pause(self._random_worker().signal)

    def _pause_server(self) -> None:
        server = self._rng.choice(self._servers)
        self._pause(lambda number: self._signal(server, number))

    def _pause(self, send: Callable[[int], None]) -> None:
        send(signal.SIGSTOP)
        pause(self._rng)
        send(signal.SIGCONT)

    def _freeze_worker(self) -> None:
        """It is stopped for longer than servers wait.

        With replicas it is not let in again, as the servers have settled what it had pushed; nor
        where its proxy may have had something.
        """
        victim = self._random_worker()
        victim.signal(signal.SIGSTOP)
        self._others_go_on(victim)
        victim.may_end = self._replicas or self.setting.proxies > 0
        victim.signal(signal.SIGCONT)
        self._take_back(victim)

    def _cut_off_worker(self) -> None:
        """Its host is not reached for longer than servers wait."""
        victim = self._random_worker()
        victim.may_end = self._replicas
        with self._network.cut(self._host(victim.name)):
            self._others_go_on(victim)
        self._take_back(victim)

    def _take_back(self, victim: Member) -> None:
        """One that the others have done without goes on, or is told and replaced."""
        goal = victim.progress + 3
        self._job.wait(
            "the victim goes on, or is told",
            lambda: victim in self._job.reported("lost") or victim.progress >= goal,
        )
        if self._replicas or victim in self._job.reported("lost"):
            self._job.wait("the victim is told", lambda: victim in self._job.reported("lost"))
            self._replace(int(victim.name.split()[1]))
        victim.may_end = False

    def _kill_server(self) -> None:
        """Once it is found lost it is started again, and filled from the other copies."""
        victim = self._rng.randrange(self.setting.servers)
        self._kill(victim)
        self._start_again(victim)

    def _kill_server_and_worker(self) -> None:
        """What the server alone had of the worker is lost, and that was not acknowledged."""
        victim = self._rng.randrange(self.setting.servers)
        worker = self._rng.randrange(self.setting.workers)
        self._kill(victim)
        self._replace(worker)
        self._start_again(victim)

    def _start_again(self, victim: int) -> None:
        self._await_loss(victim)
        self._servers[victim] = self._serve(victim, self._servers[victim].address)
        self._await_return(victim)

    def _freeze_server(self) -> None:
        """It is stopped until the others have found it lost."""
        victim = self._rng.randrange(self.setting.servers)
        self._signal(self._servers[victim], signal.SIGSTOP)
        self._await_loss(victim)
        self._signal(self._servers[victim], signal.SIGCONT)
        self._await_return(victim)

    def _cut_off_server(self) -> None:
        """Its host is not reached until the others have found it lost."""
        victim = self._rng.randrange(self.setting.servers)
        with dark(self._lab, self._host(f"server {victim}")):
            self._await_loss(victim)
        self._await_return(victim)

    def _restart_server(self) -> None:
        self._restart([self._rng.randrange(self.setting.servers)])

    def _restart_all(self) -> None:
        self._restart(list(range(self.setting.servers)))

    def _restart(self, victims: list[int]) -> None:
        for victim in victims:
            self._kill(victim)
        pause(self._rng)
        for victim in victims:
            self._servers[victim] = self._serve(victim, self._servers[victim].address)
        # What was pushed since the last checkpoints is lost, as it has to be.
        self._job.wait_for_progress("the workers go on after a restart")
        self._forget("dip", "fewer")

    def _full_disk(self) -> None:
        """There is no room for checkpoints, until servers have noticed that.

        Where no small disk could be made, files of one server cannot grow.
        """
        server = self._rng.choice(self._servers)
        before = self._checkpoint(server).get("failures", 0)
        with self._disk.full() if self._disk.is_small else server.limited_files(1000):
            self._eventually(
                lambda: self._checkpoint(server).get("failures", 0) > before, "a failed checkpoint"
            )
        self._eventually(
            lambda: self._checkpoint(server).get("failure") == "", "the next checkpoint"
        )

    def _jump(self) -> None:
        """The time of day of a process is another one, from now on."""
        names = [_name(worker) for worker in range(self.setting.workers)]
        names += [f"server {i}" for i in range(self.setting.servers)]
        names += [f"proxy {i}" for i in range(self.setting.proxies)]
        by = self._rng.choice(JUMPS_S) * self._rng.choice((-1, 1))
        self._clocks.jump(self._rng.choice(names), by)

    def _kill_proxy(self) -> None:
        """Its workers go directly, until there is one again."""
        victim = self._rng.randrange(self.setting.proxies)
        self._proxies[victim].kill()
        if self._rng.random() < 0.5:
            self._go_on("the workers go on without it")
        self._carry(victim)

    def _pause_proxy(self) -> None:
        self._pause(self._random_proxy().process.send_signal)

    def _freeze_proxy(self) -> None:
        """It is stopped until its workers have gone on without it."""
        proxy = self._random_proxy()
        proxy.process.send_signal(signal.SIGSTOP)
        self._go_on("the workers go on without it")
        proxy.process.send_signal(signal.SIGCONT)

    # --- what follows

    def _replace(self, worker: int) -> None:
        """Kills a worker, if it lives, and starts another one in its place."""
        victim = self._job[_name(worker)]
        self._job.kill(victim.name)
        if self._job.members:
            self._others_go_on(victim)
        self._start(worker, victim)

    def _go_on(self, what: str) -> None:
        """Until all workers have come further, with all that they have seen of each other."""
        self._job.wait_for_progress(what, errors=["lost", "dip", "fewer"])

    def _others_go_on(self, victim: Member) -> None:
        with self._job.changed:
            goals = {n: m.progress + 3 for n, m in self._job.members.items() if m is not victim}
        self._job.wait(
            f"the others go on without {victim.name}",
            lambda: all(self._job[name].progress >= goal for name, goal in goals.items()),
        )

    def _await_loss(self, victim: int) -> None:
        others = [one for i, one in enumerate(self._servers) if i != victim]
        self._eventually(
            lambda: all(self._status(other)["lost_servers"] == [victim] for other in others),
            f"server {victim} is found lost",
        )

    def _await_return(self, server: int) -> None:
        """Until all servers use it, and it has the model and all workers."""

        def is_back() -> bool:
            status = self._status(self._servers[server])
            alive = sum(worker["alive"] for worker in status["workers"])
            return alive == self.setting.workers and _has_values(status)

        self._eventually(is_back, f"server {server} is back")

    def _eventually(self, holds: Callable[[], Any], what: str) -> None:
        """As `eventually`; what does not happen is a hang."""
        try:
            eventually(holds, what)
        except AssertionError as error:
            raise self._job.hang(str(error)) from error

    def _state(self, error: SoakError) -> str:
        """What the servers say; of a hang also the stacks of servers and proxies, who die of it."""
        status = self._run("ps", "status", self._addresses)
        text = status.stdout + status.stderr
        if error.failure is not Failure.HANG:
            return text
        for name, one in self._named_processes():
            for number in (signal.SIGCONT, signal.SIGABRT):
                os.kill(self._pid(one), number)
            _, log = one.process.communicate(timeout=STACKS_S)
            text += f"--- {name} (pid {one.process.pid})\n{log or ''}"
        return text

    def _named_processes(self) -> list[tuple[str, ServerProcess | ProxyProcess]]:
        named = [*((f"server {i}", one) for i, one in enumerate(self._servers))]
        named += [(f"proxy {i}", one) for i, one in enumerate(self._proxies) if one is not None]
        return [(name, one) for name, one in named if one.process.poll() is None]

    def _forget(self, *kinds: str) -> None:
        with self._job.changed:
            for member in self._job.members.values():
                member.reports = [report for report in member.reports if report[0] not in kinds]

    def _finish(self) -> None:
        """All workers end at one clock, with the same weights."""
        self._wait_for_usage()
        with self._job.changed:
            holder, *others = members = list(self._job.members.values())
        holder.say("hold")
        self._job.wait("a worker holds the others", lambda: holder in self._job.reported("held"))
        last = self._job.take(holder, "held") + LAST_CLOCKS
        for member in (*others, holder):
            member.may_end = True
            member.say("last", last)
        self._job.wait(
            "the workers end",
            lambda: set(self._job.reported("final")) == set(members),
            errors=["dip"],
        )
        sums = {self._job.take(member, "final")[0] for member in members}
        if len(sums) != 1:
            text = f"the workers have ended with weights of different sums: {sums}"
            raise SoakError(text, Failure.WRONG_SUM)

    def _wait_for_usage(self) -> None:
        """Until servers and proxies hold no more than when the workers began.

        They are compared with the one that held most, as they change places in trees, and workers
        their ways.
        """

        def is_flat() -> bool:
            return not any(
                usage.has_grown_from(before)
                for before, usages in zip(self._before, self._usages(), strict=True)
                for usage in usages
            )

        try:
            eventually(is_flat, "memory, descriptors and threads as before")
        except AssertionError as error:
            text = f"{error}: {self._before}, now {self._usages()}"
            raise SoakError(text, Failure.LEAK) from error

    def _usages(self) -> tuple[list[Usage], list[Usage]]:
        """Of servers, and of proxies."""
        servers, proxies = (
            [Usage.of(self._pid(one)) for one in processes if one is not None]
            for processes in (self._servers, self._proxies)
        )
        return servers, proxies

    def processes(self) -> dict[str, int]:
        workers = {member.name: member.pid for member in self._job.members.values()}
        return workers | {name: self._pid(one) for name, one in self._named_processes()}

    # --- processes

    def _start(self, worker: int, before: Member | None = None) -> None:
        """``before``: the last life of this worker, whose pushes all are there."""
        self._lives += 1
        config: dict[str, Any] = {"worker": worker, "workers": self.setting.workers}
        config |= {"servers": self._addresses, "count": self.setting.count}
        config |= {"seed": f"{self._seed} {self._lives}", "transport": self.setting.transport}
        if self.setting.proxies:
            config["proxy"] = self._socket(worker % self.setting.proxies)
        bounds = (0, 0) if before is None or before.detail is None else before.detail
        config["most"] = 0 if before is None else bounds[1] + MOST_PUSHES
        name = _name(worker)
        environment = self._environment(name)
        member = self._job.start(name, "soak.worker", config, is_warm=False, **environment)
        if before is None:
            return
        self._job.wait("the new worker begins", lambda: member in self._job.reported("start"))
        least, most = self._job.take(member, "start")
        if not bounds[0] <= least <= most <= config["most"]:
            raise SoakError(
                f"{member.name} had pushed {bounds[0]} to {bounds[1]} times, and at most "
                f"{MOST_PUSHES} more, when it was killed: its elements are {least} to {most}",
                Failure.LOST_UPDATE if least < bounds[0] else Failure.DOUBLED_UPDATE,
            )

    def _serve(self, index: int, address: str = "") -> ServerProcess:
        host = "127.0.0.1"
        if self._lab is not None:
            host = management_address(self._lab, self._host(f"server {index}"))
        address = address or f"{host}:0"
        servers = self._addresses or str(self.setting.servers)
        arguments = ["--servers", servers, "--index", str(index)]
        arguments += ["--workers", str(self.setting.workers), "--listen", address, "--insecure"]
        arguments += ["--transport", self.setting.transport, "--log-level", "error"]
        if self._replicas:
            arguments += ["--replicas", "1"]
        else:
            arguments += ["--checkpoint", str(self._folder / "checkpoints")]
            arguments += ["--checkpoint-every", "1"]
        return ServerProcess(*arguments, **self._environment(f"server {index}"))

    def _carry(self, index: int) -> None:
        environment = self._environment(f"proxy {index}")
        arguments = [self._socket(index), PROXY_TREE, "--transport", self.setting.transport]
        self._proxies[index] = ProxyProcess(*arguments, **environment)

    def _socket(self, proxy: int) -> str:
        return str(self._folder / f"{proxy}.sock")

    def _environment(self, name: str) -> dict[str, str]:
        options = {"DMLCOMM_PEER_TIMEOUT_S": f"{PEER_TIMEOUT_S:g}", "PYTHONFAULTHANDLER": "1"}
        options |= self._clocks.environment(name)
        return options if self._lab is None else on_host(self._lab, self._host(name), **options)

    def _host(self, name: str) -> str:
        """Of the lab: servers come first."""
        kind, _, number = name.partition(" ")
        return self._network.hosts[int(number) + (self.setting.servers if kind == "worker" else 0)]

    def _pid(self, one: ServerProcess | ProxyProcess) -> int:
        """In a lab the server is a child of the process that stands for it."""
        children = psutil.Process(one.process.pid).children(recursive=True)
        return children[-1].pid if self._lab is not None and children else one.process.pid

    def _signal(self, server: ServerProcess, number: int) -> None:
        os.kill(self._pid(server), number)

    def _kill(self, server: int) -> None:
        self._signal(self._servers[server], signal.SIGKILL)
        self._servers[server].kill()

    def _run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """`dmlcomm` where it reaches the servers."""
        if self._lab is None:
            return command(*arguments)
        words = [sys.executable, "-m", "dmlcomm", *arguments]
        options = {"env": clean_environment(), "capture_output": True, "text": True}
        # From the host of a worker: that of a server may be dark.
        done: subprocess.CompletedProcess[str] = self._lab.exec(
            self._network.hosts[-1], words, **options
        )
        return done

    def _status(self, server: ServerProcess) -> dict[str, Any]:
        if self._lab is None:
            return status_of(server.address)
        answer = self._run("ps", "status", server.address, "--json").stdout
        status: dict[str, Any] = json.loads(answer)["servers"][0]
        return status

    def _checkpoint(self, server: ServerProcess) -> dict[str, Any]:
        states = self._status(server).get("checkpoints", [])
        return next((state for state in states if state["model"] == MODEL), {})

    def _end_processes(self) -> None:
        for one in (*self._proxies, *self._servers):
            if one is not None:
                one.kill()

    def _random_proxy(self) -> ProxyProcess:
        return self._rng.choice(self._proxies)

    def _random_worker(self) -> Member:
        return self._job[_name(self._rng.randrange(self.setting.workers))]


def _most(usages: Sequence[Usage]) -> Usage:
    """In each respect that of the one that holds most."""
    zero = Usage(0, 0, 0)
    return Usage(*(max(values) for values in zip(*map(astuple, (zero, *usages)), strict=True)))


def _has_values(status: dict[str, Any]) -> bool:
    return any(model["name"] == MODEL and model["sealed"] for model in status["models"])


def _name(worker: int) -> str:
    return f"worker {worker}"
