"""Who is let in, and what strangers are told."""

import socket
import subprocess
import threading

import grpc
import numpy as np
import pytest

from dmlcomm import errors
from dmlcomm.ps import Client, Tls, protocol
from dmlcomm.ps._proto import dmlcomm_ps_pb2 as pb
from dmlcomm.ps._proto import dmlcomm_ps_pb2_grpc as pb_grpc
from dmlcomm.ps.worker.connections import Connections
from dmlcomm.ps.worker.control import Control, UnknownSessionError
from helpers.parameter_servers import ServerProcess, command, servers, status_of

SHORT = {"connect_timeout_s": 1.0}
METADATA = ((protocol.PROTOCOL_KEY, protocol.PROTOCOL_VERSION), (protocol.TOKEN_KEY, b""))


def works(address, **options):
    with Client(address, **options) as client:
        return client.init("w", np.ones(3, np.float32)).tolist() == [1] * 3


def test_the_right_token_is_let_in():
    with servers(token="geheim ü") as address:
        assert works(address, token="geheim ü")


@pytest.mark.parametrize(
    ("expected", "shown", "reason"),
    [
        ("right", "wrong", "expects the job's token, and another one was shown"),
        ("right", "", "expects the job's token, and none was shown"),
        ("", "any", "expects no token, and one was shown"),
    ],
)
def test_a_wrong_token_is_refused_and_never_printed(expected, shown, reason):
    with servers(token=expected) as address, pytest.raises(errors.PsRefusedError) as refused:
        Client(address, token=shown, **SHORT)
    assert reason in str(refused.value)
    assert "DMLCOMM_PS_TOKEN" in str(refused.value)
    assert "right" not in str(refused.value)
    assert refused.value.code == "refused"


def test_a_token_opens_the_way_beyond_loopback_and_comes_from_files(tmp_path):
    path = tmp_path / "token"
    path.write_text("secret\n")
    shown = {"DMLCOMM_PS_TOKEN_FILE": str(path)}
    with ServerProcess("--listen", "0.0.0.0:0", "--token-file", str(path)) as server:
        address = f"127.0.0.1:{server.address.rpartition(':')[2]}"
        assert works(address, token="secret")
        assert command("ps", "status", address, **shown).returncode == 0
        assert command("ps", "status", address).returncode == 1
    with ServerProcess("--listen", "0.0.0.0:0", "--insecure"):
        pass


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.9.0.1:1", True),
        ("localhost:1", True),
        ("[::1]:1", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("10.0.0.1:1", False),
        ("host:1", False),
    ],
)
def test_loopback_is_what_only_this_host_reaches(address, expected):
    assert protocol.is_loopback(address) is expected


def call(address, metadata, request=None):
    with grpc.insecure_channel(address) as channel:
        stub = pb_grpc.ParameterServerStub(channel)
        return stub.Status(request or pb.StatusRequest(), metadata=metadata, timeout=10)


def test_another_version_of_the_protocol_is_refused():
    with servers() as address:
        for metadata, named in (((("dmlcomm-protocol", "99"),), "99"), ((), "none")):
            with pytest.raises(grpc.RpcError) as refused:
                call(address, metadata)
            assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
            assert f"the other side version {named}" in refused.value.details()


def test_health_needs_no_token():
    with servers(2, token="right") as addresses:
        for number, address in enumerate(addresses.split(",")):
            with grpc.insecure_channel(address) as channel:
                health = pb_grpc.ParameterServerStub(channel).Health(pb.HealthRequest(), timeout=10)
            assert (health.ready, health.server, health.num_servers) == (True, number, 2)


def test_calls_of_a_session_that_is_unknown_are_refused():
    with servers() as address, grpc.insecure_channel(address) as channel:
        stub = pb_grpc.ParameterServerStub(channel)
        for name in ("Publish", "Lookup", "CreateModel", "SealModel", "WaitModel", "Barrier"):
            request = getattr(pb, f"{name}Request")(session="made up")
            with pytest.raises(grpc.RpcError) as refused:
                getattr(stub, name)(request, metadata=METADATA, timeout=10)
            assert refused.value.code() == grpc.StatusCode.NOT_FOUND, name


@pytest.mark.parametrize(
    ("replicas", "call", "fields"),
    [
        (0, "ComeBack", {"lives": [0, 1]}),
        (1, "ComeBack", {"lives": [0, 1, 0]}),
        (1, "ComeBack", {"lives": [1, 256]}),
        (1, "CopyModels", {"server": 2}),
    ],
)
def test_returns_are_believed_of_servers_that_there_are_and_that_have_replicas(
    replicas, call, fields
):
    with servers(2, replicas=replicas) as addresses:
        address = addresses.split(",")[0]
        with grpc.insecure_channel(address) as channel:
            stub = pb_grpc.ParameterServerStub(channel)
            request = getattr(pb, f"{call}Request")(**fields)
            with pytest.raises(grpc.RpcError) as refused:
                getattr(stub, call)(request, metadata=METADATA, timeout=10)
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert status_of(address)["lost_servers"] == []


def test_nobody_there_is_said_after_the_time_is_over():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(errors.PsConnectionError, match=f"127.0.0.1:{port}.*is it running"):
        Client(f"127.0.0.1:{port}", **SHORT)


