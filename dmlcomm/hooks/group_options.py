"""The options of a process group."""

from typing import Any


def options_of(process_group: Any) -> Any:
    """`Backend.Options` of the group's first backend.

    None with a torch that does not tell them, as 2.11.
    """
    backend = process_group._get_backend(process_group._device_types[0])
    # TORCH_DISTRIBUTED_DEBUG=DETAIL wraps it.
    return getattr(getattr(backend, "wrapped_pg", backend), "options", None)
