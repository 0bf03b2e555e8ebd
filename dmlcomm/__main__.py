"""``python -m dmlcomm``: the same as the ``dmlcomm`` command."""

from dmlcomm.cli import main

main()
