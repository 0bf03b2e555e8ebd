"""Groups that torch has made smaller keep the type of their backend."""

import functools
from typing import Any

import torch
from torch.distributed import ProcessGroup
from torch.distributed import distributed_c10d as c10d

# Marks the function that is put in the place of torch's; other packages may have wrapped that, too.
_MARK = "_keeps_type_of_dmlcomm"


def keep_type(backend_name: str) -> None:
    """From now on, for backends of this name. A second call changes nothing.

    torch registers what `shrink_group` returns for CPUs as gloo, whatever it is, and for no other
    device. DDP then takes it for gloo's, and looks for its devices, which ends the process. Now it
    has the devices for which the larger group had this backend.
    """
    create = getattr(c10d, "_create_shrunk_process_group", None)
    if create is None or hasattr(create, _MARK):
        return

    @functools.wraps(create)
    def create_of_its_type(
        new_backend: Any, remaining_ranks: Any, metadata: Any, is_default_group: bool
    ) -> ProcessGroup:
        group: ProcessGroup = create(new_backend, remaining_ranks, metadata, is_default_group)
        if new_backend.name() == backend_name:
            custom = ProcessGroup.BackendType.CUSTOM
            config = c10d.BackendConfig(metadata["backend_config"])
            for device, name in config.get_device_backend_map().items():
                if name == backend_name:
                    group._register_backend(torch.device(device), custom, new_backend)
            group._set_default_backend(custom)
        return group

    setattr(create_of_its_type, _MARK, True)
    c10d._create_shrunk_process_group = create_of_its_type
