"""Weights from safetensors and torch files; strangers' pickles are never run."""

import os
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import spherometer as sm
from spherometer.zoo import WeightsError, build_model, load_data, load_weights


def model():
    return build_model("digits-cnn", batchnorm=True, seed=1)


@pytest.fixture
def trained():
    return build_model("digits-cnn", batchnorm=True, seed=2).state_dict()


def assert_loaded(path, expected):
    loaded = load_weights(model(), path)
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, expected[name]), name


def assert_refused(target, path, match):
    before = {name: tensor.clone() for name, tensor in target.state_dict().items()}
    with pytest.raises(WeightsError, match=match) as caught:
        load_weights(target, path)
    assert "\n" not in str(caught.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in target.state_dict().items())


@pytest.mark.parametrize("prefix", ["", "module.", "model.", "_orig_mod.", "module._orig_mod."])
@pytest.mark.parametrize("nesting", [(), ("state_dict",), ("model",), ("state_dict", "model")])
def test_usual_wrappings_of_torch_files(tmp_path, trained, prefix, nesting):
    content = {prefix + name: tensor for name, tensor in trained.items()}
    for key in nesting:
        content = {key: content, "epoch": 3}
    torch.save(content, tmp_path / "weights.pt")
    assert_loaded(tmp_path / "weights.pt", trained)


@pytest.mark.parametrize("name", ["weights.safetensors", "weights.bin"])
def test_safetensors_are_known_by_content(tmp_path, trained, name):
    save_file({f"module.{key}": tensor for key, tensor in trained.items()}, tmp_path / name)
    assert_loaded(tmp_path / name, trained)


def test_half_precision_and_missing_batch_counters_are_fine(tmp_path, trained):
    kept = {name: tensor for name, tensor in trained.items() if not name.endswith("num_batches_tracked")}
    torch.save({name: tensor.half() for name, tensor in kept.items()}, tmp_path / "half.pt")
    loaded = load_weights(model(), tmp_path / "half.pt")
    assert loaded[0].weight.dtype == torch.float32
    assert torch.allclose(loaded[0].weight, trained["0.weight"], atol=1e-3)


def test_a_prefix_that_the_model_itself_uses_stays(tmp_path):
    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = nn.Linear(2, 2)

    source, target = Wrapper(), Wrapper()
    torch.save(source.state_dict(), tmp_path / "wrapped.pt")
    load_weights(target, tmp_path / "wrapped.pt")
    assert torch.equal(source.model.weight, target.model.weight)


def test_tied_weights_may_be_stored_once(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(5, 3)
            self.head = nn.Linear(3, 5, bias=False)
            self.head.weight = self.embed.weight

    source, target = Tied(), Tied()
    save_file({"embed.weight": source.embed.weight.detach()}, tmp_path / "tied.safetensors")
    load_weights(target, tmp_path / "tied.safetensors")
    assert torch.equal(target.head.weight, source.embed.weight)


def test_weights_that_do_not_fit_are_named(tmp_path, trained):
    path = tmp_path / "weights.pt"
    fewer = {name: tensor for name, tensor in trained.items() if not name.startswith("0.")}
    torch.save({**fewer, "extra": torch.zeros(1)}, path)
    assert_refused(model(), path, "missing 0.weight, 0.bias; unexpected extra; is it the same architecture")
    torch.save({**trained, "0.weight": torch.zeros(3, 3)}, path)
    assert_refused(model(), path, r"wrong shapes: 0.weight \(3, 3\) instead of \(16, 1, 3, 3\)")
    torch.save({**trained, "0.weight": trained["0.weight"] * float("nan")}, path)
    assert_refused(model(), path, "nan or inf in 0.weight")
    torch.save({**trained, "0.weight": trained["0.weight"].to(torch.complex64)}, path)
    assert_refused(model(), path, "expected plain real tensors")
    torch.save(build_model("resnet20", width=2).state_dict(), path)
    assert_refused(model(), path, "and 9 more|and [0-9]+ more")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ([1, 2], "expected a dictionary of tensors, got list"),
        ({}, "expected a dictionary of tensors, got dict"),
        ({"a": 1}, "expected tensors only, got something else in a"),
        (torch.zeros(3), "expected a dictionary of tensors, got Tensor"),
    ],
)
def test_torch_files_of_something_else(tmp_path, content, match):
    torch.save(content, tmp_path / "odd.pt")
    assert_refused(model(), tmp_path / "odd.pt", match)


class Dangerous:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_a_malicious_file_is_refused_and_not_run(tmp_path):
    trace = tmp_path / "trace"
    torch.save({"state_dict": Dangerous(trace)}, tmp_path / "evil.pt")
    assert_refused(model(), tmp_path / "evil.pt", "refused, it asks for .*open and could run code")
    (tmp_path / "evil.pkl").write_bytes(pickle.dumps(Dangerous(trace), protocol=2))
    assert_refused(model(), tmp_path / "evil.pkl", "refused, it asks for .*open|pickles are never run")
    assert not trace.exists()


def test_a_whole_pickled_model_is_refused(tmp_path):
    torch.save(model(), tmp_path / "whole.pt")
    assert_refused(model(), tmp_path / "whole.pt", "refused, it asks for .*Sequential")


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04", bytes(100), b"\x10\0\0\0\0\0\0\0{broken"])
@pytest.mark.parametrize("name", ["weights.pt", "weights.safetensors"])
def test_damaged_files(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    assert_refused(model(), tmp_path / name, "expected a safetensors or torch file|not a sound safetensors file")


def test_absent_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing.pt: no such file"):
        load_weights(model(), tmp_path / "nothing.pt")
    assert_refused(model(), tmp_path, "cannot be read")


def checkpoint():
    path = Path(os.environ.get("SPHEROMETER_DATA", "nowhere")) / "checkpoints" / "resnet20-12fca82f.th"
    if not path.is_file():
        pytest.skip("SPHEROMETER_DATA has no checkpoints/resnet20-12fca82f.th")
    return load_weights(build_model("resnet20"), path).eval()


def cifar10(**options):
    try:
        return load_data("cifar10", root=os.environ["SPHEROMETER_DATA"], standardise="imagenet", **options)
    except FileNotFoundError as error:
        pytest.skip(str(error))


def test_a_published_resnet20_has_its_published_loss_on_cifar10():
    network, (inputs, targets) = checkpoint(), cifar10(num=200).tensors
    with torch.no_grad():
        loss = nn.functional.cross_entropy(network(inputs), targets)
    assert abs(float(loss) - 0.00252475666) < 1e-7


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_curvature_of_a_published_resnet20_is_that_of_another_program():
    problem = sm.Problem(checkpoint(), nn.CrossEntropyLoss(), cifar10(num=200).tensors)
    found = sm.measure(problem, ["gradient_norm", "top_eigenvalues:num=4", "smallest_eigenvalue"])
    gradient, top, low = found.values()
    assert float(gradient.value) == pytest.approx(0.2447774, rel=1e-4)
    theirs = torch.tensor([49.8137, 20.4179, 13.4023, 10.6328], dtype=torch.float64)
    assert ((top.value - theirs).abs() <= top.error + 1e-5 * theirs).all()
    assert abs(float(low.value) + 0.49183) <= float(low.error) + 1e-5


@pytest.mark.slow
def test_a_published_resnet20_has_its_published_accuracy_on_cifar10():
    network, (inputs, targets) = checkpoint(), cifar10(train=False).tensors
    with torch.no_grad():
        predicted = torch.cat([network(batch).argmax(1) for batch in inputs.split(500)])
    assert len(targets) == 10_000
    assert int((predicted == targets).sum()) == 9173
