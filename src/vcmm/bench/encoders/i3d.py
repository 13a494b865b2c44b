"""I3D, for clips: Inception whose kernels also reach over time.

Carreira and Zisserman, Quo Vadis, Action Recognition?, CVPR 2017. Parameters are named as in the
well-known PyTorch port (`rgb_imagenet.pt`, `flow_imagenet.pt`), whose convolutions and pools pad as
TensorFlow's SAME does: by what the size requires, one more behind than in front if that is odd.

Deviations. The features are the mean over all positions, in time too; the published pool has a
window of fixed size, which is the same for 64 frames, and leaves out the last of 80. Maxima are
taken over space, then over time: the numbers are equal, and, unlike one pool over all three axes,
this has a deterministic backward on CUDA.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..types import Form
from .encoder import require_kind
from .pretrained import Pretrained

Triple = tuple[int, int, int]  # over time, height and width
# Channels of the four branches: 1x1 | 1x1 before 3x3 | 1x1 before 3x3 | a pool before 1x1.
Branches = tuple[int, int, int, int, int, int]
POOLS: dict[str, tuple[Triple, Triple]] = {  # kernel and stride
    "MaxPool3d_2a_3x3": ((1, 3, 3), (1, 2, 2)),
    "MaxPool3d_3a_3x3": ((1, 3, 3), (1, 2, 2)),
    "MaxPool3d_4a_3x3": ((3, 3, 3), (2, 2, 2)),
    "MaxPool3d_5a_2x2": ((2, 2, 2), (2, 2, 2)),
}
UNITS: dict[str, tuple[int, int, int]] = {  # channels, kernel and stride, alike on all axes
    "Conv3d_1a_7x7": (64, 7, 2),
    "Conv3d_2b_1x1": (64, 1, 1),
    "Conv3d_2c_3x3": (192, 3, 1),
}
MIXED: dict[str, Branches] = {
    "Mixed_3b": (64, 96, 128, 16, 32, 32),
    "Mixed_3c": (128, 128, 192, 32, 96, 64),
    "Mixed_4b": (192, 96, 208, 16, 48, 64),
    "Mixed_4c": (160, 112, 224, 24, 64, 64),
    "Mixed_4d": (128, 128, 256, 24, 64, 64),
    "Mixed_4e": (112, 144, 288, 32, 64, 64),
    "Mixed_4f": (256, 160, 320, 32, 128, 128),
    "Mixed_5b": (256, 160, 320, 32, 128, 128),
    "Mixed_5c": (384, 192, 384, 48, 128, 128),
}
# By number and letter, the names sort as the layers follow one another.
ORDER = sorted({**UNITS, **POOLS, **MIXED}, key=lambda name: name.split("_")[1])


def same(sizes: Triple, kernel: Triple, stride: Triple) -> list[tuple[int, int]]:
    """By how much TensorFlow pads each axis, in front and behind."""
    pads: list[tuple[int, int]] = []
    for size, reach, step in zip(sizes, kernel, stride, strict=True):
        total = max((math.ceil(size / step) - 1) * step + reach - size, 0)
        pads.append((total // 2, total - total // 2))
    return pads


def padded(clips: Tensor, pads: list[tuple[int, int]]) -> Tensor:
    """With zeros around [n, c, t, h, w]."""
    if not any(map(any, pads)):
        return clips
    return F.pad(clips, [side for pair in reversed(pads) for side in pair])


def largest(clips: Tensor, kernel: Triple, stride: Triple) -> Tensor:
    """`max_pool3d`, over space and then over time."""
    n, c, t = clips.shape[:3]
    frames = F.max_pool2d(clips.flatten(1, 2), kernel[1:], stride[1:])
    h, w = frames.shape[2:]
    lines = frames.view(n, c, t, h * w)
    if (kernel[0], stride[0]) != (1, 1):
        lines = F.max_pool2d(lines, (kernel[0], 1), (stride[0], 1))
    return lines.view(n, c, -1, h, w)


class Pool(nn.Module):
    """The largest value in each window; zeros around, since what comes here is never negative."""

    def __init__(self, kernel: Triple, stride: Triple) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride

    def forward(self, clips: Tensor) -> Tensor:
        t, h, w = clips.shape[2:]
        around = padded(clips, same((t, h, w), self.kernel, self.stride))
        return largest(around, self.kernel, self.stride)


class Unit(nn.Module):
    """Convolution, batch norm and ReLU."""

    def __init__(self, before: int, after: int, kernel: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.conv3d = nn.Conv3d(before, after, kernel, stride, bias=False)
        self.bn = nn.BatchNorm3d(after, eps=1e-3, momentum=0.01)
        self.kernel: Triple = (kernel, kernel, kernel)
        self.stride: Triple = (stride, stride, stride)

    def forward(self, clips: Tensor) -> Tensor:
        t, h, w = clips.shape[2:]
        around = padded(clips, same((t, h, w), self.kernel, self.stride))
        return F.relu(self.bn(self.conv3d(around)))


class Mixed(nn.Module):
    """Four branches side by side."""

    def __init__(self, before: int, branches: Branches) -> None:
        super().__init__()
        self.b0 = Unit(before, branches[0])
        self.b1a = Unit(before, branches[1])
        self.b1b = Unit(branches[1], branches[2], 3)
        self.b2a = Unit(before, branches[3])
        self.b2b = Unit(branches[3], branches[4], 3)
        self.b3a = Pool((3, 3, 3), (1, 1, 1))
        self.b3b = Unit(before, branches[5])

    def forward(self, clips: Tensor) -> Tensor:
        branches = (
            self.b0(clips),
            self.b1b(self.b1a(clips)),
            self.b2b(self.b2a(clips)),
            self.b3b(self.b3a(clips)),
        )
        return torch.cat(branches, dim=1)


class I3D(Pretrained):
    """I3D for clips of colour, flow or depth; 1024 features, the mean over time and space.

    Args:
        form: of a video, with any number of channels.
        width: multiplies the channels of every layer.
        fresh: parts that start from random weights in spite of the file: Conv3d_1a_7x7, say.
        weights: the path of a file; random ones if it is left out.
    """

    unused = ("logits",)

    def __init__(
        self,
        form: Form,
        *,
        width: float = 1.0,
        fresh: tuple[str, ...] | None = None,
        weights: str | None = None,
    ) -> None:
        super().__init__(weights, fresh)
        require_kind(form, "video")
        if width <= 0:
            raise ValueError(f"i3d: width is {width}; it must be above 0")

        def wide(channels: int) -> int:
            return max(1, round(width * channels))

        before = form.shape[0]
        for name in ORDER:
            if name in POOLS:
                layer = Pool(*POOLS[name])
            elif name in UNITS:
                channels, kernel, stride = UNITS[name]
                layer, before = Unit(before, wide(channels), kernel, stride), wide(channels)
            else:
                a, b, c, d, e, f = map(wide, MIXED[name])
                layer, before = Mixed(before, (a, b, c, d, e, f)), a + c + e + f
            self.add_module(name, layer)
        self.outputs = before
        self.reset_parameters()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.maps(inputs).mean(dim=(2, 3, 4))

    def maps(self, clips: Tensor) -> Tensor:
        """What the last layer makes of clips: [n, outputs, t / 8, h / 32, w / 32], rounded up."""
        for layer in self.children():
            clips = layer(clips)
        return clips
