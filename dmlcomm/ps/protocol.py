"""Conventions of workers and servers: versions, addresses, numbers of models."""

import hashlib
import hmac
import ipaddress

# Of proto/dmlcomm_ps.proto; both sides of a job need the same.
PROTOCOL_VERSION = "7"
PROTOCOL_KEY = "dmlcomm-protocol"
# "-bin": values of other metadata may hold only printable ASCII.
TOKEN_KEY = "dmlcomm-token-bin"

# Deadline of a call that does not wait for others, and what is added to one that does.
CALL_TIMEOUT_S = 10.0

# A call that waits for others is asked in slices: between them the caller can check other things.
WAIT_SLICE_S = 2.0

# Proxies show this often that they live, and are taken for lost after a silence of that length; so
# are proxies by their workers.
HEARTBEAT_INTERVAL_S = 0.5
HEARTBEAT_TIMEOUT_S = 3.0

# A worker whose proxy was lost has so long to register anew; then the others go on without it.
RETURN_TIMEOUT_S = 15.0

# How often a waiting server looks whether those it waits for are still alive.
LIVENESS_INTERVAL_S = 0.1

# A process that goes on so much later than it had to was stopped, and may have missed what others
# said meanwhile.
SLEPT_S = 1.0

# Seconds of silence of a caller that waits; then, again and again, a log line names the cause.
PROGRESS_INTERVAL_S = 5.0

# A server that was lost, and those that wait for it, look this often whether it is back.
RETURN_INTERVAL_S = 1.0
# A server that would exceed it stays lost: see csrc/ps/lives.h.
LAST_LIFE = 255


def is_lost(life: int) -> bool:
    """Whether a server with this life is lost: see csrc/ps/lives.h."""
    return life % 2 == 1


def model_number(name: str) -> int:
    """The number under which all servers know the model; needs no agreement between them.

    Two names of one number are so unlikely that servers refuse the second.
    """
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little") & 0x7FFF_FFFF


def same_token(expected: str, actual: str) -> bool:
    """Compares in a time that tells nothing about the expected one."""
    return hmac.compare_digest(expected.encode(), actual.encode())


def parse_address(text: str) -> str:
    """ "host:port" or "[v6]:port", checked. Raises ValueError."""
    host, colon, port = text.strip().rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    legal = bool(colon and bare) and port.isascii() and port.isdigit() and int(port) <= 65535
    if legal and ":" in host:
        try:
            ipaddress.IPv6Address(bare.partition("%")[0])
            legal = host.startswith("[") and host.endswith("]")
        except ValueError:
            legal = False
    if not legal:
        raise ValueError(f'"{text}" is no address: expected host:port, or [IPv6]:port')
    return f"{host}:{int(port)}"


def is_loopback(address: str) -> bool:
    """Whether only this host reaches "host:port"."""
    host = address.rpartition(":")[0].removeprefix("[").removesuffix("]")
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"


def parse_servers(text: str) -> list[str]:
    """The addresses of a comma list, server 0 first. Raises ValueError."""
    addresses = [parse_address(item) for item in text.split(",")]
    for address in addresses:
        if addresses.count(address) > 1:
            raise ValueError(f'the servers "{text}" name {address} more than once')
    return addresses
