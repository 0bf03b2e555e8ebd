"""Rounds of process groups: ranks of one host, or of the hosts of a lab.

Some faults end nothing: all ranks go on, and every result is right. Others end the group: every
rank that lives gets an error. Then the group is made anew, and killed ranks are replaced. Elastic
ones go on without them before, by `shrink_group` or `reconfigure`.
"""

import contextlib
import functools
import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from dmlcomm.lab import Lab
from helpers.connections import reset_connections
from helpers.lab_hosts import on_host
from soak.faults import PEER_TIMEOUT_S, Event, Failure, SoakError, pause
from soak.members import Job, Member, Usage
from soak.network import Network

# After so many groups a process has used memory for all sizes.
WARM_UP = 3
# Until all have noticed the end of one, of whom some hear by others.
NOTICED_S = 4 * PEER_TIMEOUT_S


@dataclass(frozen=True)
class Setting:
    """Where ranks run, and what they do.

    Attributes:
        topology: of a lab with a rank on each host; "" is this host.
        work: "operations", random ones, or "training" under DDP; "shrinking" and "reconfiguring"
            are trainings that go on with other ranks.
    """

    ranks: int
    transport: str
    topology: str = ""
    work: str = "operations"


HERE = tuple(Setting(n, transport) for n in (2, 3, 4) for transport in ("auto", "tcp"))
IN_LABS = (Setting(3, "auto", "flat:3,1"), Setting(3, "auto", "flat:3,2"))
IN_LABS += (Setting(4, "auto", "bcube:2,2"),)
DDP_HERE = tuple(replace(setting, work="training") for setting in HERE)
DDP_IN_LABS = tuple(replace(setting, work="training") for setting in IN_LABS)
ELASTIC = tuple(
    Setting(n, transport, work=work)
    for n in (3, 4)
    for transport in ("auto", "tcp")
    for work in ("shrinking", "reconfiguring")
)
RATE = "400mbit"


