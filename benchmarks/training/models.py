"""Models as lists of layers: how many parameters each has, and how much there is to compute.

Shapes are those of the papers that defined the models, for images of 224 x 224 (LeNet-5:
28 x 28). A forward pass takes two FLOPs per multiplication with a weight, a backward pass twice as
many: one product for the gradient of the input, one for that of the weights. Other operations are
not counted.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

BYTES_PER_PARAMETER = 4  # float32
BACKWARD_PER_FORWARD = 2


@dataclass(frozen=True)
class Layer:
    """``forward_flops`` are per sample."""

    name: str
    parameters: int
    forward_flops: float

    @property
    def backward_flops(self) -> float:
        return BACKWARD_PER_FORWARD * self.forward_flops


@dataclass(frozen=True)
class Model:
    """Layers in forward order; ``samples`` of its usual data set, for the length of a job."""

    name: str
    layers: tuple[Layer, ...]
    samples: int

    @property
    def parameters(self) -> int:
        return sum(layer.parameters for layer in self.layers)

    @property
    def gradient_bytes(self) -> int:
        return self.parameters * BYTES_PER_PARAMETER


def _conv(name: str, inputs: int, outputs: int, kernel: int, size: int, extra: int) -> Layer:
    """A convolution to maps of size x size, with ``extra`` parameters per output (bias, norm)."""
    weights = inputs * outputs * kernel * kernel
    return Layer(name, weights + extra * outputs, 2.0 * weights * size * size)


def _linear(name: str, inputs: int, outputs: int) -> Layer:
    return Layer(name, inputs * outputs + outputs, 2.0 * inputs * outputs)


def lenet5() -> Model:
    """The size of the BML paper; the demo trains it."""
    layers = (
        _conv("conv1", 1, 32, kernel=5, size=28, extra=1),
        _conv("conv2", 32, 64, kernel=5, size=14, extra=1),
        _linear("fc1", 64 * 7 * 7, 1024),
        _linear("fc2", 1024, 10),
    )
    return Model("lenet5", layers, samples=60_000)


# Convolutions of each block; the size of the maps halves behind it. Simonyan, Zisserman 2014.
_VGG_WIDTHS = (64, 128, 256, 512, 512)
_VGG_DEPTHS = {"vgg16": (2, 2, 3, 3, 3), "vgg19": (2, 2, 4, 4, 4)}
_IMAGENET_SAMPLES = 1_281_167


def _vgg(name: str) -> Model:
    layers: list[Layer] = []
    inputs, size = 3, 224
    for block, (width, depth) in enumerate(zip(_VGG_WIDTHS, _VGG_DEPTHS[name], strict=True), 1):
        for i in range(1, depth + 1):
            layers.append(_conv(f"conv{block}_{i}", inputs, width, kernel=3, size=size, extra=1))
            inputs = width
        size //= 2
    layers += [_linear("fc6", 512 * 7 * 7, 4096), _linear("fc7", 4096, 4096)]
    layers.append(_linear("fc8", 4096, 1000))
    return Model(name, tuple(layers), samples=_IMAGENET_SAMPLES)


# Width, blocks and size of the maps of each stage. He, Zhang, Ren, Sun 2015; the stride is on the
# 3 x 3 convolution, as everybody trains it. Each convolution has a batch norm (2 per output).
_RESNET_STAGES = ((64, 3, 56), (128, 4, 28), (256, 6, 14), (512, 3, 7))
_EXPANSION = 4


def resnet50() -> Model:
    layers = [_conv("conv1", 3, 64, kernel=7, size=112, extra=2)]
    inputs, before = 64, 56
    for stage, (width, blocks, size) in enumerate(_RESNET_STAGES, 1):
        for block in range(1, blocks + 1):
            layers += _bottleneck(f"layer{stage}.{block}", inputs, width, before, size, block == 1)
            inputs, before = width * _EXPANSION, size
    layers.append(_linear("fc", inputs, 1000))
    return Model("resnet50", tuple(layers), samples=_IMAGENET_SAMPLES)


def _bottleneck(
    name: str, inputs: int, width: int, before: int, size: int, projects: bool
) -> Iterator[Layer]:
    outputs = width * _EXPANSION
    yield _conv(f"{name}.conv1", inputs, width, kernel=1, size=before, extra=2)
    yield _conv(f"{name}.conv2", width, width, kernel=3, size=size, extra=2)
    yield _conv(f"{name}.conv3", width, outputs, kernel=1, size=size, extra=2)
    if projects:
        yield _conv(f"{name}.downsample", inputs, outputs, kernel=1, size=size, extra=2)


MODELS: dict[str, Callable[[], Model]] = {
    "lenet5": lenet5,
    "vgg16": lambda: _vgg("vgg16"),
    "vgg19": lambda: _vgg("vgg19"),
    "resnet50": resnet50,
}
