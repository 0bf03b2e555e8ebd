"""The port of a control plane, and the threads that answer there."""

from concurrent.futures import ThreadPoolExecutor

import grpc

from dmlcomm.ps._proto import dmlcomm_ps_pb2_grpc as pb_grpc
from dmlcomm.ps.server.service import Admission, Service
from dmlcomm.ps.tls import Tls, server_credentials

# Calls that wait for others hold a thread each: at most this many per worker, and some for status.
THREADS_PER_WORKER = 3
OTHER_THREADS = 16


def listen(
    address: str, index: int, token: str, tls: Tls | None, workers: int, service: Service
) -> tuple[grpc.Server, str]:
    """Answers calls from now on; also says where, with the real port. Raises OSError."""
    threads = OTHER_THREADS + THREADS_PER_WORKER * workers
    server = grpc.server(
        ThreadPoolExecutor(threads, thread_name_prefix="dmlcomm-ps-call"),
        interceptors=[Admission(index, token)],
        # Two servers at one port would share its workers.
        options=[("grpc.so_reuseport", 0)],
    )
    pb_grpc.add_ParameterServerServicer_to_server(service, server)
    try:
        if tls is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, server_credentials(tls))
    except RuntimeError as error:
        raise OSError(
            f"server {index} cannot listen on {address}: {error}; is the port taken, or the "
            f"address of another host?"
        ) from error
    server.start()
    return server, f"{address.rpartition(':')[0]}:{port}"
