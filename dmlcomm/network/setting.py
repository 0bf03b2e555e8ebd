"""What ``DMLCOMM_TOPOLOGY`` says.

================== ================================================================================
text               the hosts are connected by
================== ================================================================================
``auto``           what their subnets show
``flat``           one network per rail, to which all of them belong
``bcube:n,k``      BCube(n, k): n^k hosts with k NICs each
``grid:AxBx...``   BCube with its own number of ports per level: A on level 0, B on level 1, ...
``file:PATH``      what a YAML file says (`topology_file`)
================== ================================================================================

All but a file may be followed by the rate of the NICs, ``bcube:3,2@10gbit``, or by one for each
level or rail, ``flat@25gbit,10gbit``.
"""

from dmlcomm.bml.specification import VARIABLE, Network, TopologyError, parse_sizes
from dmlcomm.units import parse_rate

_FILE = "file:"


def parse(text: str) -> Network:
    """Reads the value of the variable. Raises TopologyError, also for what is wrong in a file."""
    source = f"{VARIABLE}={text}"
    if text.startswith(_FILE):
        from dmlcomm.network import topology_file  # with yaml, which most jobs do without

        return topology_file.load(text.removeprefix(_FILE), source)
    shape, at, rates = text.partition("@")
    where = f'{VARIABLE}="{text}"'
    sizes = parse_sizes(shape, where)
    if not at:
        return Network(sizes, source=source)
    try:
        rates_bps = tuple(map(parse_rate, rates.split(",")))
    except ValueError as error:
        raise TopologyError(f"{where}: {error}") from error
    if sizes and len(rates_bps) not in (1, len(sizes)):
        raise TopologyError(
            f"{where} is not legal: expected one rate, or {len(sizes)}, one per level"
        )
    if sizes and len(rates_bps) == 1:
        rates_bps *= len(sizes)
    return Network(sizes, rates_bps=rates_bps, source=source)
