"""An optimizer whose updates are made by the servers."""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from dmlcomm.ps.worker.client import Client
from dmlcomm.ps.worker.operations import rate

# torch.optim class -> the servers' rule.
RULES = {"SGD": "sgd", "Adam": "adam", "AdamW": "adamw", "Adagrad": "adagrad"}

# Options of torch's optimizers that the rules have, by the same names.
OPTIONS = {
    "sgd": ("momentum", "dampening", "weight_decay", "nesterov"),
    "adam": ("eps", "weight_decay"),
    "adamw": ("eps", "weight_decay"),
    "adagrad": ("lr_decay", "weight_decay", "initial_accumulator_value", "eps"),
}

# Options that the rules do not have: they must be off. Others change how torch computes, not what.
MUST_BE_OFF = ("amsgrad", "maximize", "differentiable")


class DistributedOptimizer(torch.optim.Optimizer):
    """Pushes gradients and pulls weights; the servers hold the optimizer's state.

    Use it as any optimizer of torch. Learning-rate schedulers work: the rate of a parameter group
    is sent with its gradients. A parameter without a gradient counts with zeros.

    Args:
        params: parameters, or groups of them. They get the servers' weights at once.
        client: of this worker.
        rule: "sgd", "adam", "adamw", "adagrad" or "python".
        staleness: how many clocks other workers may be behind; None: any number.
        model: name of the model; of several groups, each is a model "name.0", "name.1", ...
        lr: learning rate of groups that have none.
        options: of the rule, for groups that have none, as momentum=0.9.

    Raises:
        ValueError: the rule does not have an option. Others: see `Client.init`.

    Example:
        >>> optimizer = dmlcomm.ps.DistributedOptimizer(net.parameters(), client, lr=0.1)
        >>> loss_of(net).backward()
        >>> optimizer.step()
    """

    def __init__(
        self,
        params: Iterable[Any],
        client: Client,
        rule: str = "sgd",
        staleness: int | None = 0,
        model: str = "model",
        *,
        lr: float = 1e-3,
        **options: float,
    ) -> None:
        super().__init__(params, {"lr": lr, **options})
        self._client = client
        self._staleness = staleness
        groups = len(self.param_groups)
        self._models = [model if groups == 1 else f"{model}.{i}" for i in range(groups)]
        for name, group in zip(self._models, self.param_groups, strict=True):
            own: dict[str, Any] = {key: float(group[key]) for key in ("lr", *options)}
            client.init(name, group["params"], rule=rule, **own)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of all workers: returns when this worker has the new weights.

        Args:
            closure: computes the loss again, and its gradients.

        Returns:
            What `closure` returns, or None.

        Raises:
            ValueError: a learning rate is not a finite number from 0. Others: see `Client`.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if len(self._models) == 1:
            group = self.param_groups[0]
            self._client.push_pull(
                self._models[0],
                _gradients(group),
                self._staleness,
                lr=float(group["lr"]),
                out=group["params"],
            )
        else:
            self._step_groups()
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Only while it is made: afterwards `param_group` is a ValueError, as the servers know the
        models.
        """
        if hasattr(self, "_models"):
            raise ValueError(
                "a DistributedOptimizer takes no more parameter groups; make it with all of them"
            )
        super().add_param_group(param_group)

    def _step_groups(self) -> None:
        """All groups are one clock, so one update."""
        work = list(zip(self._models, self.param_groups, strict=True))
        # One that is wrong is an error before any group has been pushed.
        rates = [rate(group["lr"]) for group in self.param_groups]
        pushes = [
            self._client.push_async(name, _gradients(group), lr=lr)
            for (name, group), lr in zip(work, rates, strict=True)
        ]
        self._client.clock()
        pulls = [
            self._client.pull_async(name, self._staleness, out=group["params"])
            for name, group in work
        ]
        for future in (*pushes, *pulls):
            future.result()


def from_torch(
    optimizer: torch.optim.Optimizer,
    client: Client,
    staleness: int | None = 0,
    model: str = "model",
) -> DistributedOptimizer:
    """The same optimizer, on the servers.

    Args:
        optimizer: torch's SGD, Adam, AdamW or Adagrad, before its first step.
        client: of this worker.
        staleness: as for `DistributedOptimizer`.
        model: as for `DistributedOptimizer`.

    Raises:
        ValueError: the servers do not have the optimizer or an option, or it has made a step.

    Example:
        >>> optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        >>> optimizer = dmlcomm.ps.from_torch(optimizer, client)
    """
    kind = type(optimizer).__name__
    if type(optimizer).__module__.partition(".")[0] != "torch" or kind not in RULES:
        raise ValueError(f"{kind}: expected one of torch.optim's {', '.join(RULES)}")
    if optimizer.state and kind != "Adagrad":  # which makes its state at once
        raise ValueError(f"{kind} has made steps already: its state is not on the servers")
    rule = RULES[kind]
    groups = [
        {"params": group["params"], **_options(rule, group)} for group in optimizer.param_groups
    ]
    defaults = {key: value for key, value in groups[0].items() if key != "params"}
    return DistributedOptimizer(groups, client, rule, staleness, model, **defaults)


def _options(rule: str, group: dict[str, Any]) -> dict[str, float]:
    for name in MUST_BE_OFF:
        if group.get(name):
            raise ValueError(f"{name}={group[name]}: the servers do not have this option")
    options = {name: float(group[name]) for name in OPTIONS[rule]}
    if "betas" in group:
        options["beta1"], options["beta2"] = map(float, group["betas"])
    return {"lr": float(group["lr"]), **options}


def _gradients(group: dict[str, Any]) -> list[torch.Tensor]:
    return [
        torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for parameter in group["params"]
    ]
