"""The examples of Lightning and transformers on two ranks of gloo: replicas stay bitwise equal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

# Each rank writes what it knows to a file of its own, digit by digit. They leave at once, because
# torch at times aborts a program that has used gloo while the interpreter is taken down.
TRANSFORMERS = """
import os, runpy, sys
trainer_in = runpy.run_path(sys.argv[1])["trainer_in"]
for resume in (None, f"{sys.argv[2]}/checkpoint-3"):
    trainer = trainer_in(
        sys.argv[2], use_cpu=True, ddp_backend="gloo", max_steps=6, save_steps=3, report_to="none",
        per_device_train_batch_size=16, gradient_accumulation_steps=2, disable_tqdm=True,
    )
    trainer.train(resume_from_checkpoint=resume)
    weights = [p.double().sum().item() for p in trainer.model.parameters()]
    with open(f"{sys.argv[2]}-{os.environ['RANK']}", "a") as file:
        print(trainer.vcmm.metrics(), weights, file=file)
os._exit(0)
"""
LIGHTNING = """
import os, runpy, sys
from lightning.pytorch import Callback

class Weights(Callback):
    def on_train_end(self, trainer, module):
        weights = [p.double().sum().item() for p in module.parameters()]
        with open(f"{sys.argv[2]}-{os.environ['RANK']}", "a") as file:
            print(trainer.callbacks[0].controller.metrics(), weights, file=file)
        os._exit(0)

example = runpy.run_path(sys.argv[1])
trainer = example["Trainer"]
example["train"].__globals__["Trainer"] = lambda max_epochs, callbacks, **settings: trainer(
    max_epochs=1, callbacks=[*callbacks, Weights()], **settings
)
example["train"](
    accelerator="cpu", strategy="ddp", devices=2, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, accumulate_grad_batches=3,
)
"""


def what_two_ranks_know(folder: Path, program: str, example: str) -> list[list[str]]:
    (folder / "program.py").write_text(program, "utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(folder / "program.py")]
    command += [str(EXAMPLES / example), str(folder / "run")]
    done = subprocess.run(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [(folder / f"run-{rank}").read_text("utf-8").splitlines() for rank in (0, 1)]


@pytest.mark.slow
@pytest.mark.distributed
def test_two_ranks_of_the_trainer_agree_bitwise_also_when_resumed(tmp_path: Path) -> None:
    zero, one = what_two_ranks_know(tmp_path, TRANSFORMERS, "hf_trainer.py")
    assert zero == one
    whole, resumed = zero
    assert whole == resumed
    assert "'discarded': 0.0" in whole


@pytest.mark.slow
@pytest.mark.distributed
def test_two_ranks_of_lightning_agree_bitwise(tmp_path: Path) -> None:
    zero, one = what_two_ranks_know(tmp_path, LIGHTNING, "lightning_module.py")
    assert zero == one
    assert len(zero) == 1
    assert "'discarded': 0.0" in zero[0]