def test_a_foreign_service_is_not_taken_for_a_server():
    """Whatever answers at the port: the client ends with an error that has the address."""

    def answer_garbage(listener):
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\nhello")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answer_garbage, args=(listener,), daemon=True).start()
        port = listener.getsockname()[1]
        with pytest.raises(errors.PsError, match=f"127.0.0.1:{port}"):
            Client(f"127.0.0.1:{port}", **SHORT)
        listener.shutdown(socket.SHUT_RDWR)


def test_garbage_does_not_hurt_a_server():
    with servers() as address:
        host, _, port = address.rpartition(":")
        for junk in (b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 100, b""):
            with socket.create_connection((host, int(port))) as stranger:
                stranger.sendall(junk)
        assert works(address)


def test_number_of_a_live_worker_is_refused_to_another():
    with servers(workers=2) as address, Client(address, worker=0):
        with pytest.raises(errors.PsRefusedError, match=r"number is taken.*DMLCOMM_PS_WORKER"):
            Client(address, worker=0, **SHORT)
        with Client(address, worker=1) as second:
            assert second.worker == 1


def test_another_transport_inside_a_host_is_refused():
    with servers() as address:
        differs = "DMLCOMM_TRANSPORT differs: rank 0 on host .* has tcp, and rank 1 on host .* auto"
        with pytest.raises(errors.PsRefusedError, match=differs):
            Client(address, transport="tcp")
        assert works(address)


def test_what_a_server_does_not_answer_is_told_without_a_stack(monkeypatch):
    def silent(*_):
        raise errors.PsTimeoutError("server 0 did not answer")

    with servers() as address:
        monkeypatch.setattr(Connections, "_look_up", silent)
        why = r": PsTimeoutError: server 0 did not answer$"
        with pytest.raises(errors.PsConnectionError, match=why):
            Client(address, **SHORT)


def test_servers_of_another_job_are_refused():
    with servers(2) as both, servers(1) as other:
        mixed = f"{both.partition(',')[0]},{other}"
        with pytest.raises(
            errors.PsRefusedError, match=r"is server 0 of 1 .* expected server 1 of 2"
        ):
            Client(mixed, **SHORT)
        swapped = ",".join(reversed(both.split(",")))
        with pytest.raises(
            errors.PsRefusedError, match=r"is server 1 of 2 .* expected server 0 of 2 .* order"
        ):
            Client(swapped, **SHORT)


def test_a_client_needs_addresses():
    with pytest.raises(ValueError, match="DMLCOMM_PS_SERVERS"):
        Client(worker=0)


# --- TLS


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    """A self-signed certificate for 127.0.0.1, and another one that nobody trusts."""
    folder = tmp_path_factory.mktemp("pki")
    for name in ("server", "stranger"):
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt"),
                *("ec_paramgen_curve:prime256v1", "-nodes", "-days", "1", "-subj", f"/CN={name}"),
                *("-addext", "subjectAltName=IP:127.0.0.1"),
                *("-keyout", folder / f"{name}.key", "-out", folder / f"{name}.crt"),
            ],
            check=True,
            capture_output=True,
        )
    return folder


def identity(pki, name, ca=None):
    return Tls(pki / f"{name}.crt", pki / f"{name}.key", pki / f"{ca}.crt" if ca else None)


def test_tls_carries_the_control_plane(pki):
    with servers(tls=identity(pki, "server"), token="t") as address:
        trusting = Tls(ca=pki / "server.crt")
        assert works(address, token="t", tls=trusting)
        arguments = ("ps", "status", address, "--token", "t", "--tls-ca", str(pki / "server.crt"))
        assert command(*arguments).returncode == 0
        for wrong in (None, Tls(ca=pki / "stranger.crt")):
            with pytest.raises(errors.PsConnectionError, match="TLS"):
                Client(address, token="t", tls=wrong, **SHORT)


def test_server_may_demand_certificates_of_workers(pki):
    with servers(tls=identity(pki, "server", ca="server")) as address:
        assert works(address, tls=identity(pki, "server", ca="server"))
        for wrong in (Tls(ca=pki / "server.crt"), identity(pki, "stranger", ca="server")):
            with pytest.raises(errors.PsConnectionError):
                Client(address, tls=wrong, **SHORT)


def test_servers_with_replicas_call_each_other_by_tls(pki):
    tls = identity(pki, "server", ca="server")
    with servers(2, replicas=1, tls=tls) as addresses:
        for _ in range(2):  # the second comes when the servers have settled what the first pushed
            assert works(addresses, worker=0, tls=tls)


def test_half_a_certificate_is_refused(pki):
    with pytest.raises(ValueError, match="key"):
        Tls(cert=pki / "server.crt")


# --- leaving


def test_worker_that_closes_has_left_its_servers_at_once():
    with servers(2) as addresses:
        client = Client(addresses, worker=0)
        sessions = dict(client._connections._sessions)
        client.close()
        for server, address in enumerate(addresses.split(",")):
            control = Control(server, address, "", None)
            (worker,) = control.call("Status", pb.StatusRequest()).workers
            assert (worker.worker, worker.alive, worker.lost_reason) == (0, False, "")
            with pytest.raises(UnknownSessionError):
                control.call("Lookup", pb.LookupRequest(session=sessions[server], key="any"))
            control.close()
