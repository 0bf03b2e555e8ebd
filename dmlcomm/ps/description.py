"""The description of a model, as a message; equal on all workers and servers."""

from typing import Any

from dmlcomm import _core

# Tensors that an error names one by one; of larger models it names these and the number.
NAMED_TENSORS = 4


def spec_of(model: Any) -> _core.PsModelSpec:
    """The core's view. Raises ValueError for what it cannot keep."""
    spaces = [_core.PsSpace(s.dtype, s.count, s.row_elements, s.wire) for s in model.spaces]
    return _core.PsModelSpec(
        name=model.name,
        spaces=spaces,
        num_servers=model.num_servers,
        replicas=model.replicas,
        apply=model.apply,
        reduce=model.reduce,
        rule=model.rule,
        options=dict(model.options),
    )


def element_bytes(dtype: str) -> int:
    """Of a type of the core, as "f32": these names end in their bits."""
    return int(dtype.lstrip("bfiu")) // 8


def shard_bytes(model: Any) -> float:
    """What messages carry of one server's part of the dense tensors."""
    dense = [space for space in model.spaces if not space.row_elements]
    total = sum(space.count * element_bytes(space.wire or space.dtype) for space in dense)
    return float(total / model.num_servers)


def why_not_by_proxy(model: Any) -> str:
    """Why a proxy cannot add up pushes of the model; empty: it can."""
    if model.apply == "clock" and not any(space.row_elements for space in model.spaces):
        return ""
    has = "tables" if model.apply == "clock" else f'apply="{model.apply}"'
    return f'model "{model.name}" has {has}, and proxies carry dense models with apply="clock"'


def describe(model: Any) -> str:
    """One line: tensors, rule, and when it is applied."""
    tensors = ", ".join(_tensor(tensor) for tensor in model.tensors[:NAMED_TENSORS])
    if len(model.tensors) > NAMED_TENSORS:
        tensors += f", and {len(model.tensors) - NAMED_TENSORS} more"
    options = ", ".join(f"{key}={model.options[key]:g}" for key in sorted(model.options))
    rule = f"{model.rule} ({options})" if options else model.rule
    wires = {space.wire for space in model.spaces if space.wire}
    wire = f", {'/'.join(sorted(wires))} on the wire" if wires else ""
    rows = ", by rows" if any(space.row_elements for space in model.spaces) else ""
    return f"{tensors}; rule {rule}, apply {model.apply}, reduce {model.reduce}{rows}{wire}"


def _tensor(tensor: Any) -> str:
    return f"{tensor.key} {tensor.dtype}{list(tensor.shape)}"


def difference(ours: Any, theirs: Any) -> str:
    """The text of an error about two models of one name that are not equal."""
    text = f"here {describe(ours)}; there {describe(theirs)}"
    for mine, other in zip(ours.tensors, theirs.tensors, strict=False):
        if mine != other:
            return f"{text}; the first difference is {_tensor(mine)} against {_tensor(other)}"
    if len(ours.tensors) != len(theirs.tensors):
        return f"{text}; {len(ours.tensors)} tensors against {len(theirs.tensors)}"
    return text
