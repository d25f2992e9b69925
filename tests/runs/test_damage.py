"""Damaged and hostile stores: an error that names the store, and nothing is executed."""

import hashlib
import json
import os
import pickle
import shutil
import threading
import time

import numpy as np
import pymc as pm
import pytest

import pymc_apm as apm
from pymc_apm.errors import StoreError
from pymc_apm.runs import packing
from pymc_apm.runs.files import locked
from pymc_apm.runs.packing import MAGIC, Packed, pack
from pymc_apm.runs.store import Store
from tests.runs.conftest import Case
from tests.runs.models import differences


def flip(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 0x10
    path.write_bytes(bytes(data))


def refused(case, path, match, draws=20):
    """Both ways to read a store say that it cannot be used, and which one it is."""
    for function in (lambda: apm.open_run(path), lambda: case.sample(draws, store=path)):
        with pytest.raises(StoreError, match=match) as raised:
            function()
        assert path.name in str(raised.value)


FILES = {
    "a chunk": "posterior/mu/c/0/0",
    "its checksum": "sample_stats/n_evals/c/1/0",
    "a checkpoint": ".run/1/checkpoint",
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("place", [0, 3, 40, -1])
def test_a_flipped_bit_is_found(case, copied, name, place):
    flip(copied / FILES[name], place)
    refused(case, copied, "damaged")


def test_every_byte_of_a_description_counts(case, copied):
    path = copied / ".run" / "run.json"
    content = path.read_bytes()
    for place in range(0, len(content), 97):
        path.write_bytes(content)
        flip(path, place)
        with pytest.raises(StoreError, match=copied.name):
            apm.open_run(copied)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("n_bytes", [0, 10, 50])
def test_a_file_that_was_cut_is_found(case, copied, name, n_bytes):
    path = copied / FILES[name]
    path.write_bytes(path.read_bytes()[:n_bytes])
    refused(case, copied, "damaged")


def test_a_missing_chunk_is_found(case, copied):
    (copied / "posterior/mu/c/0/0").unlink()
    refused(case, copied, "is not there")


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    """The store of a run with data and labels, and how to go on with it."""
    with pm.Model(coords={"place": ["a", "b"]}) as model:
        theta = pm.Normal("theta", dims="place")
        x = pm.Data("x", [1.0, 2.0], dims="place")
        apm.Potential("log_lik", (theta * x * apm.StandardNormal("u", dims="place")).sum())
        pm.Normal("y", theta, observed=[0.1, 0.2], dims="place")
    labelled = Case("slice")
    labelled.model, labelled.step = model, None
    path = tmp_path_factory.mktemp("labelled") / "run.zarr"
    labelled.sample(store=path)
    return labelled, path


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize(
    "name", ["posterior/draw", "sample_stats/chain", "posterior/place", "observed_data/y"]
)
def test_damaged_data_and_labels_are_found(labelled, store, copy, name, is_there):
    case, path = labelled
    copy(path, store)
    file = store / name / "c" / "0"
    if is_there:
        flip(file, 5)
    else:
        file.unlink()
    refused(case, store, "damaged", draws=30)


def test_a_file_of_another_run_is_found(case, copied, tmp_path):
    other = tmp_path / "other.zarr"
    case.sample(store=other, random_seed=77)
    shutil.copy(other / "posterior/mu/c/0/0", copied / "posterior/mu/c/0/0")
    refused(case, copied, "of another run")


def test_a_checkpoint_of_another_run_or_chain_is_found(case, copied, tmp_path):
    other = tmp_path / "other.zarr"
    case.sample(store=other)
    shutil.copy(other / ".run/0/checkpoint", copied / ".run/0/checkpoint")
    refused(case, copied, "that of another run")
    shutil.copy(copied / ".run/1/checkpoint", copied / ".run/0/checkpoint")
    refused(case, copied, "that of another run")


def test_an_older_chunk_under_a_newer_checkpoint_is_found(case, store):
    case.cut(40, store, chains=1)
    older = (store / "posterior/mu/c/0/0").read_bytes()
    case.sample(store=store, chains=1)
    (store / "posterior/mu/c/0/0").write_bytes(older)
    with pytest.raises(StoreError, match="not what was committed"):
        apm.open_run(store)


@pytest.mark.parametrize(
    "name", ["posterior/mu/c/0", "sample_stats", ".run/0", ".run/1/checkpoint"]
)
def test_links_out_of_the_folder_are_not_followed(case, copied, tmp_path, name):
    outside = tmp_path / "outside"
    shutil.move(copied / name, outside)
    os.symlink(outside, copied / name)
    before = content_of(outside)
    refused(case, copied, "link in it|cannot be read", draws=30)
    assert content_of(outside) == before


def content_of(path):
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return {file: file.read_bytes() for file in files}


def edit_array(store, name, change):
    """Change what Zarr is told of an array, wherever that is."""
    content = json.loads((store / "zarr.json").read_text())
    change(content["consolidated_metadata"]["metadata"][name])
    (store / "zarr.json").write_text(json.dumps(content))
    content = json.loads((store / name / "zarr.json").read_text())
    change(content)
    (store / name / "zarr.json").write_text(json.dumps(content))


def edit_run(path, **changes):
    """Change a description as somebody would who knows of its checksum."""
    content = json.loads(path.read_text())
    text = json.dumps(json.loads(content["run"]) | changes)
    content |= {"run": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    "change",
    [
        {"chains": 10**9},
        {"chains": -1},
        {"draws": 10**15},
        {"draws": "many"},
        {"rows": 0},
        {"tune": -1},
        {"columns": [["posterior", "../../../etc", "<f8", []]]},
        {"columns": [["posterior", "mu", "|O", []]]},
        {"columns": [["posterior", "mu", "<f8", [-1]]]},
        {"columns": [["posterior", "mu"]]},
        {"columns": 5},
        {"files": {"../../../etc/passwd": 0}},
        {"files": {"/etc/passwd": 0}},
        {"files": 5},
        {"nonsense": 1},
    ],
    ids=str,
)
def test_a_description_that_makes_no_sense_is_refused(case, copied, change):
    edit_run(copied / ".run" / "run.json", **change)
    refused(case, copied, "not valid")


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found.update(shape=[2, 10**15]),
        lambda found: found.update(shape=[10**12, 20]),
        lambda found: found.update(data_type="object"),
        lambda found: found.update(data_type="float32"),
        lambda found: found.update(codecs=[{"name": "numcodecs.pickle"}]),
        lambda found: found.update(codecs="all"),
        lambda found: found.pop("shape"),
    ],
)
def test_metadata_that_make_no_sense_are_refused(case, copied, change):
    edit_array(copied, "posterior/mu", change)
    refused(case, copied, "not valid")


