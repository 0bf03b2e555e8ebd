"""Communication hooks for DistributedDataParallel that send fewer bytes.

docs/hooks.md describes them. torch is imported when a name that needs it is used.
"""

from typing import TYPE_CHECKING

from dmlcomm.lazy import lazy_names

if TYPE_CHECKING:
    from dmlcomm.hooks.bf16 import bf16_hook
    from dmlcomm.hooks.quantize import QuantizeState, quantize_hook

_HOMES = {
    "QuantizeState": "dmlcomm.hooks.quantize",
    "bf16_hook": "dmlcomm.hooks.bf16",
    "quantize_hook": "dmlcomm.hooks.quantize",
}

__all__ = ["QuantizeState", "bf16_hook", "quantize_hook"]


__getattr__, __dir__ = lazy_names(__name__, __all__, _HOMES)
