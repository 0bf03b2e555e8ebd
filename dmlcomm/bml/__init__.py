"""BML and BCube: maps of grids, rank <-> host <-> digits and interface <-> level.

=================  ===============================================================================
module             what it does
=================  ===============================================================================
``grid``           arithmetic of digits: neighbours, switches
``hosts``          hosts with their rails, by subnet; hosts on a grid
``specification``  the grid that a user asks for
``recovery``       finds a grid in the subnets of hosts: the level of each interface
``validation``     compares a grid that was asked for with the subnets, cable by cable
=================  ===============================================================================

Everything is a pure function of its arguments. The schedules of BML are in csrc/schedule.
"""