def test_a_coordinate_of_a_huge_shape_is_refused(case, copied):
    edit_array(copied, "posterior/draw", lambda found: found.update(shape=[10**15]))
    refused(case, copied, "not valid")


# Checkpoints


class Bomb:
    def __reduce__(self):
        return (os.mkdir, ("exploded",))


def test_nothing_in_a_checkpoint_is_unpickled(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    array = np.array([Bomb()], dtype=object)
    with pytest.raises(TypeError, match="cannot be stored"):
        pack({"state": array})
    with pytest.raises(StoreError, match="damaged"):
        Packed(pickle.dumps(array), "here")
    assert not (tmp_path / "exploded").exists()


def forged(tree, arrays, data=b""):
    """Return a file with a checksum that is right, of what nobody would write."""
    text = json.dumps({"tree": {"dict": [["state", tree]]}, "arrays": arrays}).encode()
    body = len(text).to_bytes(8, "little") + text + data
    return MAGIC + hashlib.sha256(body).digest() + body


@pytest.mark.parametrize(
    "arrays",
    [
        [["|O", [1]]],
        [["<f8", [10**15]]],
        [["<f8", [-1]]],
        [["<f8", [1 << 62, 1 << 62]]],
        [["nonsense", [1]]],
        [["<f8", ["a"]]],
        [[]],
        5,
    ],
    ids=str,
)
def test_arrays_that_are_not_there_are_refused(arrays):
    with pytest.raises(StoreError, match="here"):
        Packed(forged(None, arrays, b"\0" * 8), "here")


@pytest.mark.parametrize(
    "tree",
    [
        {"array": 0},
        {"record": "Popen", "fields": {"args": "ls"}},
        {"record": "Scale", "fields": {"nonsense": 1}},
        {"nonsense": 1},
        {"list": 5},
        {},
    ],
    ids=str,
)
def test_values_of_other_kinds_are_refused(tree):
    with pytest.raises(StoreError, match="here"):
        Packed(forged(tree, []), "here").get("state", 1.0)


def test_a_generator_of_another_name_is_refused():
    state = np.random.default_rng(1).bit_generator.state
    from pymc.util import get_state_from_generator

    live = get_state_from_generator(np.random.default_rng(1))
    packed = Packed(pack({"rng": live}), "here")
    assert packed.get("rng", live) == live
    hostile = live._replace(bit_generator_state=state | {"bit_generator": "RandomState"})
    with pytest.raises(StoreError, match="RandomState"):
        Packed(pack({"rng": hostile}), "here").get("rng", live)


def test_values_are_read_as_they_were_packed():
    values = {
        "numbers": [1, 2.5, float("inf"), 2**200, True, None, "text"],
        "arrays": (np.arange(6.0).reshape(2, 3), np.float64(0.1), np.zeros((0, 2), np.int32)),
        "dict": {"a": {"b": (1, [2])}, 3: np.array(True)},
        "scale": packing.Scale(1.0),
    }
    packed = Packed(pack(values), "here")
    assert packed.get("numbers") == values["numbers"]
    for one, other in zip(packed.get("arrays"), values["arrays"], strict=True):
        assert type(one) is type(other)
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)
    assert packed.get("dict") == values["dict"]
    assert packed.get("scale") == values["scale"]


