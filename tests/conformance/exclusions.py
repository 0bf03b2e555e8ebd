"""Tests of the suite that are left out on the CPU, each with its reason; and torch's own skips.

A test that is skipped for a reason that is in neither list fails the run.
"""

# Test -> why it says nothing about this backend.
EXCLUDED: dict[str, str] = {}

# What torch's suite says when it skips a test that is not about CPU tensors of this backend.
ACCEPTED_SKIPS = [
    r"CUDA|cuda|GPU|gpu|accelerator",
    r"NCCL|Nccl|nccl",
    r"MPI|mpi|UCC|ucc",
    r"ROCm|HPU|XPU|xpu|MI300",
    r"torchvision",
    r"sandcastle|SANDCASTLE|Sandcastle|FBCODE|internal",
]
