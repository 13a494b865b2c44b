"""AST, the audio spectrogram transformer, for spectrograms [time, frequency].

Gong et al., AST: Audio Spectrogram Transformer, Interspeech 2021. The layers are those of
`transformers.ASTModel`, made from a configuration, so nothing is downloaded. Published files have
the names of older releases, which are translated.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from torch import Tensor, nn

from ..signature import require_positive
from ..types import Form
from .bert import draw_normal, require_heads
from .encoder import require_kind
from .pretrained import Pretrained

if TYPE_CHECKING:
    from transformers import ASTModel

PATCH = 16  # cut out every 10 steps
OLD = {
    r"attention\.attention\.query": "attention.q_proj",
    r"attention\.attention\.key": "attention.k_proj",
    r"attention\.attention\.value": "attention.v_proj",
    r"attention\.output\.dense": "attention.o_proj",
    r"intermediate\.dense": "mlp.fc1",
    r"output\.dense": "mlp.fc2",
}


class AST(Pretrained):
    """AST for spectrograms [1, time, frequency]; the mean of its two tokens is the features.

    Args:
        form: of an image with one channel; published weights take 1024 x 128, as `fbank` makes it.
        layers: how many.
        width: of a layer, and how many features there are.
        heads: of attention.
        fresh: parts that start from random weights in spite of the file.
        weights: the path of a file; random ones if it is left out.
    """

    unused = ("classifier",)

    def __init__(
        self,
        form: Form,
        *,
        layers: int = 12,
        width: int = 768,
        heads: int = 12,
        fresh: tuple[str, ...] | None = None,
        weights: str | None = None,
    ) -> None:
        from transformers import ASTConfig, ASTModel

        super().__init__(weights, fresh)
        require_kind(form, "image")
        require_positive("ast", layers=layers, width=width, heads=heads)
        require_heads("ast", width, heads)
        channels, *size = form.shape
        if channels != 1 or min(size) < PATCH:
            raise ValueError(
                f"ast takes spectrograms [1, time, frequency] of at least {PATCH} x {PATCH}, and "
                f"this modality is {form.shape}; use encoder resnet18"
            )
        config = ASTConfig(
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * width,
            patch_size=PATCH,
            max_length=size[0],
            num_mel_bins=size[1],
        )
        self.ast: ASTModel = ASTModel(config)
        self.ast.set_attn_implementation("eager")  # the others are not deterministic everywhere
        self.outputs = width
        self.reset_parameters()

    def named(self) -> nn.Module:
        return self.ast

    def rename(self, name: str) -> str:
        name = name.removeprefix("audio_spectrogram_transformer.")
        if name.startswith("encoder.layer."):
            name = name.replace("encoder.layer.", "layers.", 1)
            for old, new in OLD.items():
                name = re.sub(rf"(?<=\d\.){old}(?=\.)", new, name)
        return name

    def draw(self) -> None:
        draw_normal(self.ast)
        tokens = self.ast.embeddings
        for weight in (tokens.cls_token, tokens.distillation_token, tokens.position_embeddings):
            nn.init.trunc_normal_(weight, std=0.02)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.ast(inputs[:, 0]).pooler_output
