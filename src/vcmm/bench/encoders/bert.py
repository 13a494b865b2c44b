"""BERT, for words.

Devlin et al., BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding,
NAACL 2019. The layers are those of `transformers.BertModel`, made from a configuration, so nothing
is downloaded; files of weights with its names load, with or without "bert." before them, and with
the names that layer norms had in the first conversions.

Ids of 0 are padding, which nobody attends to. A sample's first word is attended to in any case, so
that an empty text has features too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..signature import require_positive
from ..types import Form
from .encoder import require_kind
from .pretrained import Pretrained

if TYPE_CHECKING:
    from transformers import BertModel

POSITIONS = 512
OLD = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


def draw_normal(model: nn.Module, deviation: float = 0.02) -> None:
    """BERT's initialization: normal weights, no biases, and nothing at padding."""
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Embedding | nn.Conv2d):
            nn.init.normal_(layer.weight, std=deviation)
        if isinstance(layer, nn.Linear | nn.Conv2d) and layer.bias is not None:
            nn.init.zeros_(layer.bias)
        if isinstance(layer, nn.LayerNorm):
            layer.reset_parameters()
        if isinstance(layer, nn.Embedding) and layer.padding_idx is not None:
            with torch.no_grad():
                layer.weight[layer.padding_idx].zero_()


def require_heads(what: str, width: int, heads: int) -> None:
    """An error unless the heads of attention share the width evenly."""
    if width % heads:
        raise ValueError(f"{what}: width is {width}; it must be a multiple of heads, {heads}")


class BERT(Pretrained):
    """BERT for ids of words; the features are the last layer's at the first word.

    Args:
        form: of tokens.
        layers: how many.
        width: of a layer, and how many features there are.
        heads: of attention.
        words: of the vocabulary.
        dropout: in training, as published.
        pooled: whether the features go through one more layer and tanh, BERT's pooler.
        fresh: parts that start from random weights in spite of the file.
        weights: the path of a file; random ones if it is left out.
    """

    unused = ("cls", "embeddings.position_ids")

    def __init__(
        self,
        form: Form,
        *,
        layers: int = 12,
        width: int = 768,
        heads: int = 12,
        words: int = 30522,
        dropout: float = 0.1,
        pooled: bool = False,
        fresh: tuple[str, ...] | None = None,
        weights: str | None = None,
    ) -> None:
        from transformers import BertConfig, BertModel

        super().__init__(weights, fresh)
        require_kind(form, "tokens")
        require_positive("bert", layers=layers, width=width, heads=heads, words=words)
        require_heads("bert", width, heads)
        if not 0 <= dropout < 1:
            raise ValueError(f"bert: dropout is {dropout}; it must lie in 0 <= dropout < 1")
        if form.words is not None and form.words > words:
            raise ValueError(
                f"bert: words is {words}, and the texts have ids up to {form.words - 1}; take the "
                f"size of their vocabulary, {form.words} at least: words={form.words}, or "
                f"--encoders.text.words {form.words} where the modality is text"
            )
        if form.shape[0] > POSITIONS:
            raise ValueError(
                f"bert: texts have {form.shape[0]} words; it takes {POSITIONS} at most"
            )
        config = BertConfig(
            vocab_size=words,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * width,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
            max_position_embeddings=POSITIONS,
        )
        self.bert: BertModel = BertModel(config, add_pooling_layer=pooled)
        self.bert.set_attn_implementation("eager")  # the others are not deterministic everywhere
        self.pooled = pooled
        self.outputs = width
        if not pooled:
            self.unused = (*self.unused, "pooler")
        self.reset_parameters()

    def named(self) -> nn.Module:
        return self.bert

    def rename(self, name: str) -> str:
        name = name.removeprefix("bert.")
        for old, new in OLD.items():
            if name.endswith(old):
                return name.removesuffix(old) + new
        return name

    def draw(self) -> None:
        draw_normal(self.bert)

    def forward(self, inputs: Tensor) -> Tensor:
        seen = inputs != 0
        seen = torch.cat([torch.ones_like(seen[:, :1]), seen[:, 1:]], dim=1)
        # Given its parts, the model does not look at the mask, which would wait for the device.
        x = self.bert.embeddings(input_ids=inputs)
        hidden = torch.zeros(seen.shape, dtype=x.dtype, device=x.device)
        hidden = hidden.masked_fill(~seen, torch.finfo(x.dtype).min)[:, None, None, :]
        states = self.bert.encoder(x, attention_mask=hidden).last_hidden_state
        return self.bert.pooler(states) if self.bert.pooler is not None else states[:, 0]
