"""Several labels per sample, labels per token, and a fusion that has no logits per modality.

Each function is a whole training on random data. Run: python examples/other_losses.py
"""

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from vcmm import VCMM, ProbeHeads, modal_groups


class Model(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.text, self.image = nn.Linear(16, 24), nn.Linear(12, 24)
        self.text_head, self.image_head = nn.Linear(24, outputs), nn.Linear(24, outputs)
        self.fusion = nn.Sequential(nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, outputs))

    def encode(self, *shape):
        """Features of random inputs, and what both inputs have in common."""
        shared = torch.randn(*shape, 8)
        text = self.text(torch.cat([shared, torch.randn(*shape, 8)], dim=-1))
        image = self.image(torch.cat([shared, torch.randn(*shape, 4)], dim=-1))
        return text.tanh(), image.tanh(), shared


def train(model, batch, steps=50, **settings):
    """`batch(vcmm)` observes one batch and gives its loss."""
    groups = modal_groups(model, text="text*", image="image*")
    optimizer = torch.optim.Adam(groups, lr=1e-2)
    vcmm = VCMM(optimizer, **settings)
    for _ in range(steps):
        optimizer.zero_grad()
        batch(vcmm).backward()
        optimizer.step()
    return vcmm


def several_labels():
    model = Model(outputs=5)
    bce = partial(F.binary_cross_entropy_with_logits, reduction="none")  # no mean: see each sample

    def batch(vcmm):
        h_t, h_i, shared = model.encode(32)
        target = (shared[:, :5] > 0).float()
        loss = bce(model.text_head(h_t) + model.image_head(h_i), target).mean()
        vcmm.observe(target)  # hooks on the heads have seen the rest
        return loss

    return train(model, batch, loss=bce, heads={"text": model.text_head, "image": model.image_head})


def tokens():
    model = Model(outputs=4)

    def batch(vcmm):
        h_t, h_i, shared = model.encode(8, 10)  # 8 sequences of 10 tokens
        target = shared[..., :4].argmax(dim=-1)
        target[torch.arange(10) >= torch.randint(4, 11, (8, 1))] = -100  # padding does not count
        z_t, z_i = model.text_head(h_t), model.image_head(h_i)
        vcmm.observe(target, text=(h_t, z_t), image=(h_i, z_i))
        return F.cross_entropy((z_t + z_i).flatten(0, 1), target.flatten())

    return train(model, batch)


def no_modality_logits():
    model = Model(outputs=4)
    heads = ProbeHeads({"text": 24, "image": 24}, classes=4)  # for the probe alone

    def batch(vcmm):
        h_t, h_i, shared = model.encode(32)
        target = shared[:, :4].argmax(dim=-1)
        vcmm.observe(target, **heads(target, text=h_t, image=h_i))
        return F.cross_entropy(model.fusion(h_t * h_i), target)

    return train(model, batch)


if __name__ == "__main__":
    torch.manual_seed(0)
    for training in (several_labels, tokens, no_modality_logits):
        betas = training().betas
        print(f"{training.__name__:20} text {betas['text']:.4f}  image {betas['image']:.4f}")
