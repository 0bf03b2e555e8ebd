"""A question to the process of a bridge: ``python -m dmlcomm.prio.switch.ask BRIDGE OPERATION``.

Runs in the network namespace of the bridge, and prints the answer, one line of JSON.
"""

import json
import os
import socket
import sys

from dmlcomm.errors import SwitchError
from dmlcomm.lab import wire
from dmlcomm.lab.wire import Message, Reader


def address(bridge: str) -> str:
    """The abstract address of the process of a bridge; it vanishes with the process."""
    return f"\0dmlcomm-switch/{bridge}"


def ask(bridge: str, operation: str) -> Message:
    """The answer, of "stop" when the process has ended. Raises SwitchError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(wire.ANSWER_TIMEOUT_S)
        try:
            connection.connect(address(bridge))
        except ConnectionRefusedError as error:
            raise SwitchError(
                f'{bridge} is not scheduled: "dmlcomm switch start" begins that'
            ) from error
        owner = wire.credentials(connection).uid
        if owner not in (0, os.geteuid()):
            raise SwitchError(f"{bridge} is scheduled by user {owner}: not asked")
        reader = Reader(connection)
        try:
            wire.send(connection, {"op": operation})
            answer = reader.wait_for_line()
            while operation == "stop" and reader.receive():
                pass
        except OSError as error:
            raise SwitchError(f"the process of {bridge} does not answer ({error})") from error
    if answer is None:
        raise SwitchError(f"the process of {bridge} ended while it was asked for {operation}")
    if "error" in answer:
        raise SwitchError(answer["error"])
    return answer


def main() -> None:
    """Prints the answer, or {"error": text}."""
    try:
        answer = ask(*sys.argv[1:])
    except SwitchError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
