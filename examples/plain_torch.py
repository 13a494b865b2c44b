"""Two modalities in a plain training loop, without and with VCMM: python examples/plain_torch.py

The samples are synthetic and follow from the seed. Audio shows the class to any linear map, under
heavy noise. Video shows it more clearly but with a random sign, so its encoder has to learn first.
"""

import torch
from torch import nn

from vcmm import VCMM, modal_groups

CLASSES, WIDTH = 8, 32


class TwoModalities(nn.Module):
    def __init__(self):
        super().__init__()
        self.audio = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU())
        self.video = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.audio_head, self.video_head = nn.Linear(64, CLASSES), nn.Linear(64, CLASSES)

    def forward(self, audio, video):
        h_a, h_v = self.audio(audio), self.video(video)
        z_a, z_v = self.audio_head(h_a), self.video_head(h_v)
        return (z_a + z_v) / 2, {"audio": (h_a, z_a), "video": (h_v, z_v)}


def samples(n, centres):
    target, sign = torch.randint(CLASSES, (n,)), 2 * torch.randint(2, (n, 1)) - 1
    audio, video = centres[:, target]
    return 0.5 * audio + 4 * torch.randn(n, WIDTH), sign * video + 2 * torch.randn(n, WIDTH), target


def train(strength, seed=0, epochs=8, steps=100):
    """Per epoch: the mean loss, the test accuracy, the metrics, and the betas of every step."""
    torch.manual_seed(seed)
    centres = torch.randn(2, CLASSES, WIDTH)
    test_audio, test_video, test_target = samples(4096, centres)
    model = TwoModalities()
    optimizer = torch.optim.Adam(modal_groups(model, audio="audio*", video="video*"), lr=1e-3)
    vcmm = VCMM(optimizer, strength=strength)  # strength 0 measures only: it is Adam, bitwise
    for _ in range(epochs):
        losses, betas = [], []
        for _ in range(steps):
            audio, video, target = samples(64, centres)
            fused, seen = model(audio, video)
            loss = nn.functional.cross_entropy(fused, target)
            optimizer.zero_grad()
            loss.backward()
            vcmm.observe(target, **seen)
            optimizer.step()
            losses.append(loss.item())
            betas.append(vcmm.betas)
        with torch.no_grad():
            hits = model(test_audio, test_video)[0].argmax(dim=1) == test_target
        yield sum(losses) / steps, hits.float().mean().item(), vcmm.metrics(), betas


def show(title, **settings):
    """Train, print a line per epoch, and return the final accuracy."""
    columns = f"| {'beta':>6} {'R':>9} {'Q':>9} {'rho':>7}"
    print(f"\n{title:<24} | {'audio':<34} | video\nepoch     loss  accuracy {columns} {columns}")
    for epoch, (loss, accuracy, metrics, _) in enumerate(train(**settings), start=1):
        line = f"{epoch:5} {loss:8.4f} {accuracy:9.4f}"
        for m in ("audio", "video"):
            beta, noise, drift, rho = (metrics[f"{m}/{q}"] for q in ("beta", "R", "Q", "rho"))
            line += f" | {beta:6.4f} {noise:9.2e} {drift:9.2e} {rho:7.4f}"
        print(line)
    return accuracy


def main(**settings):
    print("beta: momentum   R: noise   Q: drift   rho = Q / R, of each modality's own classifier")
    a = show("Adam alone", strength=0, **settings)
    b = show("Adam with VCMM", strength=1, **settings)
    print(f"\nFinal accuracy {a:.4f} without and {b:.4f} with VCMM; one seed each is no evidence.")


if __name__ == "__main__":
    torch.set_num_threads(1)  # these matrices are too small to be worth sharing out
    main()
