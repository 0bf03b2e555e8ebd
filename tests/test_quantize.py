"""Quantization beside what torch computes."""

import pytest
import torch

from dmlcomm.hooks.blocks import BLOCK, Codes, num_bytes

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
SCALE_BYTES = 4

pytestmark = pytest.mark.parametrize("codes", LARGEST, ids=str)


def quantized(values, codes, error=None, factor=1.0, sources=()):
    result = torch.empty(num_bytes(values.numel()), dtype=torch.uint8)
    Codes(codes.is_floating_point).quantize(result, values, factor, error, sources)
    return result


def dequantized(blocks, count, codes):
    result = torch.empty(count)
    Codes(codes.is_floating_point).dequantize(result, blocks)
    return result


def rounded(values, codes):
    """By torch: each block is scaled so that its largest number is the largest code."""
    padded = torch.nn.functional.pad(values, (0, -values.numel() % BLOCK)).view(-1, BLOCK)
    most = padded.abs().amax(1, keepdim=True)
    scaled = padded * torch.where(most > 0, LARGEST[codes] / most, 0)
    whole = scaled.round() if codes == torch.int8 else scaled
    return (whole.to(codes).float() * (most / LARGEST[codes])).flatten()[: values.numel()]


@pytest.mark.parametrize("count", [1, 255, 256, 257, 10_000])
def test_numbers_are_rounded_as_torch_does(codes, count):
    generator = torch.Generator().manual_seed(count)
    values = torch.randn(count, generator=generator) * 10.0 ** torch.randint(
        -6, 6, (count,), generator=generator
    )
    blocks = quantized(values, codes)
    assert torch.equal(dequantized(blocks, count, codes), rounded(values, codes))


def test_memory_is_a_scale_and_a_code_per_number(codes):
    values = torch.linspace(-3, 5, BLOCK + 1)
    first, second = quantized(values, codes).view(2, SCALE_BYTES + BLOCK)
    scale = values[:BLOCK].abs().max() / LARGEST[codes]
    assert first[:SCALE_BYTES].view(torch.float32) == scale
    numbers = first[SCALE_BYTES:].view(codes).float() * scale
    assert torch.equal(numbers, rounded(values, codes)[:BLOCK])
    assert torch.equal(second[SCALE_BYTES + 1 :], torch.zeros(BLOCK - 1, dtype=torch.uint8))


def test_error_and_sources_are_added(codes):
    generator = torch.Generator().manual_seed(1)
    values, error, *more = torch.randn(5, 1000, generator=generator)
    sources = [quantized(tensor, codes) for tensor in more]
    total = values * 0.25 + error
    for source in sources:
        total += dequantized(source, 1000, codes)
    blocks = quantized(values, codes, error, 0.25, sources)
    numbers = dequantized(blocks, 1000, codes)
    assert torch.equal(numbers, rounded(total, codes))
    assert torch.equal(error, total - numbers)
