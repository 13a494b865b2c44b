"""Draw docs/images/betas.svg from a real run of the demo: python docs/images/make.py

The figure shows the momentum that VCMM gives each modality in every step of the second training of
`python examples/plain_torch.py`. It needs nothing but what the demo needs.
"""

import runpy
from pathlib import Path

import torch

HERE = Path(__file__).parent
BASE = 0.9  # torch's own default beta1, which the demo uses
COLOURS = {"audio": "#b5651d", "video": "#1f5fa8"}
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 320, 64, 72, 44, 46
LOW, HIGH = 0.80, 1.00


def run():
    """The betas of every step."""
    torch.set_num_threads(1)  # as the demo itself
    train = runpy.run_path(str(HERE.parents[1] / "examples" / "plain_torch.py"))["train"]
    return [betas for *_, epoch in train(strength=1) for betas in epoch]


def draw(steps):
    def x(step):
        return LEFT + (WIDTH - LEFT - RIGHT) * step / len(steps)

    def y(beta):
        return TOP + (HEIGHT - TOP - BOTTOM) * (HIGH - beta) / (HIGH - LOW)

    def attributes(style):
        return " ".join(f'{key.replace("_", "-")}="{value}"' for key, value in style.items())

    def text(left, top, words, **style):
        style = {"fill": "#333", **style}
        return f'<text x="{left:.1f}" y="{top:.1f}" {attributes(style)}>{words}</text>'

    def line(points, **style):
        path = " ".join(f"{left:.1f},{top:.1f}" for left, top in points)
        return f'<polyline points="{path}" fill="none" {attributes(style)}/>'

    shown = [beta for betas in steps for beta in betas.values()]
    if not LOW <= min(shown) <= max(shown) <= HIGH:
        raise ValueError(f"momenta from {min(shown):.3f} to {max(shown):.3f} leave the axis")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="13" role="img" '
        'aria-label="Momentum of audio and video over the training steps of the demo">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        text(LEFT, 24, "Momentum (beta) of each modality over the steps of the demo", font_size=15),
    ]
    for percent in range(80, 101, 5):
        beta = percent / 100
        parts.append(line([(x(0), y(beta)), (x(len(steps)), y(beta))], stroke="#e4e4e4"))
        parts.append(text(LEFT - 8, y(beta) + 4, f"{beta:.2f}", text_anchor="end"))
    ticks = range(0, len(steps) + 1, len(steps) // 8)
    parts += [text(x(step), HEIGHT - BOTTOM + 20, step, text_anchor="middle") for step in ticks]
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "step", text_anchor="middle"))
    ends = [(x(0), y(BASE)), (x(len(steps)), y(BASE))]
    parts.append(line(ends, stroke="#888", stroke_dasharray="5 4"))
    parts.append(text(x(len(steps)) + 8, y(BASE) + 4, "base", fill="#777"))
    for modality, colour in COLOURS.items():
        betas = [step[modality] for step in steps]
        curve = [(x(number), y(beta)) for number, beta in enumerate(betas, start=1)]
        parts.append(line(curve, stroke=colour, stroke_width=1.6, stroke_linejoin="round"))
        parts.append(text(x(len(steps)) + 8, y(betas[-1]) + 4, modality, fill=colour))
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    (HERE / "betas.svg").write_text(draw(run()), "utf-8")
    print("docs/images/betas.svg")
