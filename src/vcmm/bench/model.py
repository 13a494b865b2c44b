"""`Multimodal`: an encoder for each modality and a fusion, and who owns which parameter."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from vcmm import groups

from .by_modality import ByModality
from .fusions.fusion import Fusion
from .types import Output

# What no modality can be called, and why.
RESERVED = {
    **groups.RESERVED,
    "decay_filter": "modal_groups has an argument of this name",
    "fused": "so the term of the loss is called that all modalities make together",
    "loss": "so the first half of every name of a term of the loss is called",
    "self": "no Python call can name an argument so",
    "training": "every torch module has an attribute of this name",
}


class Multimodal(nn.Module):
    """Encoders and a fusion, around modules of one's own or of the benchmark.

    Args:
        encoders: a module per modality, which gives features [n, D].
        fusion: over the features of the same modalities.

    Example:
        fusion = Mean({"audio": 512, "video": 512}, classes=6)
        model = Multimodal({"audio": audio_net, "video": video_net}, fusion)
    """

    def __init__(self, encoders: Mapping[str, nn.Module], fusion: Fusion) -> None:
        super().__init__()
        for name in encoders.keys() & RESERVED.keys():
            raise ValueError(f"modality {name!r}: {RESERVED[name]}; choose another name")
        self.encoders = ByModality({m: encoders[m] for m in sorted(encoders)})
        self.fusion = fusion

    @property
    def modalities(self) -> tuple[str, ...]:
        return tuple(self.encoders)

    def forward(self, inputs: Mapping[str, Tensor]) -> Output:
        features = {m: encoder(inputs[m]) for m, encoder in self.encoders.items()}
        logits, fused = self.fusion(features)
        return Output(features, logits, fused)

    def claims(self) -> dict[str, list[nn.Parameter]]:
        """Every modality's parameters; whatever is in none of the lists is shared."""
        return {
            modality: [*encoder.parameters(), *self.fusion.owned(modality)]
            for modality, encoder in self.encoders.items()
        }
