"""Tests of the suite that are left out on the CPU, each with its reason; and torch's own skips.

A test that the suite skips for a reason that is not in ACCEPTED_SKIPS fails the run.
"""

_MONITORED_BARRIER = (
    "checks the words of gloo's monitored barrier, in which ranks other than 0 learn of a missing "
    "rank by a broken connection; dmlcomm.monitored_barrier tells every rank who is missing "
    "(tests/test_groups.py)"
)

# Test -> why it says nothing about this backend.
EXCLUDED: dict[str, str] = {
    "test_ddp_logging_data_cpu": (
        "expects the backend's own name in DDP's log; torch writes 'custom' for every backend that "
        "is not its own"
    ),
    "test_monitored_barrier_failure_order": _MONITORED_BARRIER,
    "test_monitored_barrier_gloo": _MONITORED_BARRIER,
    "test_monitored_barrier_gloo_rank_0_timeout": _MONITORED_BARRIER,
    "test_monitored_barrier_gloo_subgroup": _MONITORED_BARRIER,
    "test_monitored_barrier_wait_all_ranks": _MONITORED_BARRIER,
}

# A test that is skipped for this reason runs again with more ranks.
SMALL_WORLD = "Skipped due to small world size."

# What the suite says when it skips a test that is not about CPU tensors of this backend.
ACCEPTED_SKIPS = [
    # torch has switched these off on Linux for every backend.
    r"^https://github\.com/pytorch/pytorch/issues/",
    r"^Test is failing, see https://github\.com/pytorch/pytorch/pull/",
    r"CUDA|cuda|GPU|gpu|accelerator",
    r"NCCL|Nccl|nccl",
    r"UCC|ucc",
    r"ROCm|HPU|XPU|xpu",
    r"torchvision",
]
