"""The knobs of the made-up data do what they say."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from vcmm.bench.data import load, synthetic
from vcmm.bench.data.synthetic import patterns

KINDS = ["vector", "sequence", "image"]


def flat(data, split, modality):
    return data.splits[split].inputs[modality].reshape(len(data.splits[split]), -1)


def accuracy(data, modality, model=None):
    """On test, of a simple model that sees one modality."""
    model = model or LogisticRegression(max_iter=300, C=0.1)
    model.fit(flat(data, "train", modality), data.splits["train"].target)
    return model.score(flat(data, "test", modality), data.splits["test"].target)


@pytest.mark.parametrize("kind", KINDS)
def test_fully_informative_without_noise_is_learned(kind):
    data = load("synthetic", kind=kind, noise=0.0)
    assert [accuracy(data, m) for m in data.modalities] == [1.0, 1.0]


@pytest.mark.parametrize("kind", KINDS)
def test_no_information_is_chance(kind):
    data = load("synthetic", kind=kind, informativeness=(0.0, 1.0), samples=4000, size=8, noise=0.5)
    assert abs(accuracy(data, "m1") - 0.25) < 0.06  # 1000 samples: a deviation of 0.014
    assert accuracy(data, "m2") > 0.95


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_informativeness_bounds_the_accuracy(share):
    data = load("synthetic", informativeness=share, noise=0.0, samples=6000, classes=5)
    for modality in data.modalities:
        assert accuracy(data, modality) == pytest.approx(share + (1 - share) / 5, abs=0.05)


def test_modalities_err_independently():
    """Where one shows another class, the other shows the right one as often as ever."""
    data = load("synthetic", informativeness=0.5, noise=0.0, samples=8000)
    right = []
    for modality in data.modalities:
        model = LogisticRegression(max_iter=300).fit(
            flat(data, "train", modality), data.splits["train"].target
        )
        right.append(model.predict(flat(data, "test", modality)) == data.splits["test"].target)
    assert abs(np.corrcoef(right)[0, 1]) < 0.1  # 2000 samples: a deviation of 0.022


def test_noise_hides_a_pattern():
    found = [
        accuracy(load("synthetic", noise=noise, size=4), "m1") for noise in (0.1, 1.0, 3.0, 10.0)
    ]
    assert found == sorted(found, reverse=True)
    assert found[0] > 0.95
    assert found[-1] < 0.5


def test_difficulty_cannot_be_seen_by_a_line():
    easy, hard = (load("synthetic", difficulty=d, noise=0.1, size=4) for d in (1, 16))
    assert accuracy(easy, "m1") > 0.95
    assert accuracy(hard, "m1") < 0.7
    assert accuracy(hard, "m1", KNeighborsClassifier(5)) > 0.9  # but it is there to be seen


@pytest.mark.parametrize("kind", KINDS)
def test_patterns_have_deviation_one(kind):
    made = patterns(np.random.default_rng(0), 7, kind, 20)
    assert made.dtype == np.float32
    np.testing.assert_allclose(made.reshape(7, -1).std(axis=1), 1, rtol=1e-5)


def test_shapes_and_names():
    data = load("synthetic", modalities=3, kind=("vector", "sequence", "image"), size=10)
    assert {m: (form.kind, form.shape) for m, form in data.forms.items()} == {
        "m1": ("vector", (10,)),
        "m2": ("sequence", (3, 10)),
        "m3": ("image", (1, 10, 10)),
    }
    many = load("synthetic", modalities=11, samples=100)
    assert many.modalities[0] == "m01"
    assert many.modalities[-1] == "m11"
    assert {name: len(split) for name, split in many.splits.items()} == {
        "train": 100,
        "valid": 25,
        "test": 25,
    }
    counts = np.bincount(many.splits["train"].target)
    assert counts.tolist() == [25, 25, 25, 25]


def test_seeds():
    plain = load("synthetic", seed=3)
    assert synthetic.load(seed=3) is not plain
    assert synthetic.load(seed=3).hash == plain.hash
    assert synthetic.load(seed=4).hash != plain.hash


def test_a_knob_of_one_modality_leaves_the_others():
    plain = load("synthetic")
    turned = load("synthetic", informativeness=(1.0, 0.3), noise=(1.0, 2.0), difficulty=(1, 3))
    more = load("synthetic", modalities=3)
    for other in (turned, more):
        for split in ("train", "valid", "test"):
            here, there = plain.splits[split], other.splits[split]
            np.testing.assert_array_equal(here.target, there.target)
            np.testing.assert_array_equal(here.inputs["m1"], there.inputs["m1"])
    changed = turned.splits["train"].inputs["m2"] != plain.splits["train"].inputs["m2"]
    assert changed.mean() > 0.9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"modalities": 0}, "modalities = 0; it must be at least 1"),
        ({"classes": 1}, "classes = 1; it must be at least 2"),
        ({"samples": 15}, "samples = 15; it must be at least 16"),
        ({"size": 1}, "size = 1"),
        ({"seed": -1}, "seed = -1"),
        ({"difficulty": (1, 0)}, "difficulty = 0; it must be at least 1"),
        ({"informativeness": 1.5}, "informativeness = 1.5; it must lie between 0 and 1"),
        ({"noise": (0.0, -1.0)}, "noise = -1.0; it must lie between 0 and inf"),
        ({"noise": (1.0, 1.0, 1.0)}, "noise has 3 values; give 1 or modalities = 2"),
    ],
)
def test_senseless_knobs_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        load("synthetic", **options)


def test_an_unknown_kind_is_refused():
    with pytest.raises(TypeError, match="vector"):
        load("synthetic", kind="video")
