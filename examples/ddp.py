"""Two ranks that train one model. Run: torchrun --nproc-per-node 2 examples/ddp.py

Nothing is added for the ranks: their batches count as one, so R, Q and beta are the same on all of
them, and the replicas stay bitwise equal.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from vcmm import VCMM, modal_groups


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.audio = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.video = nn.Sequential(nn.Linear(12, 16), nn.ReLU())
        self.audio_head, self.video_head = nn.Linear(16, 3), nn.Linear(16, 3)

    def forward(self, audio, video):
        return self.audio_head(self.audio(audio)) + self.video_head(self.video(video))


def train(steps=30):
    torch.manual_seed(0)
    model = Model()
    groups = modal_groups(model, audio="audio*", video="video*")
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    vcmm = VCMM(optimizer, heads={"audio": model.audio_head, "video": model.video_head})
    ddp = DistributedDataParallel(model)
    centres = torch.randn(3, 20)
    torch.manual_seed(1 + dist.get_rank())  # from here on every rank has its own data
    for _ in range(steps):
        target = torch.randint(3, (16,))
        audio, video = (centres[target] + torch.randn(16, 20)).split([8, 12], dim=1)
        loss = nn.functional.cross_entropy(ddp(audio, video), target)
        optimizer.zero_grad()
        loss.backward()
        vcmm.observe(target)
        optimizer.step()
    return model, vcmm


def main():
    dist.init_process_group("gloo")
    model, vcmm = train()
    checksum = sum(p.double().sum().item() for p in model.parameters())
    line = f"audio {vcmm.betas['audio']!r} video {vcmm.betas['video']!r} weights {checksum!r}"
    lines = [None] * dist.get_world_size()
    dist.all_gather_object(lines, line)
    if dist.get_rank() == 0:
        print(*(f"rank {rank}: {line}" for rank, line in enumerate(lines)), sep="\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
