"""``dmlcomm plan``: what collectives take on a network, and plan files for jobs.

================  ================================================================================
module            what it does
================  ================================================================================
``network``       hosts, rails and rates of what is planned
``pricing``       predicted times, bounds, and the choice
``shared_cores``  prices where ranks of several hosts share cores
``plan_file``     writes and reads the file of ``DMLCOMM_PLAN``
``measure``       latency and rates of the running cluster (the only one that imports torch)
``report``        tables, and the object of ``--json``
``commands``      the command line
================  ================================================================================
"""
