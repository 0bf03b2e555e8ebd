"""The lab: a cluster with several NICs per host, emulated on one Linux machine.

    with dmlcomm.lab.Lab("bcube:3,2", rate="200mbit") as lab:
        lab.run([sys.executable, "train.py"], check=True)

`Lab` is the way in from Python, ``dmlcomm lab`` from a shell. Layers, from the top: ``commands``
(the command line), ``lab`` and ``launch`` (what a user's process does), ``client`` and ``wire``
(how it speaks to the lab), ``holder`` and ``requests`` (the process that a lab is), ``network`` and
``shaping`` (netlink), ``routes`` (pure). `dmlcomm.topology` has the networks. Nothing here imports
torch.
"""

from dmlcomm.errors import LabError
from dmlcomm.lab.lab import Lab
from dmlcomm.lab.options import Options
from dmlcomm.topology.builders import build

__all__ = ["Lab", "LabError", "Options", "build"]


def __dir__() -> list[str]:
    return list(__all__)
