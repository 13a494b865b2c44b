"""What is trained while the overhead is measured: two ResNet-18 and the mean of their logits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

MODALITIES = {"audio": 1, "video": 3}  # channels of their images
CHANNELS = (1, 2, 4, 8)  # of the four stages, in units of the width

Seen = dict[str, tuple[Tensor, Tensor]]  # (features, logits) of each modality


class Block(nn.Module):
    """Two 3 x 3 convolutions and the way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.around = nn.Sequential()
        if stride != 1 or inputs != outputs:
            convolution = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.around = nn.Sequential(convolution, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.around(x))


class ResNet18(nn.Module):
    """He et al. 2016, without the classifier; 11.2 M parameters in 60 tensors at width 64."""

    def __init__(self, channels: int, width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        blocks: list[nn.Module] = []
        inputs = width
        for stage, factor in enumerate(CHANNELS):
            outputs = width * factor
            blocks += [Block(inputs, outputs, 2 if stage else 1), Block(outputs, outputs, 1)]
            inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.outputs = inputs

    def forward(self, images: Tensor) -> Tensor:
        return self.blocks(self.stem(images)).mean(dim=(2, 3))


class TwoEncoders(nn.Module):
    """An encoder and a linear head for each modality; the fused logits are the heads' mean."""

    def __init__(self, width: int = 64, classes: int = 6) -> None:
        super().__init__()
        encoders = {name: ResNet18(channels, width) for name, channels in MODALITIES.items()}
        heads = {name: nn.Linear(e.outputs, classes) for name, e in encoders.items()}
        self.encoders = nn.ModuleDict(encoders)
        self.heads = nn.ModuleDict(heads)

    def forward(self, images: dict[str, Tensor]) -> tuple[Tensor, Seen]:
        features = {name: encoder(images[name]) for name, encoder in self.encoders.items()}
        seen = {name: (h, self.heads[name](h)) for name, h in features.items()}
        return torch.stack([z for _, z in seen.values()]).mean(dim=0), seen

    def claims(self) -> dict[str, list[nn.Module]]:
        """Who owns what, for `modal_groups`."""
        return {name: [self.encoders[name], self.heads[name]] for name in MODALITIES}
