from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from vcmm.bench.encoders import i3d
from vcmm.bench.encoders.i3d import I3D

from .kit import form, same, trained

CLIP = form("video", 3, 8, 32, 32)
UNITS = ["Conv3d_1a_7x7", "Conv3d_2b_1x1", "Conv3d_2c_3x3"]
MIXED = [f"Mixed_{name}" for name in ("3b", "3c", "4b", "4c", "4d", "4e", "4f", "5b", "5c")]


def official() -> set[str]:
    """The names in rgb_imagenet.pt, but for its logits, written from its naming scheme."""
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    places = [*UNITS, *itertools.product(MIXED, ("b0", "b1a", "b1b", "b2a", "b2b", "b3b"))]
    names = {place if isinstance(place, str) else ".".join(place) for place in places}
    return {f"{name}.conv3d.weight" for name in names} | {
        f"{name}.bn.{part}" for name in names for part in norm
    }


def test_names_and_shapes_are_those_of_the_published_files() -> None:
    with torch.device("meta"):
        net = I3D(CLIP)
    assert set(net.state_dict()) == official()
    shapes = {
        "Conv3d_1a_7x7.conv3d.weight": (64, 3, 7, 7, 7),
        "Conv3d_2c_3x3.conv3d.weight": (192, 64, 3, 3, 3),
        "Mixed_3b.b1b.conv3d.weight": (128, 96, 3, 3, 3),
        "Mixed_4f.b0.conv3d.weight": (256, 528, 1, 1, 1),
        "Mixed_5b.b3b.conv3d.weight": (128, 832, 1, 1, 1),
        "Mixed_5c.b2b.bn.running_var": (128,),
    }
    assert {name: tuple(net.state_dict()[name].shape) for name in shapes} == shapes
    assert (net.outputs, net.Mixed_5c.b0.bn.eps) == (1024, 1e-3)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("size", "last"),
    [((64, 224, 224), (8, 7, 7)), ((80, 224, 224), (10, 7, 7)), ((17, 33, 65), (3, 2, 3))],
)
def test_maps_have_the_published_sizes(size: tuple[int, ...], last: tuple[int, ...]) -> None:
    with torch.device("meta"):
        assert I3D(CLIP).maps(torch.empty(2, 3, *size)).shape == (2, 1024, *last)


# The same network, written as the published one is: padding by its formula, one pool over all axes.


