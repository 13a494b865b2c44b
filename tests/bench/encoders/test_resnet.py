from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vcmm.bench.encoders.resnet import ResNet, resnet18, resnet34, resnet50

from .kit import form, same, trained

NETS: dict[str, tuple[Callable[..., ResNet], tuple[int, ...], int]] = {
    "resnet18": (resnet18, (2, 2, 2, 2), 2),  # blocks of each stage, and convolutions of a block
    "resnet34": (resnet34, (3, 4, 6, 3), 2),
    "resnet50": (resnet50, (3, 4, 6, 3), 3),
}
RGB = form("image", 3, 64, 64)


def official(depths: tuple[int, ...], convolutions: int) -> set[str]:
    """The names in torchvision's files, written from its naming scheme."""

    def norm(name: str) -> set[str]:
        parts = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
        return {f"{name}.{part}" for part in parts}

    names = {"conv1.weight", *norm("bn1"), "fc.weight", "fc.bias"}
    for stage, depth in enumerate(depths, 1):
        for block in range(depth):
            place = f"layer{stage}.{block}"
            for i in range(1, convolutions + 1):
                names |= {f"{place}.conv{i}.weight", *norm(f"{place}.bn{i}")}
            if block == 0 and (stage > 1 or convolutions == 3):
                names |= {f"{place}.downsample.0.weight", *norm(f"{place}.downsample.1")}
    return names


@pytest.mark.parametrize(
    ("name", "entries", "weights"),
    [("resnet18", 122, 11_689_512), ("resnet34", 218, 21_797_672), ("resnet50", 320, 25_557_032)],
)
def test_names_and_sizes_are_torchvisions(name: str, entries: int, weights: int) -> None:
    """The numbers of weights are those that its documentation gives."""
    make, depths, convolutions = NETS[name]
    with torch.device("meta"):
        net = make(RGB, classifier=1000)
    assert set(net.state_dict()) == official(depths, convolutions)
    assert len(net.state_dict()) == entries
    assert sum(p.numel() for p in net.parameters()) == weights


def test_strides_and_channels_are_torchvisions() -> None:
    """A sample of shapes; the stride of a bottleneck is in its 3x3 convolution."""
    with torch.device("meta"):
        small, deep = resnet18(RGB), resnet50(RGB)
    assert small.get_submodule("layer3.0.conv1").stride == (2, 2)
    assert small.get_parameter("layer3.0.downsample.0.weight").shape == (256, 128, 1, 1)
    assert deep.get_submodule("layer2.0.conv1").stride == (1, 1)
    assert deep.get_submodule("layer2.0.conv2").stride == (2, 2)
    assert deep.get_parameter("layer2.0.conv3.weight").shape == (512, 128, 1, 1)
    assert deep.get_parameter("layer1.0.downsample.0.weight").shape == (256, 64, 1, 1)


