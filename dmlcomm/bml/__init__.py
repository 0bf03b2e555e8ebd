"""BML and BCube: maps of grids, rank <-> host <-> digits and interface <-> level.

Everything is a pure function of its arguments. The schedules of BML are in csrc/schedule.
"""
