"""Small convolutional networks, for sequences and for images: three blocks and a mean."""

from __future__ import annotations

from torch import Tensor, nn

from ..signature import require_positive
from ..types import Form
from .encoder import Encoder, require_kind


class Conv1d(Encoder):
    """Three blocks of convolution, batch norm, ReLU and pooling, then the mean over time."""

    def __init__(self, form: Form, *, width: int = 32, outputs: int = 64, kernel: int = 5) -> None:
        super().__init__()
        require_kind(form, "sequence")
        require_positive("conv1d", width=width, outputs=outputs, kernel=kernel)
        self.outputs = outputs
        channels, length = form.shape
        layers: list[nn.Module] = []
        for after in (width, 2 * width, outputs):
            layers += [
                nn.Conv1d(channels, after, kernel, padding=kernel // 2, bias=False),
                nn.BatchNorm1d(after),
                nn.ReLU(),
            ]
            if length >= 4:  # a short sequence is not pooled away
                layers.append(nn.MaxPool1d(2))
                length //= 2
            channels = after
        self.layers = nn.Sequential(*layers)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs).mean(dim=2)


class Conv2d(Encoder):
    """Three blocks of convolution, batch norm, ReLU and pooling, then the mean over the image."""

    def __init__(self, form: Form, *, width: int = 32, outputs: int = 64, kernel: int = 3) -> None:
        super().__init__()
        require_kind(form, "image")
        require_positive("conv2d", width=width, outputs=outputs, kernel=kernel)
        self.outputs = outputs
        channels, *size = form.shape
        layers: list[nn.Module] = []
        for after in (width, 2 * width, outputs):
            layers += [
                nn.Conv2d(channels, after, kernel, padding=kernel // 2, bias=False),
                nn.BatchNorm2d(after),
                nn.ReLU(),
            ]
            if min(size) >= 4:  # a small image is not pooled away
                layers.append(nn.MaxPool2d(2))
                size = [side // 2 for side in size]
            channels = after
        self.layers = nn.Sequential(*layers)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs).mean(dim=(2, 3))
