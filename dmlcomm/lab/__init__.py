"""The lab: a cluster with several NICs per host, emulated on one Linux machine.

    with dmlcomm.lab.Lab("bcube:3,2", rate="200mbit") as lab:
        lab.run([sys.executable, "train.py"], check=True)

`Lab` is the way in from Python, ``dmlcomm lab`` from a shell. Layers, from the top: ``commands``
(the command line), ``lab`` and ``launch`` (what a user's process does), ``client`` and ``wire``
(how it speaks to the lab), ``holder`` and ``requests`` (the process that a lab is), ``network`` and
``shaping`` (netlink), ``builders``, ``routes`` and ``graph`` (pure). Nothing here imports torch.
"""

from dmlcomm.errors import LabError
from dmlcomm.lab.builders import build
from dmlcomm.lab.lab import Lab
from dmlcomm.lab.options import Options

__all__ = ["Lab", "LabError", "Options", "build"]


def __dir__() -> list[str]:
    return list(__all__)
