from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any, get_origin

import pytest

from vcmm.bench.execution import Execution
from vcmm.bench.registry import registry
from vcmm.bench.signature import parameters
from vcmm.bench.spec import AXES, LATER, Choice, Spec, canonical, is_path, run_hash

ENTRIES = [(axis, name) for axis in AXES for name in registry(axis)]
DATA = "d" * 64

# A value for each field that is not its default.
OTHERS: dict[str, Any] = {
    "data": Choice("watch", stride=25),
    "modalities": ("gyroscope",),
    "encoder": Choice("auto", width=8),
    "encoders": {"gyroscope": Choice("conv1d")},
    "method": "multi_loss",
    "fusion": "sum",
    "controller": "vcmm",
    "optimizer": Choice("adam", lr=0.002),
    "schedule": "constant",
    "epochs": 16,
    "batch_size": 32,
    "seed": 1,
}


def required(axis: str, name: str) -> dict[str, Any]:
    """Something for every option without a default."""
    needed = [p for p in parameters(registry(axis)[name]).values() if p.required]
    mappings = [p.name for p in needed if get_origin(p.annotation) is Mapping]
    return {p.name: {"a": 0.9, "b": 0.8} if p.name in mappings else "a" for p in needed}


def hashed(spec: Spec) -> str:
    return run_hash(spec, DATA)


@pytest.mark.parametrize(("axis", "name"), ENTRIES)
def test_every_entry_survives_json_with_all_of_its_options_written_down(
    axis: str, name: str
) -> None:
    spec = Spec(**{axis: Choice(name, **required(axis, name))})
    text = json.dumps(spec.to_json())
    silent = LATER.get((axis, name), {}).keys()
    assert set(json.loads(text)[axis]) == {"name", *parameters(registry(axis)[name])} - silent
    again = Spec.from_json(json.loads(text))
    assert again == spec
    assert hash(again) == hash(spec)
    assert hashed(again) == hashed(spec)
    assert json.dumps(again.to_json()) == text


@pytest.mark.parametrize(("axis", "name"), ENTRIES)
def test_a_misspelled_option_is_told_by_name_for_every_entry(axis: str, name: str) -> None:
    with pytest.raises(ValueError, match=f"{axis} '{name}' has no option 'nonsense'"):
        Spec(**{axis: Choice(name, **required(axis, name), nonsense=1)})
    known = list(parameters(registry(axis)[name]))
    if known:
        with pytest.raises(ValueError, match=f"did you mean '{known[0]}'"):
            Spec(**{axis: Choice(name, **required(axis, name), **{known[0] + "x": 1})})


@pytest.mark.parametrize("axis", AXES)
def test_an_unknown_name_is_told_with_the_ones_that_there_are(axis: str) -> None:
    with pytest.raises(ValueError, match=f"there is no {axis} 'zzz'; there are ") as caught:
        Spec(**{axis: "zzz"})
    assert all(name in str(caught.value) for name in registry(axis))


def test_a_near_miss_gets_the_name_that_was_meant_and_nothing_more() -> None:
    with pytest.raises(ValueError, match="there is no optimizer 'adamm'; did you mean 'adam'") as c:
        Spec(optimizer="adamm")
    assert "sgd" not in str(c.value)
    with pytest.raises(ValueError, match=r"there is no data 'wach'; did you mean 'watch'\?$"):
        Spec(data="wach")
    with pytest.raises(ValueError, match=r"there is no data 'zzz'.*paths of files or folders"):
        Spec(data="zzz")
    with pytest.raises(ValueError, match="encoder of 'm1' 'mpl'; did you mean 'mlp'"):
        Spec(encoders={"m1": "mpl"})
    with pytest.raises(ValueError, match="a spec has no 'epoch'; it has epochs"):
        Spec.from_json({"epoch": 3})


@pytest.mark.parametrize("name", [f.name for f in fields(Spec)])
def test_every_field_changes_the_spec_and_its_hash(name: str) -> None:
    base, other = Spec(), Spec(**{name: OTHERS[name]})
    assert other != base
    assert hashed(other) != hashed(base)
    assert Spec.from_json(other.to_json()) == other


