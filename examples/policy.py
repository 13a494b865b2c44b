"""A policy of one's own: a modality whose gradient is mostly noise gets a long memory.

Here audio's labels are wrong half of the time, and video's never. Run: python examples/policy.py
"""

import torch
from torch import nn

from vcmm import MomentumController, Policy, modal_groups


class NoiseShare(Policy):
    """Momentum between `low` and `high`, by the share of noise in the gradient's energy."""

    def __init__(self, low=0.8, high=0.98):
        self.low, self.high, self.share = low, high, {}

    def update(self, probes, base):
        for modality, probe in probes.items():
            now = min(probe.noise / max(probe.energy, 1e-30), 1.0)
            self.share[modality] = 0.95 * self.share.get(modality, now) + 0.05 * now
        return {m: self.low + (self.high - self.low) * s for m, s in self.share.items()}

    def metrics(self):  # optional: what is logged
        return {f"{m}/noise_share": share for m, share in self.share.items()}

    def state_dict(self):  # all that it remembers, or a resumed run is another run
        return {"share": dict(self.share)}

    def load_state_dict(self, state):
        self.share = dict(state["share"])


def train(steps=200):
    torch.manual_seed(0)
    model = nn.ModuleDict({"audio": nn.Linear(16, 4), "video": nn.Linear(16, 4)})
    optimizer = torch.optim.Adam(modal_groups(model, **model), lr=1e-3)
    controller = MomentumController(optimizer, NoiseShare())
    centres = torch.randn(2, 4, 16)
    for _ in range(steps):
        target = torch.randint(4, (32,))
        heard = torch.where(torch.rand(32) < 0.5, torch.randint(4, (32,)), target)
        seen = {"audio": centres[0, heard], "video": centres[1, target]}
        features = {m: centre + 0.5 * torch.randn(32, 16) for m, centre in seen.items()}
        logits = {m: model[m](h) for m, h in features.items()}
        loss = nn.functional.cross_entropy(sum(logits.values()) / 2, target)
        optimizer.zero_grad()
        loss.backward()
        controller.observe(target, **{m: (features[m], logits[m]) for m in model})
        optimizer.step()
    return controller


if __name__ == "__main__":
    for name, value in train().metrics().items():
        print(f"{name:18} {value:.4f}")
