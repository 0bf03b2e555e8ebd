"""From the gradients of backward passes to their averages, group by group, and to the updates."""

import contextlib
import math
import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from dmlcomm.log import get_logger
from dmlcomm.prio.agreement import EARLY, Agreement, agree, give_back, positions_of
from dmlcomm.prio.arrivals import Arrivals
from dmlcomm.prio.forward_order import ForwardOrder, ticket_at, without_compile
from dmlcomm.prio.fused_group import FusedGroup
from dmlcomm.prio.gradients import replaced_gradients
from dmlcomm.prio.grouping import make_groups
from dmlcomm.prio.module_hooks import BeforeUse, ModuleHook
from dmlcomm.prio.module_reads import ModuleReads
from dmlcomm.prio.optimizer_part import options_of
from dmlcomm.prio.reduction import AllReduce, ScatterGather
from dmlcomm.prio.ticket import DEFAULT_TICKET
from dmlcomm.prio.updates import DeferredUpdates

# After so many steps in which no module has read a parameter, none is waited for any more.
MAX_BLIND_STEPS = 3


class OptimizerModuleHook(
    ModuleHook,
    reason="DistributedOptimizer waits for weights in front of modules, between parts that are "
    'compiled: compile without fullgraph=True, or use schedule="plain"',
):
    """Learns the order of reads, and waits for weights."""


@dataclass(frozen=True)
class Schedule:
    """How gradients travel, and when parameters are updated.

    Attributes:
        reduction: of the gradients of a group.
        is_deferred: updates are made when the forward pass needs them, and not in the step.
        group_mb: the usual size of a group, in MiB.
        first_mb: of the first one.
    """

    reduction: type[AllReduce] | type[ScatterGather]
    is_deferred: bool
    group_mb: float
    first_mb: float = math.inf


SCHEDULES = {
    "plain": Schedule(AllReduce, is_deferred=False, group_mb=25, first_mb=1),  # as in DDP
    "cross": Schedule(AllReduce, is_deferred=True, group_mb=4),
    "dear": Schedule(ScatterGather, is_deferred=True, group_mb=4),
}


