"""Networks as graphs of hosts, switches, routers and shaped links: what labs and simulations have.

`builders.build` makes one from a text such as "bcube:3,2".
"""
