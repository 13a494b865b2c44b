"""How far above the truth does a floor before the running mean read the drift? See docs/bias.md.

Half of the modalities have a true gradient that walks at Q / R = 0.1, half one at 0.01; probes of d
entries see them through noise. Both orders of floor and running mean look at the same numbers.
Usage: python examples/bias.py [SEED]
"""

import math
import sys

import torch

from vcmm import Kalman, Probe

RATIOS = {"fast": 0.1, "slow": 0.01}  # R = 1; true betas .827 and .944 around a base of .9


def random_walks(d: int, walks: int, steps: int, seed: int):
    """What each step measures of every modality, from the gradients of two half-batches."""
    generator = torch.Generator().manual_seed(seed)
    names = [f"{kind}{i}" for kind in RATIOS for i in range(walks)]
    stride = torch.tensor([math.sqrt(q) for q in RATIOS.values()]).repeat_interleave(walks)
    truth, previous = torch.zeros(len(names), d), torch.full((len(names), d), math.nan)
    previous_noise = torch.full((len(names),), math.nan)
    for _ in range(steps):
        move, a, b = torch.randn(3, len(names), d, generator=generator)
        truth += stride[:, None] * move
        g_a, g_b = truth + math.sqrt(2) * a, truth + math.sqrt(2) * b
        g = (g_a + g_b) / 2
        noise, change = (g_a - g_b).square().mean(1) / 4, (g - previous).square().mean(1)
        rows = torch.stack([noise, change, previous_noise, g.square().mean(1)], dim=1).tolist()
        yield {name: Probe(*row) for name, row in zip(names, rows, strict=True)}
        previous, previous_noise = g, noise


def measure(d: int, steps: int = 1000, seed: int = 0, settle: int = 100) -> dict[str, float]:
    """Means over time: Q / R of the slow modalities, as each order reads it, and the betas."""
    walks = min(64, max(1, 40_000 // d))
    orders = {"published": Kalman(), "floor after": Kalman(floor_after_smoothing=True)}
    sums = {f"{order} {what}": 0.0 for order in orders for what in ("rho", *RATIOS)}
    sums["unclipped"] = 0.0
    for t, probes in enumerate(random_walks(d, walks, steps, seed)):
        slow = [name for name in probes if name.startswith("slow")]
        for order, kalman in orders.items():
            betas = kalman.update(probes, dict.fromkeys(probes, 0.9))
            if t >= settle:
                numbers = kalman.metrics()
                sums[f"{order} rho"] += sum(numbers[f"{name}/rho"] for name in slow)
                for name, beta in betas.items():
                    sums[f"{order} {name[:4]}"] += beta
        if t >= settle:
            sums["unclipped"] += sum(probes[name].drift for name in slow)
    return {name: total / (steps - settle) / walks for name, total in sums.items()}


def main(seed: int = 0, steps: int = 1000) -> None:
    print("true: Q/R .0100 of the slow, betas .827 (fast) and .944 (slow)\n")
    print("            Q/R of the slow modalities         betas (fast, slow)")
    print("    d   published  floor after  unclipped    published      floor after")
    for d in (12, 100, 1000, 10_000):
        m = measure(d, steps, seed)
        betas = "   ".join(
            f"{m[f'{order} fast']:.3f}, {m[f'{order} slow']:.3f}"
            for order in ("published", "floor after")
        )
        ratios = f"{m['published rho']:9.4f}  {m['floor after rho']:11.4f}  {m['unclipped']:9.4f}"
        print(f"{d:5d}   {ratios}   {betas}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