def to_transformers(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same weights by the names of transformers.ResNetModel."""
    found: dict[str, Tensor] = {}
    for name, value in state.items():
        place, _, kind = name.rpartition(".")
        if place in ("conv1", "bn1"):
            place = f"embedder.embedder.{'convolution' if place == 'conv1' else 'normalization'}"
        else:
            layer, block, part, *rest = place.split(".")
            stage = int(layer.removeprefix("layer")) - 1
            if part == "downsample":
                inner = f"shortcut.{'convolution' if rest == ['0'] else 'normalization'}"
            else:
                kind_of = "convolution" if part.startswith("conv") else "normalization"
                inner = f"layer.{int(part[-1]) - 1}.{kind_of}"
            place = f"encoder.stages.{stage}.layers.{block}.{inner}"
        found[f"{place}.{kind}"] = value
    return found


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_features_and_gradients_equal_those_of_transformers(name: str, training: bool) -> None:
    from transformers import ResNetConfig, ResNetModel

    make, depths, convolutions = NETS[name]
    wide = 4 if convolutions == 3 else 1
    config = ResNetConfig(
        layer_type="bottleneck" if wide == 4 else "basic",
        depths=list(depths),
        hidden_sizes=[wide * width for width in (64, 128, 256, 512)],
    )
    ours, theirs = make(RGB).double(), ResNetModel(config).double()
    state = trained(ours)
    ours.load_state_dict(state)
    theirs.load_state_dict(to_transformers(state))
    ours.train(training)
    theirs.train(training)
    chance = torch.Generator().manual_seed(1)
    images = torch.randn(3, 3, 65, 64, generator=chance, dtype=torch.float64)
    mine, other = ours(images), theirs(images).pooler_output.flatten(1)
    assert mine.shape == (3, ours.outputs)
    assert mine.std() > 0.01
    # The same sums, but for the mean: float64 rounds far less than this in 50 layers.
    torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9)
    direction = torch.randn(mine.shape, generator=chance, dtype=torch.float64)
    (mine * direction).sum().backward()
    (other * direction).sum().backward()
    gradients = to_transformers(
        {k: p.grad for k, p in ours.named_parameters() if p.grad is not None}
    )
    assert gradients.keys() == dict(theirs.named_parameters()).keys()
    for key, parameter in theirs.named_parameters():
        scale = gradients[key].abs().max().item()
        torch.testing.assert_close(gradients[key], parameter.grad, rtol=0, atol=1e-8 * scale)


def test_frames_of_a_video_are_encoded_one_by_one_and_averaged() -> None:
    net = resnet18(form("video", 3, 4, 40, 48), width=8)
    net.load_state_dict(trained(net))
    net.eval()
    clips = torch.randn(2, 3, 4, 40, 48)
    frames = torch.stack([net(clips[:, :, t]) for t in range(4)])
    torch.testing.assert_close(net(clips), frames.mean(dim=0))
    maps = net.maps(clips[1].transpose(0, 1))  # [t, c, h, w]
    torch.testing.assert_close(net(clips)[1], maps.mean(dim=(0, 2, 3)))


@pytest.mark.parametrize("name", sorted(NETS))
def test_any_channels_width_and_size_give_the_features_that_were_promised(name: str) -> None:
    make = NETS[name][0]
    for given in (form("image", 1, 33, 47), form("video", 2, 3, 16, 8), form("image", 4, 1, 1)):
        for options, outputs in (({}, 32), ({"classifier": 5}, 5)):
            net = make(given, width=4, **options)
            assert net.outputs == (outputs if options or name != "resnet50" else 128)
            features = net(torch.randn(2, *given.shape))
            assert features.shape == (2, net.outputs)
            features.square().sum().backward()
            assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


def test_weights_are_drawn_as_torchvision_draws_them() -> None:
    torch.manual_seed(0)
    net = resnet18(RGB)
    for name, layer in net.named_modules():
        if isinstance(layer, nn.Conv2d):
            fan_out = layer.out_channels * layer.kernel_size[0] * layer.kernel_size[1]
            deviation = (2 / fan_out) ** 0.5
            # The error of a sample deviation is 1 / sqrt(2 n) of it; five of them.
            slack = 5 / (2 * layer.weight.numel()) ** 0.5
            assert layer.weight.std().item() == pytest.approx(deviation, rel=slack), name
        if isinstance(layer, nn.BatchNorm2d):
            assert (layer.weight == 1).all()
            assert (layer.bias == 0).all()


def saved(path: Path, net: nn.Module) -> dict[str, Tensor]:
    state = trained(net)
    torch.save(state, path)
    return state


def test_a_file_of_torchvision_loads_with_its_classifier_or_without(tmp_path: Path) -> None:
    path = tmp_path / "resnet18-f37072fd.pth"
    state = saved(path, resnet18(RGB, width=8, classifier=10))
    whole = resnet18(RGB, width=8, classifier=10, weights=str(path))
    assert same(whole, state)
    assert whole.loaded is not None
    assert whole.loaded.fresh == whole.loaded.unused == ()
    body = resnet18(RGB, width=8, weights=str(path))
    assert same(body, {k: v for k, v in state.items() if not k.startswith("fc.")})
    assert body.loaded is not None
    assert body.loaded.unused == ("fc.bias", "fc.weight")


def test_a_classifier_of_another_size_is_refused_unless_it_starts_fresh(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    state = saved(path, resnet18(RGB, width=8, classifier=10))
    with pytest.raises(ValueError, match=r"fc.weight is \[10, 64\] in the file and \[3, 64\] here"):
        resnet18(RGB, width=8, classifier=3, weights=str(path))
    net = resnet18(RGB, width=8, classifier=3, weights=str(path), fresh=("fc",))
    assert torch.equal(net.conv1.weight, state["conv1.weight"])
    assert net.loaded is not None
    assert net.loaded.fresh == ("fc.bias", "fc.weight") == net.loaded.unused


def test_a_stem_of_other_channels_is_never_adapted_silently(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    state = saved(path, resnet18(RGB, width=8))
    gray = form("image", 1, 64, 64)
    with pytest.raises(ValueError, match=r"shapes differ: conv1.weight .*fresh=\('conv1',\)"):
        resnet18(gray, width=8, weights=str(path))
    torch.manual_seed(3)
    net = resnet18(gray, width=8, weights=str(path), fresh=("conv1", "bn1"))
    torch.manual_seed(3)
    start = resnet18(gray, width=8)
    for part in ("conv1", "bn1"):
        kept = start.get_submodule(part).state_dict()
        assert same(net.get_submodule(part), kept)
    assert same(net.layer3, {k[7:]: v for k, v in state.items() if k.startswith("layer3.")})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, "width is 0; it must be at least 1"),
        ({"classifier": -1}, "classifier is -1; it must be at least 0"),
        ({"fresh": ("conv",)}, "fresh names 'conv', .* there are conv1, bn1, layer1"),
        ({"fresh": ("fc",)}, "fresh names 'fc'"),  # there is none without a classifier
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resnet18(RGB, **options)
