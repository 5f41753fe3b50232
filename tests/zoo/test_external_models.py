"""Models from a user's own module, from timm and from Hugging Face."""

import sys
import types

import pytest
import torch
from torch import nn

from spherometer.zoo import ModelError, build_model

SOURCE = """
import random, torch
from torch import nn
LIMIT = 3
ready = nn.Linear(2, 2)
def plain(): return nn.Linear(3, 4)
def fitted(num_classes=10, input_shape=(5,), other=1): return nn.Linear(input_shape[0], num_classes)
def drawn(): random.random(); torch.manual_seed(7); return nn.Linear(3, 4)
def text(): return "a model"
def needy(width): return nn.Linear(width, 1)
def leaving(): raise SystemExit(3)
class Net(nn.Module):
    def __init__(self): super().__init__(); self.inner = nn.Linear(1, 1)
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "own_models.py").write_text(SOURCE)
    (tmp_path / "broken_models.py").write_text("import nothing_like_this\n")
    (tmp_path / "wrong_models.py").write_text("def f(:\n")
    monkeypatch.chdir(tmp_path)
    yield
    for name in ("own_models", "broken_models", "wrong_models"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("own_module")
def test_functions_classes_and_models_of_a_module_in_the_current_folder():
    before = list(sys.path)
    assert build_model("own_models:plain").out_features == 4
    fitted = build_model("own_models:fitted", num_classes=7, input_shape=(6,))
    assert (fitted.in_features, fitted.out_features) == (6, 7)
    assert build_model("own_models:plain", num_classes=7).out_features == 4
    assert isinstance(build_model("own_models:Net"), nn.Module)
    assert isinstance(build_model("own_models:ready"), nn.Linear)
    assert sys.path == before


@pytest.mark.usefixtures("own_module")
def test_the_seed_reaches_the_function_and_nothing_leaks_out():
    state = torch.random.get_rng_state()
    one, same = build_model("own_models:plain", seed=4), build_model("own_models:plain", seed=4)
    assert torch.equal(one.weight, same.weight)
    build_model("own_models:drawn")
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.usefixtures("own_module")
@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("no_such_module_here:f", "cannot import no_such_module_here .ModuleNotFoundError"),
        ("broken_models:f", "cannot import broken_models .ModuleNotFoundError: No module named 'nothing_like_this'"),
        ("wrong_models:f", "cannot import wrong_models .SyntaxError"),
        ("own_models:plian", "own_models has no 'plian'; did you mean 'plain'"),
        ("own_models:LIMIT", "expected a function that returns a model, got int"),
        ("own_models:text", "expected a torch.nn.Module as result, got str"),
        ("own_models:needy", "failed .TypeError: needy.. missing 1 required"),
        ("own_models:leaving", "failed .SystemExit: 3"),
        (":f", "expected timm:NAME, hf:NAME or package.module:function, got ':f'"),
        ("own_models:", "expected timm:NAME"),
    ],
)
def test_what_cannot_be_used_gets_one_line(name, match):
    with pytest.raises(ModelError, match=match) as caught:
        build_model(name)
    assert "\n" not in str(caught.value)


def test_options_of_the_catalogue_are_refused_for_models_from_elsewhere():
    with pytest.raises(ModelError, match="math:sqrt has no option width; it has input_shape, num_classes"):
        build_model("math:sqrt", width=3)


@pytest.mark.parametrize(
    ("name", "module", "extra"), [("timm:resnet18", "timm", "zoo"), ("hf:some/model", "transformers", "hf")]
)
def test_a_missing_extra_is_asked_for_by_name(monkeypatch, name, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModelError, match=rf"{module} is not installed; pip install 'spherometer\[{extra}\]'"):
        build_model(name)


def test_timm_is_asked_for_fresh_weights_and_unfused_attention(monkeypatch):
    calls = []
    fake = types.ModuleType("timm")
    fake.is_model = lambda name: name == "tiny"
    fake.list_models = lambda: ["tiny"]
    fake.layers = types.SimpleNamespace(set_fused_attn=lambda on: calls.append(("fused", on)))
    fake.create_model = lambda name, **options: calls.append((name, options)) or nn.Linear(2, 2)
    monkeypatch.setitem(sys.modules, "timm", fake)
    assert isinstance(build_model("timm:tiny", num_classes=5, input_shape=(1, 8, 8)), nn.Linear)
    assert calls == [("fused", False), ("tiny", {"pretrained": False, "num_classes": 5, "in_chans": 1})]
    with pytest.raises(ModelError, match="timm has no model called 'tinny'; did you mean 'tiny'"):
        build_model("timm:tinny")


def test_real_timm_models_when_installed():
    if not _installed("timm"):
        pytest.skip("timm is not installed")
    model = build_model("timm:vit_tiny_patch16_224", num_classes=10)
    assert model(torch.zeros(1, 3, 224, 224)).shape == (1, 10)


def test_real_huggingface_models_when_installed(tmp_path):
    if not _installed("transformers"):
        pytest.skip("transformers is not installed")
    import transformers

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.ViTConfig(**sizes, image_size=8, patch_size=4, num_channels=1, num_labels=10)
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    assert build_model(f"hf:{tmp_path}")(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    with pytest.raises(ModelError, match="no such local model"):
        build_model(f"hf:{tmp_path}/nothing")


def _installed(name):
    import importlib.util

    return importlib.util.find_spec(name) is not None
