"""The network between hosts: which NICs to use, and what all ranks learn about it.

=================  ===============================================================================
module             what it does
=================  ===============================================================================
``nic``            chooses the interfaces of this host (``DMLCOMM_SOCKET_IFNAME``)
``setting``        what ``DMLCOMM_TOPOLOGY`` says; ``topology_file``: its YAML files
``facts``          what a rank publishes about its host
``exchange``       the facts of all ranks, through the store of the group
``rates``          how fast the rails are
``discovery``      `discover`: from all facts to the map that the engine takes
``agreement``      `agree`: all of that, for a new process group
=================  ===============================================================================

``nic``, ``exchange`` and ``agreement`` ask the machine or the store; the others are pure. Nothing
imports torch.
"""
