"""ResNet-18, -34 and -50 for images, spectrograms and frames of video.

He et al., Deep Residual Learning for Image Recognition, CVPR 2016, in the variant that is common
today: the stride of a bottleneck is in its 3x3 convolution. Parameters are named as in torchvision,
so that its files of weights load, and those of others who keep to its names.

Frames of a video are encoded one by one, and their maps are averaged over time and space, as in
OGM-GE and its successors. Averages are means over axes: pooling layers that adapt to any size have
no deterministic backward on CUDA.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from ..signature import require_positive
from ..types import Form
from .encoder import require_kind
from .pretrained import Pretrained


def convolution(before: int, after: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """Without a bias, since a batch norm follows; it keeps the size up to the stride."""
    return nn.Conv2d(before, after, kernel, stride, padding=kernel // 2, bias=False)


def shortcut(before: int, after: int, stride: int) -> nn.Sequential | None:
    """What brings a block's input to the shape of its output, where that is another."""
    if stride == 1 and before == after:
        return None
    return nn.Sequential(convolution(before, after, 1, stride), nn.BatchNorm2d(after))


class Basic(nn.Module):
    """Two convolutions of 3x3 around which the input is led."""

    expansion = 1

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = convolution(before, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = convolution(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = shortcut(before, width, stride)

    def forward(self, inputs: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(inputs)))
        x = self.bn2(self.conv2(x))
        return F.relu(x + (inputs if self.downsample is None else self.downsample(inputs)))


class Bottleneck(nn.Module):
    """A convolution of 3x3 between two of 1x1, the last of which widens four times."""

    expansion = 4

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = self.expansion * width
        self.conv1 = convolution(before, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = convolution(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = convolution(width, after, 1)
        self.bn3 = nn.BatchNorm2d(after)
        self.downsample = shortcut(before, after, stride)

    def forward(self, inputs: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(inputs)))
        x = F.relu(self.bn2(self.conv2(x)))
        x = self.bn3(self.conv3(x))
        return F.relu(x + (inputs if self.downsample is None else self.downsample(inputs)))


class ResNet(Pretrained):
    """A stem, four stages of blocks and the mean of the last map; its fc too, with a classifier."""

    def __init__(
        self,
        form: Form,
        block: type[Basic] | type[Bottleneck],
        depths: tuple[int, int, int, int],
        *,
        width: int,
        classifier: int,
        fresh: tuple[str, ...] | None,
        weights: str | None,
    ) -> None:
        super().__init__(weights, fresh)
        require_kind(form, "image", "video")
        require_positive("resnet", width=width)
        if classifier < 0:
            raise ValueError(f"resnet: classifier is {classifier}; it must be at least 0")
        self.unused = () if classifier else ("fc",)
        self.conv1 = convolution(form.shape[0], width, 7, 2)
        self.bn1 = nn.BatchNorm2d(width)
        before = width
        stages: list[nn.Sequential] = []
        for stage, depth in enumerate(depths):
            blocks: list[nn.Module] = []
            for place in range(depth):
                stride = 2 if stage > 0 and place == 0 else 1
                blocks.append(block(before, width << stage, stride))
                before = block.expansion * (width << stage)
            stages.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.fc = nn.Linear(before, classifier) if classifier else None
        self.outputs = classifier or before
        self.reset_parameters()

    def draw(self) -> None:
        """He's normal distribution, by fan-out, in every convolution; the rest is torch's own."""
        super().draw()
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, inputs: Tensor) -> Tensor:
        images = inputs.transpose(1, 2).flatten(0, 1) if inputs.ndim == 5 else inputs
        features = self.maps(images).mean(dim=(2, 3))
        # Of every sample's frames; an image is one frame.
        features = features.view(len(inputs), -1, features.shape[1]).mean(dim=1)
        return features if self.fc is None else self.fc(features)

    def maps(self, images: Tensor) -> Tensor:
        """What the last stage makes of images [n, c, h, w]: [n, outputs, h / 32, w / 32]."""
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(images))), 3, 2, 1)
        return self.layer4(self.layer3(self.layer2(self.layer1(x))))


def resnet18(
    form: Form,
    *,
    width: int = 64,
    classifier: int = 0,
    fresh: tuple[str, ...] | None = None,
    weights: str | None = None,
) -> ResNet:
    """ResNet-18 for images, spectrograms and frames; 512 features, or those of its classifier.

    Args:
        form: of an image or a video, with any number of channels.
        width: channels of the first stage.
        classifier: so many outputs of a last linear layer `fc` are the features; 0 is none.
        fresh: parts that start from random weights in spite of the file: conv1 and bn1, say.
        weights: the path of a file; random ones if it is left out.
    """
    return ResNet(
        form, Basic, (2, 2, 2, 2), width=width, classifier=classifier, fresh=fresh, weights=weights
    )


def resnet34(
    form: Form,
    *,
    width: int = 64,
    classifier: int = 0,
    fresh: tuple[str, ...] | None = None,
    weights: str | None = None,
) -> ResNet:
    """ResNet-34 for images, spectrograms and frames; options as in resnet18."""
    return ResNet(
        form, Basic, (3, 4, 6, 3), width=width, classifier=classifier, fresh=fresh, weights=weights
    )


def resnet50(
    form: Form,
    *,
    width: int = 64,
    classifier: int = 0,
    fresh: tuple[str, ...] | None = None,
    weights: str | None = None,
) -> ResNet:
    """ResNet-50 for images, spectrograms and frames; 2048 features, options as in resnet18."""
    deep = (3, 4, 6, 3)
    return ResNet(
        form, Bottleneck, deep, width=width, classifier=classifier, fresh=fresh, weights=weights
    )