# Two writers


def test_a_store_in_use_is_refused(case, copied, monkeypatch):
    monkeypatch.setattr("pymc_apm.runs.sampling.PATIENCE", 0.1)
    with locked(copied / ".run" / "lock", seconds=1, otherwise=""):
        with pytest.raises(StoreError, match=f"{copied.name}.*in use"):
            case.sample(30, store=copied)
    assert case.sample(30, store=copied).posterior.sizes["draw"] == 30


def test_whoever_is_replaced_as_the_writer_commits_nothing_more(case, store):
    def replace(trace, draw):
        if draw.draw_idx == 35:
            Store(store).claim(0, "another")

    with pytest.raises(apm.errors.RunStopped, match="another process"):
        case.sample(store=store, chains=1, callback=replace, every=0.0)
    run = Store(store).read_run()
    assert Store(store).n_done(run, 0) == 36
    assert not differences(case.sample(chains=1), case.sample(store=store, chains=1))


def test_the_lock_of_a_chain_is_waited_for(case, store, monkeypatch):
    case.cut(35, store, chains=1)
    lock = store / ".run" / "0" / "lock"
    held = threading.Event()

    def hold():
        with locked(lock, seconds=1, otherwise=""):
            held.set()
            time.sleep(1.0)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    began = time.monotonic()
    result = case.sample(store=store, chains=1)
    assert time.monotonic() - began > 0.5
    thread.join()
    assert not differences(case.sample(chains=1), result)
    monkeypatch.setattr("pymc_apm.runs.chain.PATIENCE", 0.1)
    with locked(lock, seconds=1, otherwise=""):
        with pytest.raises(StoreError, match="another process writes chain 0"):
            case.sample(30, store=store, chains=1)
