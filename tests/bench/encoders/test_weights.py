from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from vcmm.bench.build import build_model
from vcmm.bench.encoders.encoder import Encoder
from vcmm.bench.encoders.resnet import resnet18
from vcmm.bench.encoders.weights import digest, load_weights
from vcmm.bench.spec import Choice, Spec

from .. import toys
from .kit import form, same, trained


def module() -> nn.Module:
    return nn.Sequential(nn.Conv1d(2, 3, 3), nn.BatchNorm1d(3), nn.Linear(4, 5))


STATE = trained(module())


def old_format(state: Any, path: Path) -> None:
    torch.save(state, path, _use_new_zipfile_serialization=False)


FILES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "bare": ("weights.pt", lambda path: torch.save(STATE, path)),
    "before torch 1.6": ("weights.pth", lambda path: old_format(STATE, path)),
    "safetensors": ("weights.safetensors", lambda path: save_file(STATE, path)),
    "state_dict": ("a.tar", lambda path: torch.save({"epoch": 3, "state_dict": STATE}, path)),
    "model": ("a.bin", lambda path: torch.save({"model": STATE, "lr": 0.1}, path)),
    "parallel": ("a.pt", lambda p: torch.save({f"module.{k}": v for k, v in STATE.items()}, p)),
    "all of it": (
        "größe.pt",
        lambda p: old_format({"model": {f"module.{k}": v for k, v in STATE.items()}}, p),
    ),
    "of parameters": (
        "a.pt",
        lambda p: torch.save(
            {k: nn.Parameter(v, v.is_floating_point()) for k, v in STATE.items()}, p
        ),
    ),
}


@pytest.mark.parametrize("kind", FILES)
def test_every_kind_of_file_gives_the_same_weights(kind: str, tmp_path: Path) -> None:
    name, write = FILES[kind]
    write(tmp_path / name)
    net = module()
    loaded = load_weights(net, tmp_path / name)
    assert same(net, STATE)
    assert loaded.path == str(tmp_path / name)
    assert loaded.fresh == loaded.unused == ()


def test_weights_of_half_precision_become_float32(tmp_path: Path) -> None:
    half = {k: v.half() if v.is_floating_point() else v for k, v in STATE.items()}
    save_file(half, tmp_path / "half.safetensors")
    net = module()
    load_weights(net, tmp_path / "half.safetensors")
    assert all(value.dtype == STATE[name].dtype for name, value in net.state_dict().items())
    assert torch.equal(net.state_dict()["0.weight"], STATE["0.weight"].half().float())


def test_files_older_than_the_counter_of_batch_norm_load(tmp_path: Path) -> None:
    path = tmp_path / "old.pt"
    torch.save({k: v for k, v in STATE.items() if "num_batches" not in k}, path)
    net = module()
    assert load_weights(net, path).fresh == ("1.num_batches_tracked",)
    assert same(net, {**STATE, "1.num_batches_tracked": torch.tensor(0)})


BROKEN = STATE["2.bias"].clone()
BROKEN[1] = float("nan")
MISFITS: dict[str, tuple[dict[str, Tensor | None], str]] = {
    "missing": ({"0.weight": None, "2.bias": None}, r"it lacks: 0.weight, 2.bias; .*\('0', '2'\)"),
    "unexpected": ({"3.weight": torch.ones(1)}, "has what this encoder does not: 3.weight$"),
    "shape": (
        {"2.weight": torch.ones(4, 5)},
        r"2.weight is \[4, 5\] in the file and \[5, 4\] here",
    ),
    "shape that could be broadcast": (
        {"2.bias": torch.ones(1)},
        r"2.bias is \[1\] in the file and \[5\] here",
    ),
    "quantized": (
        {"2.bias": torch.ones(5, dtype=torch.int8)},
        r"2.bias is \[5\] of int8 in the file and \[5\] here",
    ),
    "not finite": ({"2.bias": BROKEN}, "these are not finite: 2.bias"),
    "many": (
        {**{k: None for k in STATE if k[0] == "1"}, **{f"x{i}": torch.ones(1) for i in range(9)}},
        "it lacks: 1.bias, 1.running_mean, .*; it has .*: x0, x1, x2, x3, x4, x5 and 3 more",
    ),
}


