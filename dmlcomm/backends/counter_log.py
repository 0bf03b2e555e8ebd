"""Counters of NICs for programs that draw curves, and for the loops of frameworks.

No framework is imported before its callback is asked for.
"""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from dmlcomm.backends.groups import counters


def log_counters(to: Any, step: int | None = None, group: dist.ProcessGroup | None = None) -> None:
    """Hands what `counters` says to a logger, in one call. Other ranks need not call it.

    Nothing is logged where there is no process group, as in a training of a single process.

    Args:
        to: a ``SummaryWriter`` of TensorBoard, or whatever has its ``add_scalar(name, value,
            step)``; or a function that takes a dictionary, as ``wandb.log`` or the ``log_metrics``
            of a logger of Lightning.
        step: of the training. A function gets it as its argument ``step``; without one it is called
            with the dictionary alone.
        group: the process group; the default one if None.

    Raises:
        TypeError: ``to`` is neither, or the group is not one of backend dmlcomm.

    Example:
        >>> dmlcomm.log_counters(writer, step)  # SummaryWriter()
        >>> dmlcomm.log_counters(wandb.log)
    """
    if group is None and not dist.is_initialized():
        return
    if hasattr(to, "add_scalar"):
        for name, value in counters(group).items():
            to.add_scalar(name, value, step)
    elif not callable(to):
        raise TypeError(
            f"log_counters: {type(to).__name__} has no add_scalar and cannot be called; expected a "
            "SummaryWriter, or a function such as wandb.log"
        )
    elif step is None:
        to(counters(group))
    else:
        to(counters(group), step=step)


def lightning_callback(group: dist.ProcessGroup | None = None) -> Any:
    """A callback for Lightning, which gives `counters` of rank 0 to the loggers of its trainer.

    As often as the trainer logs: once in ``log_every_n_steps`` steps. Where a module has several
    optimizers, the step of each counts, as in ``trainer.global_step``.

    Args:
        group: the process group; the default one if None.

    Raises:
        ImportError: neither lightning nor pytorch_lightning is installed.

    Example:
        >>> lightning.Trainer(callbacks=[dmlcomm.lightning_callback()], ...)
    """
    try:
        from lightning.pytorch.callbacks import Callback
    except ImportError:
        from pytorch_lightning.callbacks import Callback

    class LightningCounters(Callback):  # type: ignore[misc]
        last_step = 0

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            step, interval = trainer.global_step, trainer.log_every_n_steps
            if step == self.last_step or not interval or step % interval:
                return  # the former while gradients of several batches are added
            self.last_step = step
            if trainer.is_global_zero:
                for logger in trainer.loggers:
                    log_counters(logger.log_metrics, step - 1, group)  # as the trainer counts them

    return LightningCounters()


def transformers_callback(
    log: Callable[[dict[str, float]], Any], group: dist.ProcessGroup | None = None
) -> Any:
    """A callback for the Trainer of Hugging Face, which gives `counters` of rank 0 to a function.

    As often as the trainer logs its losses: once in ``logging_steps`` steps, or once in an epoch.
    With the trainer's own ``log`` they go where its losses go (``report_to``).

    Args:
        log: a function that takes a dictionary: ``trainer.log``, or ``wandb.log``.
        group: the process group; the default one if None.

    Raises:
        ImportError: transformers is not installed.

    Example:
        >>> trainer.add_callback(dmlcomm.transformers_callback(trainer.log))
    """
    from transformers import TrainerCallback

    class TransformersCounters(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, _args: Any, state: Any, control: Any, **_kwargs: Any) -> None:
            # What the trainer's first callback says.
            if control.should_log and state.is_world_process_zero:
                log_counters(log, group=group)
                control.should_log = True  # ``log`` of the trainer says that all is logged

        on_epoch_end = on_step_end

    return TransformersCounters()