class Exchange:
    """The gradients of one optimizer.

    In the first step nothing is sent before the end: it shows the order of gradients and of reads.
    Afterwards groups are posted in the order of the first step, which is the same on all ranks.
    Each is posted as soon as its gradients are there and all groups before it have been. A gradient
    that this rank lacks at the end of a step is sent as zeros then. The first step comes again if
    rank 0 has seen no read in it, as after a step before the first forward pass, and when other
    parameters require gradients.

    Attributes:
        is_averaged: the gradients are the averages of this step.
        schedule: that of the next step, a key of SCHEDULES.

    Args:
        optimizer: the user's.
        model: None if no schedule is deferred.
        process_group: the ranks.
        group_of_tickets: the same ranks, for deferred schedules: a group works otherwise from the
            first ticket on.
        name_of: of a parameter, for errors.
        passes: backward passes per step.
        schedule: a key of SCHEDULES.
        group_mb: size of groups in MiB; None: that of the schedule.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: nn.Module | None,
        *,
        process_group: dist.ProcessGroup,
        group_of_tickets: dist.ProcessGroup,
        name_of: Callable[[nn.Parameter], str],
        passes: int,
        schedule: str,
        group_mb: float | None,
    ) -> None:
        self._optimizer = optimizer
        self._model = model
        self._process_group = process_group
        self._group_of_tickets = group_of_tickets
        self._name_of = name_of
        self._passes = passes
        self._group_mb = group_mb
        self._reads: dict[nn.Module, list[nn.Parameter]] = {}
        self._learns_again = False
        self._blind_steps = 0
        self._hooks: ModuleReads | None = None
        self._is_local = False
        self.is_averaged = False
        self._has_begun = False
        self._has_told_of_change = False
        self._lock = threading.RLock()  # autograd has a thread for each device
        self._set_schedule(schedule)
        self._watch()
        # Last: if anything fails, the model has no hooks.
        self._forward = None if model is None else ForwardOrder(model, OptimizerModuleHook)

    # --- what the optimizer asks for -------------------------------------------------------------

    def finish(self, goes_on: bool = False) -> None:
        """Posts all that is left of a step. All ranks call it.

        Args:
            goes_on: also after it has raised.

        Raises:
            RuntimeError: a gradient was changed that had been sent.
        """
        self._begin()
        self._take()
        if not (goes_on and self._has_told_of_change):
            self._has_told_of_change = True
            self._arrivals.check_unchanged()
        self._has_told_of_change = False
        if self._agreement is None:
            self._learn()
        for group in self._groups[self._next :]:
            # Also zeros that are left of the step before, and what code has written itself.
            self._arrivals.take_present(group.numbers)
        while self._next < len(self._groups):
            self._post_next()
        self._reduction.complete(self._groups)
        self._arrivals.reset()
        self._reset_step()

    def average(self) -> None:
        """After `finish`: the averages become the gradients, if any rank has some."""
        has_any = False
        for group in self._groups:
            group.wait()
            has_any = has_any or bool(group.averages())
            group.write_gradients()
        self.is_averaged = has_any

    @contextlib.contextmanager
    def averages(self) -> Iterator[None]:
        """After `finish`: inside, the averages are the gradients."""
        with contextlib.ExitStack() as stack:
            for group in self._groups:
                group.wait()
                stack.enter_context(replaced_gradients(group.averages()))
            yield

    def end_averaged(self) -> None:
        """The averages that have become the gradients are used.

        Raises:
            RuntimeError: other gradients were added to them.
        """
        self._check_not_averaged()
        self.is_averaged = False

    def defer(self) -> None:
        """After `finish`: parameters are updated later, with the options of now."""
        self._updates.defer(options_of(self._optimizer))

    def update_in_parts(self) -> None:
        """After `finish`: makes the updates that `defer` leaves for later. The averages stay."""
        for group in self._groups:
            group.wait()
        averages = [group.buffer.clone() for group in self._groups]
        try:
            self.defer()
            self.flush()
        finally:
            self._updates.drop()
            for group, before in zip(self._groups, averages, strict=True):
                group.buffer.copy_(before)  # an optimizer may change gradients in its step

    def flush(self) -> None:
        """Makes the updates that wait. Does not depend on other ranks' calls."""
        self._updates.flush()

    def forget(self) -> None:
        """Before gradients are removed.

        Raises:
            RuntimeError: some are on their way.
        """
        self.is_averaged = False
        if self._arrivals.order and self._agreement is not None:  # in the first step none is sent
            raise RuntimeError(
                "gradients are removed that have been sent: call step() first, or synchronize() on "
                "all ranks; run backward passes of another model's loss that go through this one "
                "inside no_sync() of this optimizer"
            )
        self._has_told_of_change = False
        self._has_begun = False
        self._arrivals.reset()

    @contextlib.contextmanager
    def local(self) -> Iterator[None]:
        """Backward passes inside are not counted, and nothing is sent."""
        self._take()
        before, self._is_local = self._is_local, True
        try:
            yield
        finally:
            self._is_local = before
            self._arrivals.take(is_local=True)

    def flush_or_drop(self) -> None:
        """Before weights or states are loaded: as `flush`, but updates that fail are left out."""
        try:
            self.flush()
        except RuntimeError as error:
            get_logger().warning("DistributedOptimizer: updates are left out: %s", error)
            self._updates.drop()

    def close(self) -> None:
        """Makes the updates that wait, leaves the model as it was before, and gives back groups.

        All that is done also if an update fails.
        """
        self._arrivals.unwatch()
        self._stop_forward()
        self._remove_hooks()
        try:
            self.flush()
        finally:
            self._updates.drop()
            for group in dict.fromkeys([self._process_group, self._group_of_tickets]):
                give_back(group)

    def change_schedule(self, schedule: str, is_final: bool) -> None:
        """From the next step on. After a step; all ranks call it.

        Args:
            schedule: a key of SCHEDULES.
            is_final: no other one follows.
        """
        self.flush()
        self._set_schedule(schedule)
        self._regroup()
        if is_final:
            self._keep_one_group()

    @property
    def is_deferred(self) -> bool:
        return self._schedule.is_deferred

    @property
    def has_parts(self) -> bool:
        """Whether parameters are updated in several parts, if updates are deferred."""
        return len(self._groups) > 1

    # --- learning --------------------------------------------------------------------------------

    def _watch(self, came: Iterable[nn.Parameter] = ()) -> None:
        """Begins anew, with the parameters that require gradients now."""
        self._parameters = _trained(self._optimizer)
        self._agreement: Agreement | None = None
        self._arrivals = Arrivals(self._parameters, self._name_of, self._passes, came)
        self._arrivals.call(self._arrived, range(len(self._parameters)))
        self._set_groups([])

    def _learn(self) -> None:
        self._arrivals.take_all()
        if not self._parameters:
            raise RuntimeError("no parameter of the optimizer requires a gradient")
        positions = [0] * len(self._parameters)
        if self._model is not None:
            positions = positions_of(self._parameters, self._arrivals.has_gradient, self._forward)
        device = self._parameters[0].device
        self._agreement = agree(self._process_group, device, self._arrivals.order, positions)
        self._reads = {} if self._forward is None else self._reads_of(self._forward)
        self._stop_forward()
        self._regroup()
        self._watch_again(self._agreement)

    def _watch_again(self, agreement: Agreement) -> None:
        """The next step learns, too, if this one has shown nothing."""
        self._blind_steps = 0 if agreement.has_reads else self._blind_steps + 1
        self._learns_again = 0 < self._blind_steps < MAX_BLIND_STEPS
        if self._learns_again and self._model is not None:
            self._forward = ForwardOrder(self._model, OptimizerModuleHook)
        if self._blind_steps == MAX_BLIND_STEPS:
            get_logger().warning(
                "DistributedOptimizer: no module read a parameter of this optimizer in %d steps: "
                "updates are made in step(), so nothing is won",
                MAX_BLIND_STEPS,
            )

    def _reads_of(self, forward: ForwardOrder) -> dict[nn.Module, list[nn.Parameter]]:
        own = set(self._parameters)
        return {m: [p for p in found if p in own] for m, found in forward.reads().items()}

    def _set_schedule(self, schedule: str) -> None:
        self.schedule = schedule
        self._schedule = SCHEDULES[schedule]
        deferred = self._schedule.is_deferred
        group = self._group_of_tickets if deferred else self._process_group
        self._reduction = self._schedule.reduction(group)

    def _keep_one_group(self) -> None:
        """Gives back the process group that the schedule does not use."""
        used, other = self._process_group, self._group_of_tickets
        if self._schedule.is_deferred:
            used, other = other, used
        if other is not used:
            give_back(other)
        self._process_group = self._group_of_tickets = used

    def _regroup(self) -> None:
        """Makes groups for the schedule from what was agreed, and has the hooks that it needs."""
        assert self._agreement is not None
        self._set_groups(self._make_groups(self._agreement))
        self._arrivals.call(self._arrived, self._numbers_to_see())
        self._remove_hooks()
        if self._schedule.is_deferred and self._model is not None:
            self._hooks = ModuleReads(
                without_compile(self._model),
                OptimizerModuleHook,
                self._before_forward,
                self._before_read,
                BeforeUse(self.flush, self.flush_or_drop, self._refresh, [self._model]),
            )

    def _remove_hooks(self) -> None:
        if self._hooks is not None:
            self._hooks.remove()
            self._hooks = None

    def _stop_forward(self) -> None:
        if self._forward is not None:
            self._forward.stop()
            self._forward = None

    def _set_groups(self, groups: list[FusedGroup]) -> None:
        self._groups = groups
        self._updates = DeferredUpdates(self._optimizer, groups, self._name_of)
        self._place_of = {
            n: (i, place) for i, group in enumerate(groups) for place, n in enumerate(group.numbers)
        }
        self._reset_step()

    def _make_groups(self, agreement: Agreement) -> list[FusedGroup]:
        parameters, positions = self._parameters, agreement.positions
        mb, first_mb = self._schedule.group_mb, self._schedule.first_mb
        if self._group_mb is not None:
            mb, first_mb = self._group_mb, math.inf
        numbers = make_groups(
            agreement.order,
            lambda n: parameters[n].numel() * parameters[n].element_size(),
            lambda n: (parameters[n].dtype, parameters[n].device, positions[n] == EARLY),
            mb * 2**20,
            first_mb * 2**20,
        )
        size = dist.get_world_size(self._process_group)
        groups = [FusedGroup(found, [parameters[n] for n in found], size) for found in numbers]
        first = [min(positions[n] for n in group.numbers) for group in groups]
        places = {position: i for i, position in enumerate(sorted(set(first)))}
        for group, position in zip(groups, first, strict=True):
            group.is_early = position == EARLY
            group.ticket = DEFAULT_TICKET
            if self._schedule.is_deferred:
                group.ticket = ticket_at(places[position], len(places))
        return groups

    def _numbers_to_see(self) -> list[int]:
        """Parameters whose gradients are looked at as they come; others wait for the next of these.

        A call in Python for each would take longer than DDP does. The last one of a group posts it,
        the first one shows that a backward pass has begun, large ones are taken as they come, and
        each may come from an old weight if updates are deferred.
        """
        numbers: list[int] = []
        for group in self._groups:
            if self._schedule.is_deferred:
                numbers += group.numbers
            else:
                numbers += {group.numbers[0], *group.large_numbers(), group.numbers[-1]}
        return numbers

    # --- a step ----------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Before the first gradient of a step is looked at, or at its end."""
        if not self._has_begun:
            is_changed = not _are_same(self._parameters, _trained(self._optimizer))
            if is_changed:
                self._blind_steps = 0
            if is_changed or self._learns_again:
                self.flush()
                self._watch(self._arrivals.unwatch())
        self._has_begun = True

    def _arrived(self, parameter: nn.Parameter) -> None:
        try:
            self._check_not_averaged()
            if self._updates.stale:
                self._updates.check_not_stale(parameter)
        except RuntimeError:
            self._arrivals.drop_new()
            raise
        self._take()

    def _check_not_averaged(self) -> None:
        if self.is_averaged and self._arrivals.has_new:
            raise RuntimeError(
                "backward() after synchronize(): call step() or zero_grad() of the optimizer before"
            )

    def _take(self) -> None:
        """Counts the gradients that have come, and posts groups that are complete."""
        with self._lock:
            if not self._arrivals.has_new:
                return
            self._begin()
            for number in self._arrivals.take(self._is_local):
                if self._agreement is not None:
                    index, place = self._place_of[number]
                    group = self._groups[index]
                    if group.is_large[place]:
                        self._finish_update(group)
                        group.take(place)
                    self._missing[index] -= 1
            while self._next < len(self._groups) and self._missing[self._next] == 0:
                self._post_next()

    def _post_next(self) -> None:
        group = self._groups[self._next]
        self._finish_update(group)
        group.fill(self._arrivals.has_gradient)
        self._reduction.post(group)
        self._next += 1

    def _finish_update(self, group: FusedGroup) -> None:
        """That of the last step, if nobody has needed it."""
        if self._schedule.is_deferred:
            self._updates.apply(group)

    def _reset_step(self) -> None:
        self._next = 0
        self._missing = [len(group.numbers) for group in self._groups]
        self._has_begun = False

    def _before_forward(self, module: nn.Module) -> None:
        if not self._updates.stale:
            return
        reads = self._reads.get(module)
        is_training = torch.is_grad_enabled() and self._model is not None and self._model.training
        if reads is None or not is_training:
            # Its reads are not known, or nobody waits for it to be fast.
            self.flush()
        else:
            # Also parameters that it has been given since the first step, as by tying weights.
            own = (p for p in module._parameters.values() if p is not None)
            self._updates.refresh([*reads, *own])

    def _before_read(self, _: nn.Module, parameter: nn.Parameter) -> None:
        """A module may read what it did not read in the first step."""
        self._refresh(parameter)

    def _refresh(self, parameter: nn.Parameter) -> None:
        if self._updates.stale:
            self._updates.refresh([parameter])


def _trained(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]


def _are_same(first: Sequence[nn.Parameter], second: Sequence[nn.Parameter]) -> bool:
    return len(first) == len(second) and all(map(operator.is_, first, second))