@pytest.mark.parametrize("case", MISFITS)
def test_what_does_not_fit_is_listed_and_nothing_is_loaded(case: str, tmp_path: Path) -> None:
    changes, message = MISFITS[case]
    state = {k: v for k, v in {**STATE, **changes}.items() if v is not None}
    torch.save(state, tmp_path / "w.pt")
    net = module()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    with pytest.raises(ValueError, match=message) as caught:
        load_weights(net, tmp_path / "w.pt")
    assert str(tmp_path / "w.pt") in str(caught.value)
    assert same(net, before)


def test_parts_can_stay_fresh_and_parts_of_the_file_can_be_left_out(tmp_path: Path) -> None:
    more = {**STATE, "3.weight": torch.ones(2), "30.weight": torch.ones(2)}
    torch.save({k: v for k, v in more.items() if k != "1.weight"}, tmp_path / "w.pt")
    net = module()
    start = net[2].weight.clone()  # type: ignore[index]
    with pytest.raises(ValueError, match=r"not: 30.weight$"):  # "3" does not name it
        load_weights(net, tmp_path / "w.pt", fresh=("1", "2.weight"), unused=("3",))
    loaded = load_weights(net, tmp_path / "w.pt", fresh=("1", "2.weight"), unused=("3", "30"))
    assert torch.equal(net[2].weight, start)  # type: ignore[index]
    assert torch.equal(net[2].bias, STATE["2.bias"])  # type: ignore[index]
    assert loaded.fresh == (*(k for k in sorted(STATE) if k.startswith("1.")), "2.weight")
    kept = [k for k in loaded.fresh if k != "1.weight"]
    assert loaded.unused == tuple(sorted([*kept, "3.weight", "30.weight"]))


def test_two_names_for_one_weight_are_refused(tmp_path: Path) -> None:
    torch.save({**STATE, "x.2.bias": STATE["2.bias"]}, tmp_path / "w.pt")
    with pytest.raises(ValueError, match=r"has '2\.bias' twice"):
        load_weights(module(), tmp_path / "w.pt", rename=lambda name: name.removeprefix("x."))


class Evil:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


def test_nothing_in_a_file_is_executed(tmp_path: Path) -> None:
    for write in (torch.save, old_format):
        write({**STATE, "evil": Evil(tmp_path / "executed")}, tmp_path / "w.pt")
        with pytest.raises(ValueError, match="cannot be read as a state dict of tensors alone"):
            load_weights(module(), tmp_path / "w.pt")
        assert not (tmp_path / "executed").exists()


