"""DMLCOMM_PROXY: whether a client talks to the servers or to the proxy of its host.

The client asks for {"servers": [...], "token": ..., "priority": ...} (`network.proxy_socket`), and
gets {"servers": [...]}: where the proxy stands in for these servers.
"""

import logging
import os
from collections.abc import Sequence

from dmlcomm import errors
from dmlcomm.log import get_logger
from dmlcomm.network import proxy_socket
from dmlcomm.network.proxy_socket import AUTO, NONE


class Route:
    """The way of one client: by the proxy of its host, or to the servers.

    Args:
        proxy: "auto", "none" or the path of a proxy's socket. "auto" takes a proxy that is there
            and carries the job, and else none.
        servers, token, uses_tls, priority: as the client has them.
    """

    def __init__(
        self, proxy: str, servers: Sequence[str], token: str, uses_tls: bool, priority: int
    ) -> None:
        self.servers = list(servers)
        self._priority = priority
        self._proxy = proxy
        self._token = token
        self._uses_tls = uses_tls

        self._is_left = False

        # Whether there is a proxy that the client may come to or lose.
        self.may_change = proxy not in (AUTO, NONE)

    def first(self, timeout_s: float) -> tuple[list[str], bool]:
        """Addresses to connect to, and whether they are those of a proxy.

        Raises PsConnectionError: nothing answers at the path. PsRefusedError: the proxy does not
        carry this job; the text says why.
        """
        if self._proxy in (AUTO, NONE):
            return self._find(timeout_s, logging.WARNING)
        return self._attach(self._proxy, timeout_s), True

    def again(self, timeout_s: float) -> tuple[list[str], bool]:
        """The same, but without a proxy that answers the servers themselves."""
        return self._find(timeout_s, logging.INFO)

    def _find(self, timeout_s: float, level: int) -> tuple[list[str], bool]:
        """`level` of the line that says why a proxy is not taken."""
        for path in self._paths():
            if not os.path.exists(path):
                continue
            try:
                return self._attach(path, timeout_s), True
            except errors.PsError as error:
                get_logger().log(level, "without a proxy: %s", error)
        return list(self.servers), False

    def leave(self, why: str) -> None:
        """From now on without a proxy. Raises PsModelError where one was asked for by its path."""
        if self._proxy == NONE:
            return
        if self._proxy != AUTO:
            raise errors.PsModelError(
                f"{why}; this job was told to go by the proxy at {self._proxy}: set "
                f"DMLCOMM_PROXY=auto or none"
            )
        self._is_left = True

    def has_proxy(self, timeout_s: float) -> bool:
        """Whether a proxy answers."""
        for path in self._paths():
            try:
                if os.path.exists(path):
                    proxy_socket.ask(path, {"beat": True}, timeout_s)
                    return True
            except errors.PsError as error:
                get_logger().debug("no proxy to return to: %s", error)
        return False

    def _paths(self) -> list[str]:
        return [] if self._is_left else proxy_socket.paths(self._proxy)

    def _attach(self, path: str, timeout_s: float) -> list[str]:
        if self._uses_tls:
            raise errors.PsRefusedError(
                f"the proxy at {path} carries no job with TLS; with DMLCOMM_PROXY=none nobody asks "
                f"it"
            )
        request = {"servers": self.servers, "token": self._token, "priority": self._priority}
        answer = proxy_socket.ask(path, request, timeout_s)
        self.may_change = True
        return [str(address) for address in answer["servers"]]