def test_data_threads_and_device_are_part_of_the_hash() -> None:
    spec = Spec()
    executions = (Execution(threads=2), Execution(device="cuda"), Execution(precision="bfloat16"))
    others = {run_hash(spec, "e" * 64), *(run_hash(spec, DATA, one) for one in executions)}
    assert len({hashed(spec), *others}) == 5
    assert len(hashed(spec)) == 16
    assert set(hashed(spec)) <= set("0123456789abcdef")


def test_how_a_value_is_written_does_not_enter_the_hash() -> None:
    one = Spec(
        optimizer=Choice("adam", lr=1, betas=(0.9, 0.99)),
        modalities=("b", "a"),
        encoders={"b": Choice("mlp"), "a": Choice("mlp", width=8)},
        controller=Choice("fixed", betas={"b": 0.8, "a": 0.9}),
    )
    two = Spec.from_json(
        {
            "controller": {"betas": {"a": 0.9, "b": 0.8}, "name": "fixed"},
            "encoders": {"a": {"width": 8, "name": "mlp"}, "b": "mlp"},
            "modalities": ["a", "b"],
            "optimizer": {"betas": [0.9, 0.99], "lr": 1.0, "name": "adam"},
        }
    )
    assert one == two
    assert hash(one) == hash(two)
    assert canonical(one.to_json()) == canonical(two.to_json())
    assert {one: "found"}[two] == "found"


def test_where_data_lies_does_not_enter_the_hash_but_its_contents_do() -> None:
    specs = [Spec(data=f"{place}mine.npz") for place in ("", "./", "/a/b/", "../c/")]
    assert len({hashed(spec) for spec in specs}) == 1
    assert len(set(specs)) == len(specs)
    assert run_hash(specs[0], "e" * 64) != hashed(specs[0])
    assert hashed(Spec(data="other.npz")) != hashed(specs[0])


def test_data_of_ones_own_is_a_path_and_has_the_options_of_its_loader(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_path("mine.npz")
    assert is_path("some/folder")
    assert not is_path("watch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    assert is_path("folder")
    spec = Spec(data=Choice("folder", kinds={"a": "image"}))
    assert spec.data.options["kinds"] == {"a": "image"}
    assert Spec(data="folder").data.options == {"kinds": None}
    with pytest.raises(TypeError, match=r"option 'kinds' is .*; it must be .*image"):
        Spec(data=Choice("folder", kinds={"a": "picture"}))
    with pytest.raises(ValueError, match="data of one's own has no option 'kind'; did you mean"):
        Spec(data=Choice("folder", kind="image"))
    # A name of the list is that data set, whatever lies in the working directory.
    (tmp_path / "watch").mkdir()
    assert "stride" in Spec(data="watch").data.options


def test_what_a_method_cannot_do_without_must_be_said() -> None:
    with pytest.raises(ValueError, match="method 'unimodal' needs option 'modality'"):
        Spec(method="unimodal")
    with pytest.raises(ValueError, match="controller 'fixed' needs option 'betas'"):
        Spec(controller="fixed")


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"optimizer": Choice("adam", lr="fast")}, "option 'lr' is 'fast'; it must be a number"),
        ({"optimizer": Choice("adam", lr=True)}, "option 'lr' is True; it must be a number"),
        ({"optimizer": Choice("adam", lr=float("nan"))}, "option 'lr' is nan; it must be a number"),
        ({"optimizer": Choice("adam", lr=float("inf"))}, "option 'lr' is inf; it must be a number"),
        ({"optimizer": Choice("adam", lr=10**400)}, "option 'lr' is 1000*; it must be a number"),
        ({"optimizer": Choice("adam", lr=None)}, "option 'lr' is None"),
        ({"optimizer": Choice("adam", betas=(0.9,))}, r"option 'betas' is \[0.9\]; it must be a"),
        ({"optimizer": Choice("adam", betas=0.9)}, "option 'betas' is 0.9"),
        ({"optimizer": Choice("adam", amsgrad=1)}, "option 'amsgrad' is 1; it must be true or f"),
        ({"encoder": Choice("mlp", width=8.0)}, "option 'width' is 8.0; it must be a whole number"),
        ({"encoder": Choice("mlp", width=True)}, "option 'width' is True"),
        ({"method": Choice("unimodal", modality=3)}, "option 'modality' is 3; it must be a name"),
        ({"controller": Choice("fixed", betas=[0.9])}, "option 'betas' is .*modality=a number"),
        ({"controller": Choice("fixed", betas={"a": "x"})}, "option 'betas' is 'x'"),
        ({"method": 3}, "method is 3; it must be a name"),
        ({"method": None}, "method is None; it must be a name"),
        ({"method": {"lr": 3}}, "method is {'lr': 3}; it must be a name"),
        ({"method": {"name": 3}}, "method is {'name': 3}; it must be a name"),
        ({"method": ["joint"]}, "method is .*; it must be a name"),
        ({"encoders": None}, "encoders is None; it must map modalities to encoders"),
        ({"encoders": {"a": 3}}, "encoder of 'a' is 3; it must be a name"),
    ],
)
def test_a_value_of_the_wrong_type_is_told_with_its_name(axes: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Spec(**axes)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("epochs", (0, -1, 1.0, True, "3", None)),
        ("batch_size", (1, 0, 2.0, True)),
        ("seed", (-1, 0.0, False, None)),
        ("modalities", ("audio", (), [], ("a", "a"), (1, 2), ("a", None))),
    ],
)
def test_fields_that_make_no_sense_are_refused(name: str, values: tuple[Any, ...]) -> None:
    for value in values:
        with pytest.raises(ValueError, match=f"{name} is "):
            Spec(**{name: value})