def around(clips: Tensor, kernel: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    pads: list[int] = []
    for size, reach, step in zip(clips.shape[2:], kernel, stride, strict=True):
        pad = max(reach - (size % step or step), 0)
        pads = [pad // 2, pad - pad // 2, *pads]
    return F.pad(clips, pads)


def unit(state: dict[str, Tensor], name: str, clips: Tensor, stride: int = 1) -> Tensor:
    kernel = state[f"{name}.conv3d.weight"]
    steps = (stride,) * 3
    clips = F.conv3d(around(clips, kernel.shape[2:], steps), kernel, stride=steps)
    parts = (
        state[f"{name}.bn.{part}"] for part in ("running_mean", "running_var", "weight", "bias")
    )
    return F.batch_norm(clips, *parts, eps=0.001).relu()


def pool(clips: Tensor, kernel: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    return F.max_pool3d(around(clips, kernel, stride), kernel, stride)


def reference(state: dict[str, Tensor], clips: Tensor) -> Tensor:
    x = pool(unit(state, "Conv3d_1a_7x7", clips, 2), (1, 3, 3), (1, 2, 2))
    x = unit(state, "Conv3d_2c_3x3", unit(state, "Conv3d_2b_1x1", x))
    x = pool(x, (1, 3, 3), (1, 2, 2))
    for name in MIXED:
        if name == "Mixed_4b":
            x = pool(x, (3, 3, 3), (2, 2, 2))
        if name == "Mixed_5b":
            x = pool(x, (2, 2, 2), (2, 2, 2))
        x = torch.cat(
            [
                unit(state, f"{name}.b0", x),
                unit(state, f"{name}.b1b", unit(state, f"{name}.b1a", x)),
                unit(state, f"{name}.b2b", unit(state, f"{name}.b2a", x)),
                unit(state, f"{name}.b3b", pool(x, (3, 3, 3), (1, 1, 1))),
            ],
            dim=1,
        )
    return x.mean(dim=(2, 3, 4))


@pytest.mark.parametrize("size", [(8, 32, 32), (9, 33, 47), (5, 17, 40), (1, 1, 1)])
@pytest.mark.parametrize("channels", [1, 2, 3])
def test_features_equal_a_network_written_as_the_published_one(
    channels: int, size: tuple[int, ...]
) -> None:
    net = I3D(form("video", channels, *size), width=0.25).double()
    state = trained(net)
    net.load_state_dict(state)
    net.eval()
    chance = torch.Generator().manual_seed(0)
    clips = torch.randn(2, channels, *size, generator=chance, dtype=torch.float64)
    features = net(clips)
    assert features.shape == (2, 256)
    assert features.std() > 0.01
    # The same sums; float64 rounds far less than this in 57 layers.
    torch.testing.assert_close(features, reference(state, clips), rtol=1e-9, atol=1e-9)


KERNELS = [*itertools.product((1, 2, 3), (1, 3), (2, 3))]


@pytest.mark.parametrize("kernel", KERNELS)
def test_maxima_over_space_and_then_time_are_those_of_one_pool(kernel: i3d.Triple) -> None:
    chance = torch.Generator().manual_seed(sum(kernel))
    for stride in ((1, 1, 1), (1, 2, 2), (2, 2, 2)):
        for size in ((3, 3, 3), (6, 7, 5)):
            clips = torch.randn(2, 3, *size, generator=chance).requires_grad_()
            ours, theirs = i3d.largest(clips, kernel, stride), F.max_pool3d(clips, kernel, stride)
            assert torch.equal(ours, theirs)
            weights = torch.randn(ours.shape, generator=chance)
            (mine,) = torch.autograd.grad((ours * weights).sum(), clips)
            (other,) = torch.autograd.grad((theirs * weights).sum(), clips)
            torch.testing.assert_close(mine, other)


def test_padding_is_that_of_tensorflow() -> None:
    """Of SAME: ceil(size / stride) positions, and the odd one behind."""
    for size, kernel, stride in itertools.product(range(1, 20), range(1, 8), range(1, 4)):
        ((front, behind), *_) = i3d.same((size,) * 3, (kernel,) * 3, (stride,) * 3)
        assert 0 <= behind - front <= 1
        if front + behind:  # then nothing is left over
            positions = (size + front + behind - kernel) / stride + 1
            assert positions == math.ceil(size / stride)


def test_all_weights_are_trained() -> None:
    net = I3D(form("video", 2, 4, 16, 16), width=0.1)
    net(torch.randn(2, 2, 4, 16, 16)).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


def test_published_files_load_into_colour_flow_and_depth(tmp_path: Path) -> None:
    """They come without the counters of batch norm, and with logits."""
    rgb = I3D(CLIP, width=0.1)
    state = trained(rgb)
    logits = {
        "logits.conv3d.weight": torch.ones(4, 3, 1, 1, 1),
        "logits.conv3d.bias": torch.ones(4),
    }
    old = {k: v for k, v in state.items() if not k.endswith("num_batches_tracked")}
    torch.save({**old, **logits}, tmp_path / "rgb.pt")
    path = str(tmp_path / "rgb.pt")
    net = I3D(CLIP, width=0.1, weights=path)
    zero = {k: torch.tensor(0) for k in state if k.endswith("num_batches_tracked")}
    assert same(net, {**state, **zero})
    assert net.loaded is not None
    assert net.loaded.unused == tuple(sorted(logits))
    depth = form("video", 1, 8, 32, 32)
    with pytest.raises(ValueError, match=r"Conv3d_1a_7x7.conv3d.weight is \[6, 3, 7, 7, 7\]"):
        I3D(depth, width=0.1, weights=path)
    net = I3D(depth, width=0.1, weights=path, fresh=("Conv3d_1a_7x7",))
    assert (net.state_dict()["Conv3d_1a_7x7.bn.weight"] == 1).all()
    assert torch.equal(net.state_dict()["Mixed_5c.b0.bn.weight"], state["Mixed_5c.b0.bn.weight"])


def test_bad_widths_and_other_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match=r"width is 0\.0; it must be above 0"):
        I3D(CLIP, width=0.0)
    with pytest.raises(ValueError, match=r"kind video, not image .*; use encoder conv2d, resnet18"):
        I3D(form("image", 3, 8, 8))
