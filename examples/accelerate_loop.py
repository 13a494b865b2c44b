"""A loop of one's own under accelerate: accelerate launch examples/accelerate_loop.py

What VCMM adds is the groups, the controller and observe. Four batches make a step. With a folder
after the name, each epoch is saved there, and a run goes on from what it finds. The samples follow
from the seed, as those of lightning_module.py.
"""

import sys
from functools import partial
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn

from vcmm import VCMM, modal_groups
from vcmm.integrations.accelerate import control

CLASSES, WIDTH = 4, 16


class TwoModalities(nn.Module):
    def __init__(self):
        super().__init__()
        self.audio = nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU())
        self.video = nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.audio_head, self.video_head = nn.Linear(32, CLASSES), nn.Linear(32, CLASSES)

    def forward(self, audio, video):
        return (self.audio_head(self.audio(audio)) + self.video_head(self.video(video))) / 2


def samples(n):
    label, sign = torch.randint(CLASSES, (n,)), 2 * torch.randint(2, (n, 1)) - 1
    audio, video = torch.randn(2, CLASSES, WIDTH)[:, label]
    audio, video = 0.5 * audio + 3 * torch.randn(n, WIDTH), sign * video + torch.randn(n, WIDTH)
    return torch.utils.data.TensorDataset(audio, video, label)


def train(folder=None, epochs=4, **settings):
    set_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps=4, **settings)
    model = TwoModalities()
    heads = {"audio": model.audio_head, "video": model.video_head}
    groups = modal_groups(model, audio="audio*", video="video*")
    optimizer = torch.optim.AdamW(groups, lr=3e-3)
    loader = torch.utils.data.DataLoader(samples(2048), batch_size=32, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    vcmm = control(accelerator, optimizer, partial(VCMM, heads=heads))
    if folder and Path(folder).is_dir():
        accelerator.load_state(folder)
    for _ in range(epochs):
        for audio, video, label in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(audio, video), label)
                accelerator.backward(loss)
                vcmm.observe(label)
                optimizer.step()
                optimizer.zero_grad()
        accelerator.print(f"loss {loss.item():.4f}", vcmm.betas)
        if folder:
            accelerator.save_state(folder)
    return accelerator.unwrap_model(model), vcmm


if __name__ == "__main__":
    train(*sys.argv[1:])
