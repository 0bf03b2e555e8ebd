"""An optimizer whose communication goes on across the border between two steps."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import optimizer as of_all

from dmlcomm.prio.agreement import broadcast_weights, give_back, private_group
from dmlcomm.prio.exchange import SCHEDULES, Exchange
from dmlcomm.prio.forward_order import without_compile
from dmlcomm.prio.parts_check import PartsCheck
from dmlcomm.prio.refusals import check_measured, check_model, check_optimizer, check_parameters
from dmlcomm.prio.schedule_choice import CANDIDATES, ScheduleChoice

AUTO = "auto"


class DistributedOptimizer(torch.optim.Optimizer):
    """Averages gradients over all ranks in the background, also while the next step has begun.

    It takes the place of `torch.nn.parallel.DistributedDataParallel` and of the optimizer that it
    is given: the model stays as it is, and what was done with the optimizer is done with this one.
    Learning-rate schedulers take either. docs/tickets.md says what works with it.

    - ``plain``: `step` waits for all averages, as DDP does.
    - ``cross``: `step` returns at once. A module waits for its own parameters when it runs, and
      gradients of the first modules overtake the others on their way.
    - ``dear``: gradients are half reduced in the backward pass; the rest is done beside the forward
      pass.
    - ``auto``: measures these during the first steps, and keeps the fastest: see `schedule`.

    Weights and buffers of rank 0 are broadcast at once. `parameters()` of the model, its
    `state_dict`, evaluation, and copies of it have the weights after the last step. Those that code
    reads as attributes of modules, or has got before the step, may be one step old, unless it calls
    `flush` before.

    Args:
        optimizer: the user's, any of torch.optim or alike whose step needs no closure.
        model: whose parameters it updates; not wrapped by DDP or FSDP. Only "plain" does without.
        named_parameters: names for errors; default: those of the model.
        backward_passes_per_step: gradients of so many passes are added up, then averaged.
        schedule: "cross", "dear", "plain" or "auto".
        group_mb: how many MiB of gradients travel as one tensor; None: as the schedule needs it.
        process_group: the ranks; None: all. Gradients travel in a group of their own with these
            ranks, which all of them make here; those of "auto" in two.

    Raises:
        TypeError: `optimizer` is none.
        ValueError: something cannot work with it; the message says what.

    Example:
        >>> optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        >>> optimizer = dmlcomm.DistributedOptimizer(optimizer, model=model)
        >>> loss_of(model).backward()
        >>> optimizer.step()
    """

    # GradScaler leaves the scale to this class, so `step` sees that it is used.
    _step_supports_amp_scaling = True

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: nn.Module | None = None,
        named_parameters: Iterable[tuple[str, nn.Parameter]] | None = None,
        backward_passes_per_step: int = 1,
        schedule: str = "cross",
        group_mb: float | None = None,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        check_optimizer(optimizer, updates_parts=schedule != "plain")
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        check_parameters(parameters)
        _check_options(model, backward_passes_per_step, schedule, group_mb)
        self._optimizer, is_auto = optimizer, schedule == AUTO
        if is_auto:
            check_measured(optimizer, parameters)
        if model is not None:
            check_model(model, waits=schedule != "plain")
            named_parameters = named_parameters or without_compile(model).named_parameters()
        names = {parameter: name for name, parameter in named_parameters or ()}
        name_of = functools.partial(_name_of, names)
        buffers = [] if model is None else [*model.parameters(), *model.buffers()]
        with contextlib.ExitStack() as undo:  # if anything fails
            groups = []
            for _ in range(2 if is_auto else 1):
                groups.append(private_group(process_group))
                undo.callback(give_back, groups[-1])
            self._choice = ScheduleChoice(groups[0], parameters[0].device) if is_auto else None
            broadcast_weights(groups[0], list(dict.fromkeys([*parameters, *buffers])))
            self._exchange = Exchange(
                optimizer,
                model if schedule != "plain" else None,
                process_group=groups[0],
                group_of_tickets=groups[-1],
                name_of=name_of,
                passes=backward_passes_per_step,
                schedule=CANDIDATES[0] if is_auto else schedule,
                group_mb=group_mb,
            )
            undo.pop_all()
        self._parts = PartsCheck(optimizer, name_of)
        self._skips = False
        self._is_closed = False
        self._found_no_gradient = False  # by `synchronize`, on no rank
        self._handles = [
            optimizer.register_state_dict_pre_hook(lambda _: self.flush()),
            optimizer.register_load_state_dict_pre_hook(lambda *_: self._exchange.flush_or_drop()),
        ]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update, on all ranks. Its averages may still be on their way when it returns.

        Args:
            closure: computes the loss, and its gradients.

        Returns:
            What `closure` returns, or None.

        Raises:
            RuntimeError: gradients were changed after backward without `synchronize`; or the
                optimizer is closed.
        """
        try:
            return self._step(closure)
        except BaseException:
            # A GradScaler takes back what it has set only if there is no error.
            for name in ("found_inf", "grad_scale"):
                self.__dict__.pop(name, None)
            raise

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        self._check_open()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        is_scaled = "found_inf" in self.__dict__
        is_known = self._exchange.is_averaged or self._found_no_gradient
        if (is_scaled or self._skips) and not is_known:
            raise RuntimeError(
                "the gradients are not averaged yet: call synchronize() before GradScaler or "
                "skip_synchronize()"
            )
        if self._exchange.is_averaged:
            self._exchange.end_averaged()
            if not is_scaled or self._unscale():
                self._optimizer.step()
        else:
            self._exchange.finish()
            self._update()
        self._found_no_gradient = False
        self._try_schedules()
        return loss

    def synchronize(self) -> None:
        """Waits until the parameters' gradients are the averages. All ranks call it.

        Then they may be clipped, unscaled or looked at, and `step` takes them as they are. After
        the error for a gradient that was changed too early, it ends that step: `zero_grad` is next.

        Raises:
            RuntimeError: gradients were changed after backward; or the optimizer is closed.
        """
        self._check_open()
        self._exchange.flush()
        if not self._exchange.is_averaged:
            self._exchange.finish(goes_on=True)
            self._exchange.average()
            self._found_no_gradient = not self._exchange.is_averaged

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Inside, `step` must find averages, those of `synchronize`. Horovod's programs say so."""
        self._skips = True
        try:
            yield
        finally:
            self._skips = False

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside only add to the gradients of this rank, as with DDP."""
        with self._exchange.local():
            yield

    def flush(self) -> None:
        """Makes the updates of the last step, wherever they are not made yet.

        Afterwards all weights are those after the last step. A rank may call it alone.
        """
        self._exchange.flush()

    def close(self) -> None:
        """Makes all updates, and leaves the model to the user's optimizer, or to another one.

        After a step, or after an error; all ranks that are left call it. Leaving a ``with`` block
        of the optimizer does it, too.

        Raises:
            RuntimeError: an update has failed, as one whose averages are lost (CommError). All else
                is done: load weights and state of a checkpoint.
        """
        if self._is_closed:
            return
        self._is_closed = True
        for handle in self._handles:
            handle.remove()
        self._exchange.close()

    def __enter__(self) -> "DistributedOptimizer":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with contextlib.suppress(RuntimeError) if kind else contextlib.nullcontext():
            self.close()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As of the user's optimizer; what was averaged by `synchronize` is dropped.

        Args:
            set_to_none: the gradients, instead of filling them with zeros.

        Raises:
            RuntimeError: gradients are on their way: neither `step` nor `synchronize` was called.
        """
        self._exchange.forget()
        self._found_no_gradient = False
        self._optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """That of the user's optimizer, after the last step."""
        return self._optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads `state_dict` into the user's optimizer."""
        self._optimizer.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As of the user's optimizer; all ranks add the same `param_group`, between steps."""
        self._exchange.flush()
        self._optimizer.add_param_group(param_group)

    @property
    def schedule(self) -> str:
        """One of "cross", "dear" and "plain"; "auto" while it measures. The same on all ranks."""
        return self._exchange.schedule if self._choice is None else AUTO

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self._optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        self._exchange.flush()
        return self._optimizer.state

    def __getattr__(self, name: str) -> Any:
        if name == "_optimizer":  # not made yet
            raise AttributeError(name)
        return getattr(self._optimizer, name)

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("a DistributedOptimizer cannot be copied or saved: save its state_dict()")

    def __repr__(self) -> str:
        return f"DistributedOptimizer({self._optimizer!r})"

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("it is closed: use the optimizer that it was made of")

    def _update(self) -> None:
        inner, exchange = self._optimizer, self._exchange
        if not exchange.is_deferred or _has_step_hooks(inner):
            self._update_at_once()
        elif exchange.has_parts and self._parts.is_due():
            self._parts.update(exchange.update_in_parts, self._update_at_once)
        else:
            exchange.defer()
            # For a scheduler of the inner optimizer, which wants to see steps before its own.
            inner._opt_called = True  # type: ignore[attr-defined]

    def _update_at_once(self) -> None:
        with self._exchange.averages():
            self._optimizer.step()

    def _unscale(self) -> bool:
        """What GradScaler leaves to an optimizer. False: a gradient is not finite."""
        if bool(self.__dict__["found_inf"].item()):
            return False
        scale = self.__dict__.get("grad_scale")
        if scale is not None:
            inverse = float(scale.double().reciprocal().float())
            gradients = [
                p.grad for group in self.param_groups for p in group["params"] if p.grad is not None
            ]
            torch._foreach_mul_(gradients, inverse)
        return True

    def _try_schedules(self) -> None:
        if self._choice is None:
            return
        schedule = self._choice.after_step()
        if schedule is not None:
            self._exchange.change_schedule(schedule, is_final=self._choice.has_ended)
        if self._choice.has_ended:
            self._choice = None


