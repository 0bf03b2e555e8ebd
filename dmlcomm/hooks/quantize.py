"""A communication hook for DistributedDataParallel: gradients travel as 8-bit codes."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from dmlcomm.hooks.another_group import another_group
from dmlcomm.hooks.blocks import CODES
from dmlcomm.hooks.futures import Tensors, complete_after, fail, future_for
from dmlcomm.hooks.quantized_bucket import QuantizedBucket
from dmlcomm.hooks.staged_bucket import StagedBucket


class QuantizeState:
    """For `quantize_hook`: what rounding has left of this rank's gradients, and memory of buckets.

    All ranks of the model make it at the same point, since it makes process groups of theirs.

    Args:
        model: wrapped by DistributedDataParallel, with float32 parameters on the CPU or a GPU of
            CUDA's.
        codes: "int8", or "fp8" (8-bit floats with 4 bits of exponent), which keeps more of small
            numbers beside large ones, and less of large ones.
        error_feedback: add what rounding took to the gradients of the next step. It takes 4 bytes
            of the host's memory per parameter.

    Attributes:
        process_group: that of the model.
        gathers: the state's own group, in which the averages travel; the process group has the
            gradients. `dmlcomm.counters` counts the bytes of each.

    Raises:
        TypeError: the model is not wrapped by DistributedDataParallel.
        ValueError: there are no such codes.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        codes: Literal["int8", "fp8"] = "int8",
        error_feedback: bool = True,
    ) -> None:
        if not isinstance(model, DistributedDataParallel):
            raise TypeError(f"expected DistributedDataParallel, got {type(model).__name__}")
        if codes not in CODES:
            raise ValueError(f"codes: expected one of {', '.join(sorted(CODES))}, got {codes!r}")
        self.process_group: dist.ProcessGroup = model.process_group
        self._codes = CODES[codes]
        self._has_error = error_feedback
        # Not the model, whose reducer keeps this state alive unseen by the garbage collector.
        self._names = {parameter: name for name, parameter in model.module.named_parameters()}
        self._errors: dict[torch.Tensor, torch.Tensor] = {}
        self._buckets: dict[int, QuantizedBucket] = {}
        # All ranks call the operations of a group in one order. Exchanges follow the buckets, and
        # gathers follow the exchanges, but which of both comes first is not the same on all ranks.
        self.gathers = another_group(self.process_group)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="dmlcomm-quantize")
        # Exchanges of what comes from a GPU start when it has come, in no fixed order with what
        # else the model's group does meanwhile.
        is_staged = any(parameter.is_cuda for parameter in self._names)
        self._exchanges = another_group(self.process_group) if is_staged else self.process_group
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="dmlcomm-staged")

    def average(self, bucket: dist.GradBucket) -> Tensors:
        """See `quantize_hook`.

        Args:
            bucket: of gradients.
        """
        gradients = bucket.buffer()
        if gradients.dtype != torch.float32 or gradients.device.type not in ("cpu", "cuda"):
            raise TypeError(
                "quantize_hook: expected float32 gradients on the CPU or a GPU of CUDA's, got "
                f"{gradients.dtype} on {gradients.device} in bucket {bucket.index()}; use DDP "
                "without this hook"
            )
        quantized = self._bucket(bucket)
        if quantized.pinned is None:
            return self._start(quantized, gradients)
        staged = StagedBucket(gradients, quantized.pinned)
        result = future_for(gradients)
        self._starter.submit(self._start_staged, quantized, staged, result)
        return result

    def state_dict(self) -> dict[str, torch.Tensor]:
        """What rounding has left of the gradients of this rank, by the parameters' names.

        Other ranks have other values: each keeps its own in a checkpoint. Empty without error
        feedback.
        """
        return {self._names[parameter]: error.clone() for parameter, error in self._errors.items()}

    def load_state_dict(self, state_dict: dict[str, torch.Tensor]) -> None:
        """Goes on with it. Between backward passes.

        Args:
            state_dict: that of a rank; a job with other ranks may leave it out, and loses at most
                the rounding of a step.

        Raises:
            ValueError: it is of another model.
        """
        named = {name: parameter for parameter, name in self._names.items()}
        for name, error in state_dict.items():
            if name not in named or named[name].numel() != error.numel():
                own = f"{named[name].numel()} elements" if name in named else "no such parameter"
                raise ValueError(
                    f"QuantizeState: {name} has {error.numel()} elements in the state, and the "
                    f"model has {own}; load the state of the same model"
                )
        self._buckets.clear()
        self._errors = {named[name]: error.clone() for name, error in state_dict.items()}

    def _bucket(self, bucket: dist.GradBucket) -> QuantizedBucket:
        index, parameters = bucket.index(), bucket.parameters()
        found = self._buckets.get(index)
        if found is not None and _are_same(found.parameters, parameters):
            return found
        # DDP has arranged its buckets anew: this one and those behind.
        for other in [other for other in self._buckets if other >= index]:
            del self._buckets[other]
        size, rank = self.process_group.size(), self.process_group.rank()
        made = QuantizedBucket(
            parameters, bucket.buffer(), rank, size, self._codes, self._has_error
        )
        self._buckets[index] = made
        if made.error is not None:
            self._keep_errors(parameters, made.error)
        return made

    def _keep_errors(self, parameters: list[torch.Tensor], errors: torch.Tensor) -> None:
        """Those of the parameters move into those of their bucket."""
        parts = torch.split(errors, [parameter.numel() for parameter in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            if parameter in self._errors:
                part.copy_(self._errors[parameter])
            self._errors[parameter] = part

    def _start(self, quantized: QuantizedBucket, gradients: torch.Tensor) -> Tensors:
        work = quantized.exchange(gradients, self._exchanges)
        result = future_for(gradients)
        self._worker.submit(self._finish, work, quantized, gradients, result)
        return result

    def _start_staged(
        self, quantized: QuantizedBucket, staged: StagedBucket, result: Tensors
    ) -> None:
        """On a thread of the state, which waits for the GPU, bucket after bucket."""
        try:
            averages = self._start(quantized, staged.on_host())
            averages.add_done_callback(lambda averages: staged.copy_back(averages, result))
        except Exception as error:
            fail(result, error)

    def _finish(
        self, work: Any, quantized: QuantizedBucket, gradients: torch.Tensor, result: Tensors
    ) -> None:
        """On the thread of the state, bucket after bucket."""
        try:
            work.wait()
            gather = quantized.gather(gradients, self.gathers)
            complete_after(gather.get_future(), lambda: quantized.finish(gradients), result)
        except Exception as error:
            fail(result, error)


def quantize_hook(state: QuantizeState, bucket: dist.GradBucket) -> Tensors:
    """Averages a bucket in about a quarter of the bytes: as codes of 8 bits with a scale per block.

    All ranks get equal bits. Sums are made in float32.

    Args:
        state: of the model.
        bucket: of gradients, float32 on the CPU or a GPU of CUDA's. From a GPU they pass through
            memory of the host, where codes are made of them; backward goes on meanwhile.

    Returns:
        A future of the average, in the bucket's memory. It fails with the error of the operation.

    Raises:
        TypeError: the gradients are of another type, or elsewhere.

    Example:
        >>> ddp = DistributedDataParallel(net)
        >>> ddp.register_comm_hook(dmlcomm.hooks.QuantizeState(ddp), dmlcomm.hooks.quantize_hook)
    """
    return state.average(bucket)


def _are_same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return len(first) == len(second) and all(a is b for a, b in zip(first, second, strict=True))
