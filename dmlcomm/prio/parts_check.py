"""Whether an optimizer gives the same weights in parts as all at once."""

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import torch
from torch import nn

from dmlcomm.prio.equality import are_equal
from dmlcomm.prio.optimizer_part import is_of_torch

# Which updates are compared, by number: a later one may do what the first does not.
_COMPARED = frozenset({1, 2, 4, 8})


class PartsCheck:
    """Compares some of the first updates with those that the optimizer makes of all parameters.

    Optimizers that take a norm over all parameters, or draw random numbers, make other weights of
    parts. Those of torch.optim do not, and nothing is compared.

    Args:
        optimizer: the user's.
        name_of: of a parameter, for errors.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, name_of: Callable[[nn.Parameter], str]
    ) -> None:
        self._optimizer = optimizer
        self._name_of = name_of
        self._is_known = is_of_torch(optimizer)
        self._number = 0
        self._is_in_doubt = False

    def is_due(self) -> bool:
        """Whether the next update, one in several parts, is to be compared. It is called once."""
        self._number += 1
        return not self._is_known and (self._is_in_doubt or self._number in _COMPARED)

    def update(self, in_parts: Callable[[], None], at_once: Callable[[], None]) -> None:
        """Makes an update both ways, and keeps that of all parameters at once.

        Needs memory for two more copies of the parameters, and one of gradients and state.

        Raises:
            RuntimeError: they differ. The update at once is made. All ranks raise, as all have the
                same averages; and the next update is compared again.
        """
        self._is_in_doubt = True
        own, before, draws = self._optimizer.state, self._copies(), self._random_states()
        failure: Exception | None = None
        self._optimizer.state = state = self._copied_state()
        try:
            in_parts()
        except Exception as error:
            failure = error
        finally:
            self._optimizer.state = own
            weights = self._copies()
            has_drawn = not _are_equal(draws, self._random_states())
            with torch.no_grad():
                for parameter, values in before.items():
                    parameter.copy_(values)
        before.clear()
        at_once()
        if failure is not None:
            raise failure
        if has_drawn:
            self._refuse("draws random numbers in step()")
        what = next(self._differences(weights, state), None)
        if what is not None:
            self._refuse(f"computes {what} from several parameters")
        self._is_in_doubt = False

    def _copies(self) -> dict[nn.Parameter, torch.Tensor]:
        groups = self._optimizer.param_groups
        return {p: p.detach().clone() for group in groups for p in group["params"]}

    def _copied_state(self) -> Any:
        """Of the same kind, with other tensors; parameters in it are the same."""
        memo = {id(p): p for group in self._optimizer.param_groups for p in group["params"]}
        copied = copy.copy(self._optimizer.state)
        for key, value in copied.items():
            copied[key] = copy.deepcopy(value, memo)
        return copied

    def _random_states(self) -> list[torch.Tensor]:
        device = self._optimizer.param_groups[0]["params"][0].device
        states = [torch.get_rng_state()]
        if device.type != "cpu":
            states.append(torch.get_device_module(device).get_rng_state(device))
        return states

    def _differences(
        self, weights: Mapping[nn.Parameter, torch.Tensor], state: Mapping[Any, Any]
    ) -> Iterator[str]:
        """Between the update in parts, which is given, and that of the optimizer."""
        own: Mapping[Any, Any] = self._optimizer.state
        for parameter, values in weights.items():
            if not _are_equal(values, parameter.detach()):
                yield self._name_of(parameter)
        for key in dict.fromkeys([*own, *state]):
            # A look at what is not there leaves an empty dictionary.
            if not _are_equal(own.get(key, {}), state.get(key, {})):
                of = self._name_of(key) if isinstance(key, nn.Parameter) else repr(key)
                yield f"its state of {of}"

    def _refuse(self, what: str) -> NoReturn:
        raise RuntimeError(
            f"{type(self._optimizer).__name__} {what}, so other weights result if parameters are "
            f'updated one after the other: use schedule="plain"'
        )


def _are_equal(first: Any, second: Any) -> bool:
    """Tensors, numbers and text, also inside of others. What else there is counts as equal."""
    if isinstance(first, torch.Tensor):
        return isinstance(second, torch.Tensor) and are_equal(first, second)
    if isinstance(first, Mapping):
        return first.keys() == second.keys() and all(
            _are_equal(value, second[key]) for key, value in first.items()
        )
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(_are_equal, first, second))
    if isinstance(first, int | float | str):
        return bool(first == second) or (first != first and second != second)
    return True
