"""Maps of BCube and grid networks: rank <-> host <-> digits, and interface <-> level.

======================  ==========================================================================
module                  what it does
======================  ==========================================================================
``grid``                arithmetic of digits
``specification``       what ``DMLCOMM_TOPOLOGY`` says; ``specification_file``: its YAML files
``facts``               what a rank publishes about its host
``hosts``               the ranks' facts, by host and by subnet
``recovery``            finds a grid in the subnets
``validation``          compares a grid that was asked for with the subnets
``rates``               how fast the rails are
``plan``                ``discover``: all of that into what the engine takes
``exchange``            the facts of all ranks, through the store of the group
======================  ==========================================================================

Everything but ``exchange`` is a pure function of its arguments, and nothing imports torch.
"""
