from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from vcmm.bench import seeds
from vcmm.bench.encoders.ast import AST

from .kit import form, same, trained

SMALL: dict[str, Any] = {"layers": 2, "width": 24, "heads": 3}
SOUND = form("image", 1, 48, 32)  # 4 x 2 patches


def small(**options: Any) -> AST:
    torch.manual_seed(0)
    return AST(SOUND, **{**SMALL, **options})


def official(layers: int) -> dict[str, str]:
    """The names in published files, written from their scheme, and what they are called here."""
    names = {
        f"embeddings.{part}": f"embeddings.{part}"
        for part in ("cls_token", "distillation_token", "position_embeddings")
    }
    places = {
        "embeddings.patch_embeddings.projection": "embeddings.patch_embeddings.projection",
        "layernorm": "layernorm",
    }
    for i in range(layers):
        theirs, ours = f"encoder.layer.{i}", f"layers.{i}"
        for part in ("query", "key", "value"):
            places[f"{theirs}.attention.attention.{part}"] = f"{ours}.attention.{part[0]}_proj"
        places[f"{theirs}.attention.output.dense"] = f"{ours}.attention.o_proj"
        places[f"{theirs}.intermediate.dense"] = f"{ours}.mlp.fc1"
        places[f"{theirs}.output.dense"] = f"{ours}.mlp.fc2"
        for side in ("before", "after"):
            places[f"{theirs}.layernorm_{side}"] = f"{ours}.layernorm_{side}"
    for theirs, ours in places.items():
        for kind in ("weight", "bias"):
            names[f"{theirs}.{kind}"] = f"{ours}.{kind}"
    return {f"audio_spectrogram_transformer.{k}": v for k, v in names.items()}


@pytest.mark.parametrize("published", [False, True])
def test_files_load_by_their_published_names_and_by_those_of_today(
    published: bool, tmp_path: Path
) -> None:
    state = trained(small().ast)
    assert set(official(2).values()) == set(state)
    extra = {
        "classifier.dense.weight": torch.ones(5, 24),
        "classifier.layernorm.bias": torch.ones(24),
    }
    found = {k: state[v] for k, v in official(2).items()} if published else state
    torch.save({**found, **extra}, tmp_path / "w.bin")
    net = small(weights=str(tmp_path / "w.bin"))
    assert same(net.ast, state)
    assert net.loaded is not None
    assert net.loaded.unused == tuple(sorted(extra))


def test_the_size_of_the_published_model() -> None:
    with torch.device("meta"):
        net = AST(form("image", 1, 1024, 128))
    assert net.ast.embeddings.position_embeddings.shape == (1, 1214, 768)  # 101 x 12, and 2 tokens
    assert net.outputs == 768


def test_a_file_for_sounds_of_another_length_is_refused(tmp_path: Path) -> None:
    torch.save(trained(small().ast), tmp_path / "w.pt")
    with pytest.raises(ValueError, match=r"position_embeddings is \[1, 10, 24\] in the file"):
        AST(form("image", 1, 68, 32), **SMALL, weights=str(tmp_path / "w.pt"))


def test_features_equal_those_of_transformers() -> None:
    from transformers import ASTModel

    net = small().eval()
    net.ast.load_state_dict(trained(net.ast))
    theirs = ASTModel(net.ast.config).eval()
    theirs.set_attn_implementation("sdpa")
    theirs.load_state_dict(net.ast.state_dict())
    sounds = torch.randn(3, 1, 48, 32)
    features = net(sounds)
    assert features.shape == (3, 24)
    torch.testing.assert_close(features, theirs(sounds[:, 0]).pooler_output)


def test_all_weights_are_drawn_from_the_seed_and_trained() -> None:
    net, again = small(), small()
    seeds.initialize(net, 5)
    torch.manual_seed(9)
    seeds.initialize(again, 5)
    assert same(again, net.state_dict())
    tokens = net.ast.embeddings
    for weight in (tokens.cls_token, tokens.distillation_token, tokens.position_embeddings):
        assert 0.01 < weight.std() < 0.03
    (net(torch.randn(3, 1, 48, 32)) * torch.randn(3, 24)).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize("shape", [(3, 48, 32), (1, 15, 32), (1, 48, 15)])
def test_what_is_no_spectrogram_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"of at least 16 x 16, and this modality is .*resnet18"):
        AST(form("image", *shape), **SMALL)
