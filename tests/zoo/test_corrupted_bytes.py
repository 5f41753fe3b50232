"""Whatever bytes a file holds, a reader answers with data or with one clear line; nothing else may come out."""

import gzip
import io
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from file_writers import cifar_binary, cifar_pickle, idx_bytes, random_images
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save as save_safetensors

from spherometer.zoo import DataError, Dataset, WeightsError, build_model, load_data, load_weights


def npz_bytes():
    stream = io.BytesIO()
    np.savez_compressed(stream, inputs=np.ones((4, 3)), targets=np.arange(4))
    return stream.getvalue()


def torch_bytes():
    stream = io.BytesIO()
    torch.save({"state_dict": build_model("digits-linear").state_dict()}, stream)
    return stream.getvalue()


def safetensors_bytes():
    return save_safetensors(dict(build_model("digits-linear").state_dict()))


SOUND_DATA = {
    "train-images-idx3-ubyte": idx_bytes(random_images(3, (28, 28))[0]),
    "train-images-idx3-ubyte.gz": gzip.compress(idx_bytes(random_images(3, (28, 28))[0]), mtime=0),
    "data_batch_1": cifar_pickle(2),
    "train": cifar_pickle(2, num_classes=100, protocol=5),
    "test_batch.bin": cifar_binary(2),
    "own.npz": npz_bytes(),
}
SOUND_WEIGHTS = {"weights.pt": torch_bytes(), "weights.safetensors": safetensors_bytes()}


@st.composite
def damage(draw, content):
    """The content cut, with bytes changed or put in (mostly near the start, where headers are); or mere noise."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=200))
    wounded = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, min(len(wounded), draw(st.sampled_from([16, 300, 10**9])))))
        kind = draw(st.sampled_from(["change", "cut", "insert"]))
        if kind == "change" and place < len(wounded):
            wounded[place] = draw(st.integers(0, 255))
        elif kind == "cut":
            del wounded[place:]
        else:
            wounded[place:place] = draw(st.binary(min_size=1, max_size=8))
    return bytes(wounded)


QUIET = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def assert_sound_or_one_line(action, error_type):
    message = None
    try:
        return action()
    except error_type as error:
        message = str(error)
    assert "\n" not in message
    assert 10 < len(message) < 600
    return None


@pytest.mark.parametrize("name", SOUND_DATA)
@given(data=st.data())
@QUIET
def test_damaged_data_gives_data_or_one_line(name, data):
    content = data.draw(damage(SOUND_DATA[name]))
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        (Path(folder) / "train-labels-idx1-ubyte").write_bytes(idx_bytes(np.arange(3)))
        found = assert_sound_or_one_line(lambda: load_data(path), DataError)
    if found is not None:
        assert isinstance(found, Dataset)
        assert torch.isfinite(found.inputs).all()
        assert 0 <= int(found.targets.min()) <= int(found.targets.max()) < found.num_classes or found.is_regression


@pytest.mark.parametrize("name", SOUND_WEIGHTS)
@given(data=st.data())
@QUIET
def test_damaged_weights_give_finite_weights_or_one_line_and_an_untouched_model(name, data):
    content = data.draw(damage(SOUND_WEIGHTS[name]))
    model = build_model("digits-linear", seed=1)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        loaded = assert_sound_or_one_line(lambda: load_weights(model, path), WeightsError)
    for key, value in model.state_dict().items():
        assert torch.isfinite(value).all()
        assert loaded is not None or torch.equal(value, before[key])


@pytest.mark.parametrize("name", {**SOUND_DATA, **SOUND_WEIGHTS})
def test_the_undamaged_files_are_read(tmp_path, name):
    (tmp_path / name).write_bytes({**SOUND_DATA, **SOUND_WEIGHTS}[name])
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx_bytes(np.arange(3)))
    if name in SOUND_DATA:
        assert len(load_data(tmp_path / name)) > 1
    else:
        model = build_model("digits-linear", seed=1)
        load_weights(model, tmp_path / name)
        assert torch.equal(model[1].weight, build_model("digits-linear")[1].weight)
