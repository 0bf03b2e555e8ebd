"""Faults of the network of a lab. All but `cut` end nothing: they are over before peers give up.

network = Network(lab, rng)
network.flap()
with network.cut("host2"):
    ...
"""

import contextlib
import random
import sys
from collections.abc import Iterator

from dmlcomm.lab import Lab
from dmlcomm.topology import graph as topology
from helpers.parameter_servers import clean_environment
from soak.faults import SHORT_S, pause

# For some seconds, what arrives at an interface of a host is lost; what leaves it arrives.
DEAF = """
import sys, time
from dmlcomm.lab import loss
loss.lose(sys.argv[1], 1.0)
time.sleep(float(sys.argv[2]))
loss.keep(sys.argv[1])
"""


class Network:
    """The NICs of a lab's hosts, at random."""

    def __init__(self, lab: Lab, rng: random.Random) -> None:
        self._lab = lab
        self._rng = rng
        self.hosts: list[str] = topology.hosts(lab.graph())

    def flap(self) -> None:
        """A cable that is pulled, and is back before others give up."""
        place = self._random_place()
        for _ in range(self._rng.randint(1, 3)):
            self._lab.set(place, "down")
            pause(self._rng, SHORT_S / 2)
            self._lab.set(place, "up")

    def lose(self) -> None:
        """A cable that loses some packets for a while."""
        place = self._random_place()
        self._lab.set(place, f"loss={self._rng.choice((0.5, 2, 10))}%")
        pause(self._rng)
        self._lab.set(place, "loss=0%")

    def one_way(self) -> None:
        """A host that others hear, and that does not hear them."""
        host, _, interface = self._random_place().partition(":")
        seconds = self._rng.uniform(0, SHORT_S / 2)
        command = [sys.executable, "-c", DEAF, interface, str(seconds)]
        self._lab.exec(host, command, env=clean_environment(), check=True)

    @contextlib.contextmanager
    def cut(self, host: str) -> Iterator[None]:
        """No NIC of the host works within the block, but that of its management."""
        self._set_all(host, "down")
        try:
            yield
        finally:
            self._set_all(host, "up")

    def _random_place(self) -> str:
        host = self._rng.choice(self.hosts)
        return f"{host}:{self._rng.choice(topology.interfaces(self._lab.graph(), host))}"

    def _set_all(self, host: str, change: str) -> None:
        for interface in topology.interfaces(self._lab.graph(), host):
            self._lab.set(f"{host}:{interface}", change)
