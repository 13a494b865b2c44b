"""Two modalities under Lightning's Trainer: python examples/lightning_module.py

What VCMM adds is the groups in configure_optimizers, and the callback. The samples are synthetic
and follow from the seed: audio shows the class under heavy noise; video more clearly, but with a
random sign, so its encoder has to learn first.
"""

from functools import partial

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn

from vcmm import VCMM, modal_groups
from vcmm.integrations.lightning import VCMMCallback

CLASSES, WIDTH = 4, 16


class TwoModalities(LightningModule):
    def __init__(self):
        super().__init__()
        self.audio = nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU())
        self.video = nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.audio_head, self.video_head = nn.Linear(32, CLASSES), nn.Linear(32, CLASSES)

    def training_step(self, batch):
        audio = self.audio_head(self.audio(batch["audio"]))
        video = self.video_head(self.video(batch["video"]))
        loss = nn.functional.cross_entropy((audio + video) / 2, batch["label"])
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(modal_groups(self, audio="audio*", video="video*"), lr=3e-3)


def samples(n):
    label, sign = torch.randint(CLASSES, (n,)), 2 * torch.randint(2, (n, 1)) - 1
    audio, video = torch.randn(2, CLASSES, WIDTH)[:, label]
    audio, video = 0.5 * audio + 3 * torch.randn(n, WIDTH), sign * video + torch.randn(n, WIDTH)
    return [
        {"audio": a, "video": v, "label": y} for a, v, y in zip(audio, video, label, strict=True)
    ]


def train(**settings):
    seed_everything(0, verbose=False)
    model = TwoModalities()
    heads = {"audio": model.audio_head, "video": model.video_head}
    callback = VCMMCallback(partial(VCMM, heads=heads), target="label")
    loader = torch.utils.data.DataLoader(samples(2048), batch_size=64, shuffle=True)
    trainer = Trainer(max_epochs=4, callbacks=[callback], **settings)
    trainer.fit(model, loader)
    return {"loss": trainer.callback_metrics["loss"].item(), **callback.controller.metrics()}


if __name__ == "__main__":
    for name, value in train(logger=False, enable_checkpointing=False).items():
        print(f"{name:20} {value:.4g}")