UNREADABLE: dict[str, bytes] = {
    "empty": b"",
    "text": b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 46830571\n",
    "a page": b"<!doctype html><html>not found</html>",
    "zeros": bytes(5000),
    "noise": bytes((i * i * 31 + i // 7) % 256 for i in range(5000)),
    "a zip of something else": b"PK\x03\x04" + bytes(300),
}


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize("case", UNREADABLE)
def test_a_file_of_something_else_is_named(case: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"w{suffix}"
    path.write_bytes(UNREADABLE[case])
    with pytest.raises(ValueError, match=re.escape(str(path))):
        load_weights(module(), path)


@pytest.mark.parametrize("kind", ["bare", "before torch 1.6", "safetensors"])
def test_a_file_that_was_cut_off_is_named(kind: str, tmp_path: Path) -> None:
    name, write = FILES[kind]
    path = tmp_path / name
    write(path)
    whole = path.read_bytes()
    for share in (0.1, 0.5, 0.9, 0.999):
        path.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(ValueError, match=re.escape(str(path))):
            load_weights(module(), path)


@pytest.mark.parametrize("content", [[1, 2], {}, {"epoch": 3}, {1: torch.ones(2)}, torch.ones(3)])
def test_a_file_without_a_state_dict_is_told(content: Any, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "w.pt")
    with pytest.raises(ValueError, match="holds no state dict: it must map names to tensors"):
        load_weights(module(), tmp_path / "w.pt")


def test_a_path_without_a_file_is_told(tmp_path: Path) -> None:
    for path in (tmp_path / "none.pt", tmp_path):
        with pytest.raises(FileNotFoundError, match=f"no file of weights '{re.escape(str(path))}'"):
            load_weights(module(), path)


def test_the_digest_is_of_the_contents(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(b"abc")
    assert digest(tmp_path / "a.pt") == hashlib.sha256(b"abc").hexdigest()


# In a run


def images(weights: Path, **options: Any) -> Spec:
    encoder = Choice("resnet18", width=2, weights=str(weights), **options)
    return toys.tiny(2, "image", encoder=encoder)


def encoder_of(spec: Spec, modality: str = "m2") -> Encoder:
    return build_model(spec, toys.data_of(spec)).encoders[modality]  # type: ignore[return-value]


def test_a_spec_names_the_file_and_only_a_training_reads_it(tmp_path: Path) -> None:
    spec = images(tmp_path / "weights.pt")
    assert Spec.from_json(spec.to_json()) == spec
    with pytest.raises(FileNotFoundError, match="no file of weights"):
        encoder_of(spec)
    state = trained(resnet18(form("image", 1, 5, 5), width=2))
    torch.save(state, tmp_path / "weights.pt")
    assert same(encoder_of(spec), state)


def test_a_misfit_says_whose_it_was(tmp_path: Path) -> None:
    torch.save(trained(resnet18(form("image", 3, 5, 5), width=2)), tmp_path / "weights.pt")
    with pytest.raises(
        ValueError, match=r"modality 'm1': weights .* conv1.weight is \[2, 3, 7, 7\]"
    ):
        encoder_of(images(tmp_path / "weights.pt"))


def test_what_stays_fresh_is_drawn_from_the_seed_and_the_name(tmp_path: Path) -> None:
    torch.save(trained(resnet18(form("image", 3, 5, 5), width=2)), tmp_path / "weights.pt")
    spec = images(tmp_path / "weights.pt", fresh=("conv1", "bn1"))
    torch.manual_seed(1)
    one = encoder_of(spec).state_dict()["conv1.weight"]
    torch.manual_seed(2)
    assert torch.equal(encoder_of(spec).state_dict()["conv1.weight"], one)
    assert not torch.equal(encoder_of(spec, "m1").state_dict()["conv1.weight"], one)
    plain = toys.tiny(2, "image", encoder=Choice("resnet18", width=2))
    assert torch.equal(encoder_of(plain).state_dict()["conv1.weight"], one)


def test_a_part_that_is_not_there_fails_when_the_spec_is_made() -> None:
    with pytest.raises(ValueError, match="fresh names 'stem', which is no part"):
        Spec(encoder=Choice("i3d", fresh=("stem",)))


@pytest.mark.parametrize(
    ("content", "reason"), [(b"", "it is empty"), (b"hello, I am text", "it is no file of torch")]
)
def test_what_is_no_state_dict_is_told_in_words(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    path = tmp_path / "weights.pt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=reason):
        load_weights(nn.Linear(2, 2), path)


def test_a_number_that_the_encoder_cannot_hold_is_refused(tmp_path: Path) -> None:
    module = torch.nn.Linear(2, 2)
    state = {name: value.double() for name, value in module.state_dict().items()}
    state["weight"][0, 0] = 1e300
    torch.save(state, tmp_path / "weights.pt")
    with pytest.raises(ValueError, match="not finite"):
        load_weights(module, tmp_path / "weights.pt")