class Round:
    """A context manager: the ranks of a setting, and faults for them."""

    def __init__(self, setting: Setting, seed: int) -> None:
        self.setting = setting
        self._rng = random.Random(seed)
        self._seed = seed
        self._group = 0
        self._before: dict[int, list[Usage]] = {}  # by process
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "Round":
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="dmlcomm-soak-"))
        self._folder = Path(folder)
        self._lab = None
        if self.setting.topology:
            self._lab = self._stack.enter_context(Lab(self.setting.topology, rate=RATE))
            self._network = Network(self._lab, self._rng)
        self._job = self._stack.enter_context(Job(self._folder))
        for rank in range(self.setting.ranks):
            self._start(rank)
        self._make_group()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def faults(self) -> dict[str, Callable[[], None]]:
        """By name. Each returns when all ranks go on."""
        if self.setting in ELASTIC:
            return {
                "kill, and go on without": self._go_on_without,
                "kill": self._kill,
                "pause": self._pause,
                "leave": self._leave,
            }
        chosen = {
            "kill": self._kill,
            "kill two": self._kill_two,
            "pause": self._pause,
            "freeze": self._freeze,
            "leave": self._leave,
        }
        if self._lab is not None:
            chosen |= {
                "reset": self._reset,
                "flap": functools.partial(self._pass, self._network.flap),
                "loss": functools.partial(self._pass, self._network.lose),
                "one way": functools.partial(self._pass, self._network.one_way),
                "partition": self._partition,
            }
        return chosen

    def events(self, count: int) -> Iterator[Event]:
        """So many faults, and the ranks end in order."""
        faults = self.faults()
        for _ in range(count):
            pause(self._rng, 0.3)
            name = self._rng.choice(list(faults))
            begin = time.monotonic()
            try:
                faults[name]()
            except SoakError as error:
                raise error.within(name) from error
            yield Event(name, time.monotonic() - begin)
        self._end_group()

    # --- faults that end the group

    def _kill(self, count: int = 1) -> None:
        victims = self._rng.sample(range(self.setting.ranks), count)
        for victim in victims:
            self._job.kill(_name(victim))
        self._expect_losses()
        for victim in victims:
            self._start(victim)
        self._make_group()

    def _go_on_without(self) -> None:
        """A rank is killed, the others train on, and then one in its place with them."""
        victim = self._rng.randrange(self.setting.ranks)
        self._job.kill(_name(victim))
        self._expect_losses()
        if self.setting.work == "shrinking":
            self._next_group("shrink", victim)
        else:
            self._next_group("reconfigure", self._living())
        self._end_group()
        self._start(victim)
        self._make_group()

    def _kill_two(self) -> None:
        self._kill(2)

    def _freeze(self) -> None:
        """A rank that is stopped for longer than others wait."""
        victim = self._random_member()
        victim.signal(signal.SIGSTOP)
        self._expect_losses(frozen=victim)
        victim.signal(signal.SIGCONT)
        self._expect_losses()
        self._make_group()

    def _partition(self) -> None:
        """A host that nobody reaches for longer than others wait."""
        with self._network.cut(self._rng.choice(self._network.hosts)):
            self._expect_losses()
        self._make_group()

    def _leave(self) -> None:
        """No fault: all ends in order."""
        self._end_group()
        self._make_group()

    # --- faults that end nothing

    def _pause(self) -> None:
        victim = self._random_member()
        victim.signal(signal.SIGSTOP)
        pause(self._rng)
        victim.signal(signal.SIGCONT)
        self._expect_progress()

    def _reset(self) -> None:
        reset_connections(self._random_member().pid, self._rng)
        self._expect_progress()

    def _pass(self, fault: Callable[[], None]) -> None:
        fault()
        self._expect_progress()

    # --- what follows

    def _expect_progress(self) -> None:
        self._job.wait_for_progress("the ranks go on", errors=["lost"])

    def _expect_losses(self, frozen: Member | None = None) -> None:
        """All who live get an error."""
        living = [m for m in self._job.members.values() if m is not frozen]

        def all_have_lost() -> bool:
            return set(self._job.reported("lost")) >= set(living)

        self._job.wait("the others get an error", all_have_lost, NOTICED_S)

    def _end_group(self) -> None:
        (self._folder / f"end-{self._group}").touch()
        self._job.wait(
            "the ranks end in order",
            lambda: set(self._job.reported("left")) == set(self._job.members.values()),
        )

    def _make_group(self) -> None:
        """Of all ranks, who have ended the last one."""
        if self.setting.work == "reconfiguring":
            self._next_group("reconfigure", self._living())
        else:
            self._next_group("group")

    def _next_group(self, *way: object) -> None:
        """See `soak.rank`."""
        with self._job.changed:
            for member in self._job.members.values():
                self._compare_usage(member)
                member.progress = 0
        self._group += 1
        for member in self._job.members.values():
            member.say(way[0], self._group, *way[1:])
        self._expect_progress()

    def _compare_usage(self, member: Member) -> None:
        """The same as after its first groups, or it has a leak. With the job's lock."""
        for kind, (_, usage) in member.reports:
            before = self._before.setdefault(member.pid, [])
            if len(before) < WARM_UP:
                before.append(usage)
            elif all(usage.has_grown_from(each) for each in before):
                text = f"{member.name} ({kind}) has grown from {before} to {usage}"
                raise SoakError(text, Failure.LEAK)
        member.reports.clear()

    # --- ranks and hosts

    def _start(self, rank: int) -> None:
        options = {"DMLCOMM_TRANSPORT": self.setting.transport}
        options |= {"DMLCOMM_PEER_TIMEOUT_S": f"{PEER_TIMEOUT_S:g}"}
        if self._lab is not None:
            options = on_host(self._lab, self._network.hosts[rank], **options)
        config = {"rank": rank, "size": self.setting.ranks}
        config |= {"folder": str(self._folder), "seed": self._seed, "work": self.setting.work}
        self._job.start(_name(rank), "soak.rank", config, **options)

    def _living(self) -> list[int]:
        return [rank for rank in range(self.setting.ranks) if _name(rank) in self._job.members]

    def _random_member(self) -> Member:
        return self._job[_name(self._rng.randrange(self.setting.ranks))]

    def processes(self) -> dict[str, int]:
        return {member.name: member.pid for member in self._job.members.values()}


def _name(rank: int) -> str:
    return f"rank {rank}"
