"""Folders of runs as the benchmark leaves them, with numbers that a test chooses."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MODALITIES = ("accelerometer", "gyroscope")
EPOCHS = 6
STEPS = 10  # per epoch

# Test accuracy by seed. Joint training is below the best single modality, and vcmm helps.
STUDY: dict[tuple[str, str], tuple[float, ...]] = {
    ("unimodal:accelerometer", "none"): (0.76, 0.775, 0.755, 0.765),
    ("unimodal:gyroscope", "none"): (0.66, 0.65, 0.67, 0.655),
    ("joint", "none"): (0.70, 0.71, 0.69, 0.72),
    ("joint", "vcmm"): (0.742, 0.748, 0.731, 0.757),
    ("multi_loss", "none"): (0.71, 0.70, 0.70, 0.715),
    ("ensemble", "none"): (0.65, 0.66, 0.645, 0.66),
}


def study(
    root: Path,
    arms: Mapping[tuple[str, str], Sequence[float]] = STUDY,
    *,
    seeds: int = 3,
    **spec: Any,
) -> Path:
    """A folder with a run for every arm and seed."""
    for (method, controller), accuracies in arms.items():
        for seed in range(seeds):
            write(root, method, controller, seed=seed, test=accuracies[seed], **spec)
    return root


def write(
    root: Path,
    method: str = "joint",
    controller: str = "none",
    *,
    seed: int = 0,
    test: float | Sequence[float] = 0.7,
    valid: Sequence[float] | None = None,
    modalities: Sequence[str] = MODALITIES,
    chosen: Sequence[str] | None = None,
    options: Mapping[str, Any] | None = None,
    control: Mapping[str, Any] | None = None,
    metric: str = "accuracy",
    seconds: float = 2.0,
    peak: int | None = 100 * 2**20,
    threads: int = 1,
    device: str = "cpu",
    data_hash: str = "d" * 64,
    **spec: Any,
) -> Path:
    """One finished run. `method` may be "unimodal:audio"; `test` is by epoch, or the last one's."""
    name, _, alone = method.partition(":")
    whole = {
        "data": {"name": "watch"},
        "modalities": chosen and list(chosen),
        "encoder": {"name": "auto", "width": 32},
        "encoders": {},
        "fusion": {"name": "mean"},
        "method": {"name": name, **({"modality": alone} if alone else {}), **(options or {})},
        "controller": {"name": controller, **(control or {})},
        "optimizer": {"name": "adam", "lr": 0.001},
        "schedule": {"name": "cosine"},
        "epochs": EPOCHS,
        "batch_size": 64,
        "seed": seed,
    } | spec
    outer = {
        "result_version": 1,
        "data_hash": data_hash,
        "threads": threads,
        "device": device,
        "spec": whole,
        **({} if metric == "accuracy" else {"metric": metric}),
    }
    curve = list(test) if isinstance(test, Sequence) else grown(test, whole["epochs"])
    trained = [alone] if alone else list(modalities)
    files = {
        "spec.json": json.dumps(outer, sort_keys=True),
        "steps.jsonl": lines(
            steps(trained, controller, seed, len(curve), (control or {}).get("encoder_every", 0))
        ),
        "evals.jsonl": lines(
            evals(curve, list(valid) if valid else curve, trained, metric, name == "joint")
        ),
    }
    cost = [
        {"attempt": 1, "epoch": epoch, "steps": STEPS, "seconds": seconds, "samples": 600}
        | {"forwards": STEPS, "backwards": STEPS, "updates": STEPS}
        for epoch in range(len(curve))
    ]
    env = {"python": "3.11.2", "torch": "2.13", "commit": "abc1234", "cpu": "c", "device": "cpu"}
    folder = root / hashlib.sha256(files["spec.json"].encode()).hexdigest()[:16]
    folder.mkdir(parents=True)
    extra = {"cost.jsonl": lines([*cost, {"attempt": 1, "peak_bytes": peak}]), "env.json": "{}"}
    extra["env.json"] = json.dumps({**env, "host": "h", "threads": threads, "attempts": 1})
    for file, text in {**files, **extra, "done": json.dumps(sums(files))}.items():
        (folder / file).write_text(text, encoding="utf-8")
    return folder


def sums(files: Mapping[str, str]) -> dict[str, str]:
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items()}


def reseal(folder: Path) -> None:
    """Sums for what is there now."""
    names = ("spec.json", "steps.jsonl", "evals.jsonl")
    texts = {name: (folder / name).read_text(encoding="utf-8") for name in names}
    (folder / "done").write_text(json.dumps(sums(texts)), encoding="utf-8")


def grown(last: float, epochs: int) -> list[float]:
    """Rises to its last value."""
    return [last * (1 - math.exp(-(epoch + 1))) for epoch in range(epochs - 1)] + [last]


def steps(
    modalities: Sequence[str], controller: str, seed: int, epochs: int, encoder_every: int = 0
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for step in range(1, epochs * STEPS + 1):
        values = {"lr": 0.001, "loss": 2 / step + 0.01 * seed}
        for rank, modality in enumerate(sorted(modalities) if controller != "none" else ()):
            values[f"{modality}/beta"] = 0.9 + 0.02 * rank - 0.001 * seed
            if controller == "vcmm":
                noise, drift = 1e-3 * (1 + rank), 1e-4 / step
                values |= {f"{modality}/R": noise, f"{modality}/Q": drift}
                values |= {f"{modality}/rho": drift / noise, f"{modality}/gain": 0.1}
                if encoder_every and step % encoder_every == 0:
                    wave = 1 + 0.2 * math.sin(step + rank)
                    values |= {f"{modality}/probe_R": noise * wave, f"{modality}/probe_Q": drift}
                    values |= {f"{modality}/encoder_R": 3e-3 * noise * wave}
                    values |= {f"{modality}/encoder_Q": 2e-3 * drift * wave}
        rows.append({"step": step, "epoch": (step - 1) // STEPS, "values": values})
    return rows


def evals(
    test: Sequence[float],
    valid: Sequence[float],
    modalities: Sequence[str],
    metric: str,
    probed: bool,
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for epoch, curves in enumerate(zip(valid, test, strict=True)):
        for split, accuracy in zip(("valid", "test"), curves, strict=True):
            values = {"accuracy": 0.5, "map": accuracy + 0.05, metric: accuracy}
            values |= {"macro_f1": accuracy - 0.02, "loss": 1 - accuracy, "ece": 0.08}
            for rank, modality in enumerate(sorted(modalities)):
                values[f"{modality}/accuracy"] = accuracy - 0.05 * (rank + 1)
                if probed and epoch == len(test) - 1:
                    values[f"{modality}/probe"] = accuracy - 0.04 * rank
            step = (epoch + 1) * STEPS
            rows.append({"epoch": epoch, "step": step, "split": split, "values": values})
    return rows


def lines(rows: Sequence[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)
