"""The scenarios: 16 hosts each, as ``dmlcomm simulate`` takes them.

Rates are such that two cores carry the traffic of all hosts, and sizes such that a step takes some
hundreds of milliseconds.
"""

from typing import Any

MTU = 9000
STEPS = 4

_RING = {"name": "ring", "op": "all_reduce", "algorithm": "ring", "size": "8MB", "steps": STEPS}
_SERVERS = {"name": "servers", "op": "push_pull", "size": "4MB", "steps": STEPS}
# Proxies pass pieces on, up and down, as soon as they have them.
_PROXIES = _SERVERS | {"servers": [0], "hosts": ["1-15"], "size": "8MB", "answer": "pieces"}
_FLAT = {"topology": "flat:16,1", "rate": "100mbit", "mtu": MTU}
# Four racks of four hosts, of which two can send upwards at once.
_RACKS = {"topology": "clos:1x4x4,1x1,r=2x1", "rate": "100mbit", "mtu": MTU}
# A rate per host, for servers to which all others talk.
_WIDE = {"topology": "flat:16,1", "rate": "200mbit", "mtu": MTU}

SCENARIOS: dict[str, dict[str, Any]] = {
    "all_reduce, ring": _FLAT | {"jobs": [_RING | {"compute": "50ms"}]},
    "all_reduce, halving and doubling": _FLAT
    | {"jobs": [_RING | {"name": "halving", "algorithm": "halving_doubling"}]},
    "all_reduce, bml_ring on a BCube": {
        "topology": "bcube:4,2",
        "rate": "100mbit",
        "mtu": MTU,
        "jobs": [_RING | {"name": "bml", "algorithm": "bml_ring", "size": "16MB"}],
    },
    "all_gather, ring through racks": _RACKS
    | {"jobs": [_RING | {"op": "all_gather", "compute": "50ms"}]},
    "two servers": _WIDE
    | {"jobs": [_SERVERS | {"servers": [0, 1], "hosts": ["2-15"], "compute": "100ms"}]},
    "a PSNet, four servers": {
        "topology": "psnet:4,12,3",
        "rate": "50mbit",
        "mtu": MTU,
        "jobs": [_SERVERS | {"size": "8MB"}],
    },
    "proxies, binary tree": _FLAT | {"jobs": [_PROXIES | {"tree": "binary"}]},
    "proxies, one aggregator per rack": _RACKS | {"jobs": [_PROXIES | {"tree": "flat_rack"}]},
    "proxies, chain": _FLAT | {"jobs": [_PROXIES | {"tree": "chain"}]},
    "proxies, a binary tree per rack": _RACKS | {"jobs": [_PROXIES | {"tree": "binary_rack"}]},
    "a server that answers by pieces": _FLAT | {"jobs": [_PROXIES | {"size": "4MB"}]},
    "two rings": _FLAT
    | {"jobs": [_RING, _RING | {"name": "half", "hosts": ["8-15"], "size": "12MB"}]},
    # At 100 Mb/s the time of the ring differs by a quarter from run to run.
    "a ring beside a server": _FLAT
    | {
        "rate": "40mbit",
        "jobs": [_RING, _SERVERS | {"servers": [0], "hosts": ["4-7"], "size": "4MB"}],
    },
    "circuits of a PSNet move": {
        "topology": "psnet:4,12,3@8,2,2",
        "rate": "100mbit",
        "mtu": MTU,
        "jobs": [_SERVERS | {"size": "16MB", "steps": 2 * STEPS}],
        "events": [
            {
                "at": 4,
                "circuits": {"worker4": "tor2", "worker5": "tor2"}
                | {"worker6": "tor3", "worker7": "tor3"},
                "dark": "50ms",
            }
        ],
    },
    "circuits of a tree move": {
        "topology": "sip:2x2x4",
        "rate": "100mbit",
        "mtu": MTU,
        "jobs": [
            _RING | {"hosts": [0, 1, 8, 9], "size": "4MB", "steps": 3 * STEPS},
            _RING | {"name": "other", "hosts": [2, 3, 10, 11], "size": "4MB", "steps": 3 * STEPS},
        ],
        "events": [{"at": 4, "circuits": {"host8": "tor2", "host9": "tor2"}, "dark": "50ms"}],
    },
}
