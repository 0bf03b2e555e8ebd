"""The user's optimizer, for some of its parameters."""

import contextlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import nn

# Attributes of an optimizer, in a way that shows changes; versions of parameters.
_Seen = tuple[dict[str, Any], list[int]]

# Attributes of any optimizer of torch that do not count.
_NOT_SEEN = ("param_groups", "state", "_opt_called", "_warned_capturable_if_run_uncaptured")


@dataclass(frozen=True)
class Options:
    """Of an optimizer, in one step.

    Attributes:
        groups: the options of each parameter group, without its parameters.
        group_of: the group of each parameter, by number.
    """

    groups: list[dict[str, Any]]
    group_of: dict[nn.Parameter, int]


def options_of(optimizer: torch.optim.Optimizer) -> Options:
    """As they are now."""
    groups = [
        {
            # A rate that is a tensor is changed in place by a scheduler.
            key: value.clone() if isinstance(value, torch.Tensor) else value
            for key, value in group.items()
            if key != "params"
        }
        for group in optimizer.param_groups
    ]
    return Options(
        groups, {p: i for i, group in enumerate(optimizer.param_groups) for p in group["params"]}
    )


def is_of_torch(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it is one of torch.optim's own, each of which treats parameters alone."""
    return type(optimizer).__module__.startswith("torch.optim.")


class OptimizerPart:
    """A copy of the user's optimizer that updates some of its parameters, with the same state.

    Args:
        optimizer: the user's; its class is the class of the copy.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._part = object.__new__(type(optimizer))
        self._part.__dict__.update(optimizer.__dict__)
        # A scheduler replaces `step` of the optimizer; the user's hooks run once per step.
        self._part.__dict__.pop("step", None)
        self._part._optimizer_step_pre_hooks = OrderedDict()
        self._part._optimizer_step_post_hooks = OrderedDict()
        # Torch's own keep nothing in attributes that a step computes with.
        self._is_known = is_of_torch(optimizer)

    def step(self, options: Options, parameters: Set[nn.Parameter]) -> None:
        """One update.

        Args:
            options: see `options_of`.
            parameters: to update, with their gradients; those of no parameter group are left as
                they are.

        Raises:
            RuntimeError: the optimizer keeps state outside of `state`, or updates other parameters.
        """
        part = self._part
        part.state = self._optimizer.state
        # Only those of these parameters: there may be a group for each layer.
        members: dict[int, list[nn.Parameter]] = {}
        for parameter in parameters:
            if parameter in options.group_of:
                members.setdefault(options.group_of[parameter], []).append(parameter)
        if not members:
            return
        groups = [{**options.groups[i], "params": members[i]} for i in sorted(members)]
        part.param_groups = list(groups)
        with _as_in_a_step(next(iter(parameters)).device.type):
            others = [] if self._is_known else [p for p in options.group_of if p not in parameters]
            before = None if self._is_known else self._seen(others)
            options_before = [_seen_of(options.groups[i]) for i in sorted(members)]
            part.step()
        for seen, group in zip(options_before, groups, strict=True):
            if _seen_of({key: value for key, value in group.items() if key != "params"}) != seen:
                self._refuse("param_groups")
        if before is not None:
            self._check_first_step(before, self._seen(others))

    def _seen(self, others: Sequence[nn.Parameter]) -> "_Seen":
        attributes = {k: v for k, v in vars(self._part).items() if k not in _NOT_SEEN}
        return _seen_of(attributes), [parameter._version for parameter in others]

    def _check_first_step(self, before: "_Seen", after: "_Seen") -> None:
        """Other steps change what the first one does."""
        names = before[0].keys() | after[0].keys()
        changed = sorted(k for k in names if before[0].get(k, ()) != after[0].get(k, ()))
        if changed:
            self._refuse(f'attribute "{changed[0]}"')
        if before[1] != after[1]:
            self._refuse("other parameters than those of its param_groups")
        self._is_known = True

    def _refuse(self, what: str) -> NoReturn:
        which = what if what.startswith("other") else f"its {what}"
        raise RuntimeError(
            f"{type(self._part).__name__} changes {which} in step(), so it cannot update "
            f'parameters one after the other: use schedule="plain"'
        )


def _seen_of(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """By name: the identity of the value, and what is in it: a tensor's version, or the same of the
    items of a list, set or dictionary."""
    seen = {}
    for name, value in attributes.items():
        inside: Any = None
        if isinstance(value, torch.Tensor):
            inside = value._version
        elif isinstance(value, list | set | dict):
            items = value.values() if isinstance(value, dict) else value
            inside = [(id(item), _version_of(item)) for item in items]
        seen[name] = (id(value), inside)
    return seen


def _version_of(item: Any) -> int | None:
    """Of a tensor that is no parameter: updates change those."""
    is_state = isinstance(item, torch.Tensor) and not isinstance(item, nn.Parameter)
    return item._version if is_state else None


@contextlib.contextmanager
def _as_in_a_step(device_type: str) -> Iterator[None]:
    """An update may run inside a forward pass: what is set for that must not reach it."""
    with contextlib.ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        if torch.is_autocast_enabled(device_type):
            stack.enter_context(torch.autocast(device_type, enabled=False))
        stack.enter_context(torch.no_grad())
        yield