def _has_step_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """What the user has given to be called with a step, which sees the step of all parameters.

    Hooks of this optimizer or of all, and a `step` in the place of that of the class. That of
    learning-rate schedulers only counts.
    """
    step = vars(optimizer).get("step")
    return bool(
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or of_all._global_optimizer_pre_hooks
        or of_all._global_optimizer_post_hooks
        or (step is not None and not getattr(step, "_wrapped_by_lr_sched", False))
    )


def _name_of(names: Mapping[nn.Parameter, str], parameter: nn.Parameter) -> str:
    return names.get(parameter, "a parameter without a name")


def _check_options(
    model: nn.Module | None, passes: int, schedule: str, group_mb: float | None
) -> None:
    if schedule not in (*SCHEDULES, AUTO):
        raise ValueError(f"schedule={schedule!r}: expected one of {', '.join([*SCHEDULES, AUTO])}")
    if model is None and schedule != "plain":
        raise ValueError(f'schedule="{schedule}" waits in the modules of the model: give model=')
    if not hasattr(passes, "__index__") or passes < 1:
        raise ValueError(f"backward_passes_per_step={passes}: expected a whole number from 1 on")
    if group_mb is not None and not group_mb > 0:
        raise ValueError(f"group_mb={group_mb}: expected more than 0")
