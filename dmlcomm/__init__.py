"""dmlcomm: a backend of ``torch.distributed`` for machines with several network cards.

    torch.distributed.init_process_group("dmlcomm")

is all that a training script needs. A program may also use:

===================  =============================================================================
`dmlcomm`            `init`, which makes the process group where a launcher has started several;
                     functions on process groups that torch.distributed does not have: `abort`,
                     `counters`, `describe`, `monitored_barrier`, `rails`, `set_timeout`; `Options`;
                     counters for TensorBoard and the like: `log_counters`, `lightning_callback`,
                     `transformers_callback`;
                     `trace_rails`, which adds NICs to a trace of torch's profiler;
                     `ticket`, which says what goes first, and `DistributedOptimizer`, which gives
                     tickets to gradients
`dmlcomm.prio`       tickets for DDP and FSDP2: `dmlcomm.prio.comm_hook`, `ticket_fsdp`
`dmlcomm.hooks`      DDP with fewer bytes: `dmlcomm.hooks.quantize_hook`, `bf16_hook`
`dmlcomm.errors`     the exceptions, as a tree; all of them are in `dmlcomm`, too, below `Error`
`dmlcomm.ps`         the parameter server: `dmlcomm.ps.Client`, `Server`, `DistributedOptimizer`
`dmlcomm.lab`        a cluster emulated on one machine: `dmlcomm.lab.Lab`
`dmlcomm.sim`        flows on simulated links: `dmlcomm.sim.max_min_rates`, `Simulation`
===================  =============================================================================

All other modules are internal. The command ``dmlcomm`` has ``doctor``, ``lab``, ``plan``, ``ps``,
``run``, ``simulate`` and ``switch``. Settings are environment variables, see docs/configuration.md.
torch is imported when the first name that needs it is used.
"""

from typing import TYPE_CHECKING

from dmlcomm import errors
from dmlcomm.backends import register_at_import
from dmlcomm.lazy import lazy_names

if TYPE_CHECKING:
    from dmlcomm import hooks, lab, prio, ps, sim  # noqa: F401
    from dmlcomm.backends.counter_log import (
        lightning_callback,
        log_counters,
        transformers_callback,
    )
    from dmlcomm.backends.groups import (
        abort,
        counters,
        describe,
        monitored_barrier,
        rails,
        set_timeout,
    )
    from dmlcomm.backends.launched import init
    from dmlcomm.backends.options import Options
    from dmlcomm.backends.rail_trace import trace_rails
    from dmlcomm.errors import *  # noqa: F403
    from dmlcomm.prio import DistributedOptimizer
    from dmlcomm.prio.ticket import ticket
    from dmlcomm.rail import RailCounters

__all__ = [
    "DistributedOptimizer",
    "Options",
    "RailCounters",
    "abort",
    "counters",
    "describe",
    "init",
    "lightning_callback",
    "log_counters",
    "monitored_barrier",
    "rails",
    "set_timeout",
    "ticket",
    "trace_rails",
    "transformers_callback",
]
__all__ += errors.__all__


_HOMES = {
    **dict.fromkeys(errors.__all__, "dmlcomm.errors"),
    **dict.fromkeys(
        ("abort", "counters", "describe", "monitored_barrier", "rails", "set_timeout"),
        "dmlcomm.backends.groups",
    ),
    **dict.fromkeys(
        ("lightning_callback", "log_counters", "transformers_callback"),
        "dmlcomm.backends.counter_log",
    ),
    "DistributedOptimizer": "dmlcomm.prio",
    "Options": "dmlcomm.backends.options",
    "RailCounters": "dmlcomm.rail",
    "hooks": "dmlcomm.hooks",
    "init": "dmlcomm.backends.launched",
    "lab": "dmlcomm.lab",
    "prio": "dmlcomm.prio",
    "ps": "dmlcomm.ps",
    "sim": "dmlcomm.sim",
    "ticket": "dmlcomm.prio",
    "trace_rails": "dmlcomm.backends.rail_trace",
}

__getattr__, __dir__ = lazy_names(__name__, __all__, _HOMES)

register_at_import()
