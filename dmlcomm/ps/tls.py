"""TLS of the control plane: files in PEM format on either side."""

from dataclasses import dataclass
from pathlib import Path

import grpc


@dataclass(frozen=True)
class Tls:
    """Which certificate this side shows, and whom it trusts.

    A server needs `cert` and `key`; with `ca` it demands certificates of workers. A client needs
    `ca`, unless a public authority has signed the server's certificate, and `cert` and `key` where
    servers demand them. Tensors do not pass through the control plane and are not encrypted.

    Attributes:
        cert: own certificate, with the chain that leads to an authority.
        key: its private key.
        ca: certificates of the authorities whose signatures count.
    """

    cert: str | Path | None = None
    key: str | Path | None = None
    ca: str | Path | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ValueError("TLS: a certificate needs its key, and a key its certificate")


def server_credentials(tls: Tls) -> grpc.ServerCredentials:
    if tls.cert is None:
        raise ValueError("TLS: a server needs a certificate and its key")
    return grpc.ssl_server_credentials(
        [(_read(tls.key), _read(tls.cert))], _read(tls.ca), require_client_auth=tls.ca is not None
    )


def channel_credentials(tls: Tls) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(_read(tls.ca), _read(tls.key), _read(tls.cert))


def _read(path: str | Path | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()