def test_a_spec_is_frozen_and_travels() -> None:
    spec = Spec(method=Choice("unimodal", modality="gyroscope"), encoders={"gyroscope": "mlp"})
    with pytest.raises(FrozenInstanceError):
        spec.seed = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        spec.method.name = "joint"  # type: ignore[misc]
    for other in (pickle.loads(pickle.dumps(spec)), copy.deepcopy(spec), replace(spec)):
        assert other == spec
        assert hash(other) == hash(spec)
    assert replace(spec, seed=3).method == spec.method


def test_what_was_given_may_change_afterwards() -> None:
    betas = {"a": 0.9}
    encoders: dict[str, Any] = {"a": "mlp"}
    spec = Spec(controller=Choice("fixed", betas=betas), encoders=encoders)
    before = canonical(spec.to_json())
    betas["a"] = 0.5
    encoders["b"] = "mlp"
    spec.to_json()["controller"]["betas"]["a"] = 0.1
    assert canonical(spec.to_json()) == before


def test_an_axis_may_be_a_name_a_choice_or_json() -> None:
    choice = Choice("multi_loss")
    assert Spec(method="multi_loss") == Spec(method=choice) == Spec(method={"name": "multi_loss"})
    assert choice == Choice("multi_loss")
    assert choice != Choice("joint")
    assert choice != "multi_loss"
    assert Choice("adam", lr=1.0) != Choice("adam", lr=2.0)


def test_a_fusion_that_is_left_open_is_the_one_of_the_method() -> None:
    for name, method in registry("method").items():
        spec = Spec(method=Choice(name, **required("method", name)))
        assert spec.fusion.name == method.fusion  # type: ignore[attr-defined]
    assert Spec(fusion="concat").fusion.name == "concat"


HASH = "0bd5302b4d5cd750"  # of VCMM, from before it had a recorder


def test_an_option_that_came_later_leaves_older_records_their_names() -> None:
    plain = Spec(controller=Choice("vcmm"))
    said = Spec(controller=Choice("vcmm", encoder_every=0))
    assert said == plain
    assert run_hash(said, "d" * 64) == run_hash(plain, "d" * 64) == HASH
    assert Spec.from_json(plain.to_json()) == plain
    other = Spec(controller=Choice("vcmm", encoder_every=5))
    assert other.to_json()["controller"]["encoder_every"] == 5
    assert Spec.from_json(other.to_json()) == other != plain
    assert run_hash(other, "d" * 64) != HASH
    for (axis, name), options in LATER.items():
        known = parameters(registry(axis)[name])
        assert {option: known[option].default for option in options} == options
