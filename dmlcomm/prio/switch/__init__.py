"""Tickets in the network: a Linux bridge that sends packets of urgent operations first.

``dmlcomm switch`` is its command line (`commands`). One process per bridge (`daemon`) gives each
port strict-priority queues (`queues`) and a classifier that puts packets into them: a program in
the kernel (`program`), or filters that the process changes (`filters`). Both follow the priority
window (`window`).
"""
