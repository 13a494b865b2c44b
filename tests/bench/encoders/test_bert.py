from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vcmm.bench.encoders.bert import BERT
from vcmm.bench.spec import Choice, Spec

from .kit import form, same, trained

SMALL: dict[str, Any] = {"layers": 2, "width": 24, "heads": 3, "words": 50}
TEXTS = torch.tensor([[3, 9, 4, 0, 0], [7, 7, 49, 1, 2], [0, 0, 0, 0, 0]])


def small(**options: Any) -> BERT:
    torch.manual_seed(0)
    return BERT(form("tokens", 5), **{**SMALL, **options})


def test_names_and_sizes_are_those_of_bert_base_uncased() -> None:
    """Written from its naming scheme; the number of weights is that of its documentation, 110M."""
    with torch.device("meta"):
        net = BERT(form("tokens", 30), pooled=True)

    def both(name: str) -> set[str]:
        return {f"{name}.weight", f"{name}.bias"}

    names = {f"embeddings.{kind}_embeddings.weight" for kind in ("word", "position", "token_type")}
    names |= both("embeddings.LayerNorm") | both("pooler.dense")
    for i in range(12):
        layer = f"encoder.layer.{i}"
        for part in ("query", "key", "value"):
            names |= both(f"{layer}.attention.self.{part}")
        for part in ("attention.output", "output"):
            names |= both(f"{layer}.{part}.dense") | both(f"{layer}.{part}.LayerNorm")
        names |= both(f"{layer}.intermediate.dense")
    assert set(net.bert.state_dict()) == names
    assert sum(p.numel() for p in net.parameters()) == 109_482_240
    assert net.outputs == 768


@pytest.mark.parametrize("pooled", [False, True])
def test_features_equal_those_of_transformers(pooled: bool) -> None:
    from transformers import BertModel

    net = small(pooled=pooled).eval()
    net.bert.load_state_dict(trained(net.bert))
    theirs = BertModel(net.bert.config, add_pooling_layer=pooled).eval()  # with fused attention
    theirs.set_attn_implementation("sdpa")
    theirs.load_state_dict(net.bert.state_dict())
    ids = TEXTS[:2]
    found = theirs(input_ids=ids, attention_mask=(ids != 0).long())
    features = net(ids)
    assert features.shape == (2, 24)
    expected = found.pooler_output if pooled else found.last_hidden_state[:, 0]
    torch.testing.assert_close(features, expected)


def test_a_larger_vocabulary_is_refused_when_it_is_built() -> None:
    texts = replace(form("tokens", 5), words=51)
    with pytest.raises(ValueError, match=r"words is 50, .* ids up to 50; .*text\.words 51 where"):
        BERT(texts, **SMALL)
    assert BERT(texts, **{**SMALL, "words": 51}).outputs == 24


def test_padding_changes_nothing() -> None:
    net = small().eval()
    torch.testing.assert_close(net(TEXTS[:1]), net(TEXTS[:1, :3]))
    longer = torch.cat([TEXTS[:2], torch.zeros(2, 4, dtype=torch.int64)], dim=1)
    torch.testing.assert_close(net(TEXTS[:2]), net(longer))


def test_an_empty_text_has_features_of_its_own() -> None:
    net = small().eval()
    empty = net(TEXTS[2:])
    assert empty.isfinite().all()
    torch.testing.assert_close(net(TEXTS)[2:], empty)
    torch.testing.assert_close(net(torch.zeros(1, 1, dtype=torch.int64)), empty)


@pytest.mark.parametrize("pooled", [False, True])
def test_all_weights_are_trained(pooled: bool) -> None:
    net = small(pooled=pooled)
    (net(TEXTS) * torch.randn(3, 24)).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


def test_weights_are_drawn_as_published_whatever_transformers_draws() -> None:
    from vcmm.bench import seeds

    net = small(width=96, words=300)
    seeds.initialize(net, 5)
    for name, layer in net.named_modules():
        if isinstance(layer, nn.Linear | nn.Embedding):
            weight = layer.weight
            if isinstance(layer, nn.Embedding) and layer.padding_idx is not None:
                assert (weight[layer.padding_idx] == 0).all()
                weight = weight[1:]
            slack = 5 / (2 * weight.numel()) ** 0.5  # five deviations of a sample deviation
            assert weight.std().item() == pytest.approx(0.02, rel=slack), name
        if isinstance(layer, nn.Linear):
            assert (layer.bias == 0).all()
    again = small(width=96, words=300)
    seeds.initialize(again, 5)
    assert same(again, net.state_dict())


def renamed(state: dict[str, Tensor], prefix: str, old: bool) -> dict[str, Tensor]:
    found = {f"{prefix}{k}": v for k, v in state.items()}
    if old:
        for new, name in (
            ("LayerNorm.weight", "LayerNorm.gamma"),
            ("LayerNorm.bias", "LayerNorm.beta"),
        ):
            found = {k.replace(new, name): v for k, v in found.items()}
    return found


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("prefix", ["", "bert."])
@pytest.mark.parametrize("pooled", [False, True])
def test_published_files_load(pooled: bool, prefix: str, old: bool, tmp_path: Path) -> None:
    """With the heads of pre-training, and with names of 2018."""
    state = trained(small(pooled=True).bert)
    extra = {
        "cls.predictions.bias": torch.ones(50),
        "cls.predictions.transform.LayerNorm.gamma": torch.ones(24),
        "cls.seq_relationship.weight": torch.ones(2, 24),
        f"{prefix}embeddings.position_ids": torch.arange(512)[None],
    }
    path = tmp_path / "pytorch_model.bin"
    torch.save({**renamed(state, prefix, old), **extra}, path)
    net = small(pooled=pooled, weights=str(path))
    assert same(net.bert, {k: v for k, v in state.items() if pooled or not k.startswith("pooler.")})
    assert net.loaded is not None
    assert net.loaded.fresh == ()
    assert len(net.loaded.unused) == (4 if pooled else 6)


def test_a_file_of_another_size_or_without_what_is_asked_for_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "w.pt")
    torch.save(trained(small().bert), path)
    with pytest.raises(ValueError, match=r"it lacks: pooler.dense.bias, .*fresh=\('pooler',\)"):
        small(weights=path, pooled=True)
    with pytest.raises(ValueError, match=r"word_embeddings.weight is \[50, 24\] in the file"):
        small(weights=path, words=60)
    with pytest.raises(ValueError, match=r"what this encoder does not: encoder\.layer\.1\."):
        small(weights=path, layers=1)
    assert small(weights=path, pooled=True, fresh=("pooler",)).loaded is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 5}, "width is 24; it must be a multiple of heads, 5"),
        ({"layers": 0}, "layers is 0"),
        ({"words": 0}, "words is 0"),
        ({"dropout": 1.0}, "dropout is 1.0; it must lie in 0 <= dropout < 1"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(**options)


def test_texts_that_are_too_long_and_other_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match="texts have 513 words; it takes 512 at most"):
        BERT(form("tokens", 513), **SMALL)
    with pytest.raises(ValueError, match=r"kind tokens, not vector of .*; use encoder mlp"):
        BERT(form("vector", 5), **SMALL)


def test_a_spec_with_it_draws_nothing_and_needs_no_memory() -> None:
    before = torch.get_rng_state()
    Spec(encoder=Choice("bert", layers=4, width=10**5, heads=10))  # 2 TB of weights
    assert torch.equal(torch.get_rng_state(), before)
