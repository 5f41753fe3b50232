"""Paper B, section 4.4: adaptive sharpness and normalised MLS of vision transformers by their names (B-F3)."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from spherometer.figures.panels import Panel, Panels, Series
from spherometer.metrics import measure
from spherometer.problems import HalfSquaredError, Problem
from spherometer.recipes.claims import AnyClaim, Claim, Correlation, Inequality
from spherometer.recipes.papers.b_timm_names import FAMILIES, LAPTOP, PAPER, SMOKE
from spherometer.recipes.recipe import Experiment, Scale, at_scale, recipe
from spherometer.recipes.results import Results, Run
from spherometer.records import RunWriter
from spherometer.sweeps import Job
from spherometer.zoo import MissingDataError, build_model, find_timm_weights, load_data, load_weights
from spherometer.zoo.datasets.layout import ENVIRONMENT_VARIABLE, roots

STAND_INS = (
    *("digits-linear", "digits-mlp", "digits-cnn", "digits-resnet8", "mlp4", "mlp-100", "mlp-10-100", "fcn3-mnist"),
    *("cnn6", "resnet20-plain", "wrn-16-1", "all-cnn-c"),
)  # networks of our own zoo, where timm is missing
SHARPNESS, SENSITIVITY = "adaptive_sharpness", "normalised_mls"
FAR = 2.0  # standard deviations that make an outlier: chosen here
RHO = 0.1  # ρ² = 0.01
IMAGENET = "imagenet-100.npz"  # 100 images of the validation set and their labels, brought by the user


@recipe(
    "B-F3",
    "sharper transformers are more sensitive",
    finding="over 181 vision transformers normalised MLS rises with adaptive sharpness; a few families are outliers",
    minutes=4,
)
def transformers(scale: Scale) -> Experiment:
    """Every model has a sigmoid head and squared error; trained weights where they are at hand; L41."""
    names = at_scale(scale, smoke=SMOKE, laptop=LAPTOP, paper=PAPER)
    missing = scale != "paper" and find_spec("timm") is None
    models = [*STAND_INS] if missing else [f"timm:{name}" for name in names]
    runs = [_run(scale, model) for model in models]
    return Experiment(
        runs=runs,
        claims=[
            Correlation(
                "models with a larger adaptive sharpness have a larger normalised MLS",
                lambda results: (_logs(results, SHARPNESS), _logs(results, SENSITIVITY)),
                sign=1,
                source="B-F3",
            ),
            *_outliers(models),
        ],
        figure=_figure,
        departures=_departures(scale, runs, missing),
    )


def _outliers(models: list[str]) -> list[AnyClaim]:
    """MobileViT lies above the trend of the others, two FastViT below; where there are enough of them."""
    families = [_family(model.partition(":")[2]) for model in models]
    if families.count("mobilevit") < 3 or families.count("fastvit") < 2:
        return []
    unit = "distance from the trend of the other families, in its standard deviations"
    return [
        Claim(
            f"MobileViT networks lie more than {FAR:g} standard deviations above the trend of the others",
            lambda results: list(_distances(results, "mobilevit")),
            unit=unit,
            least=FAR,
            source="B-F3",
        ),
        Inequality(
            f"at least two FastViT networks lie more than {FAR:g} standard deviations below it",
            lambda results: [-FAR - float(np.sort(_distances(results, "fastvit"))[1])],
            unit=f"−{FAR:g} − the second lowest {unit}",
            source="B-F3",
        ),
    ]


def _distances(results: Results, family: str) -> np.ndarray:
    """Of ln normalised MLS from the line through the networks that are no outliers in the paper."""
    kinds = np.array([_family(str(run.labels["model"])) for run in results.choose()])
    x, y = (np.array(_logs(results, name)) for name in (SHARPNESS, SENSITIVITY))
    others = ~np.isin(kinds, ("mobilevit", "fastvit")) & np.isfinite(x) & np.isfinite(y)
    line = np.polynomial.Polynomial.fit(x[others], y[others], 1)
    spread = float((y - line(x))[others].std(ddof=2))
    return np.asarray((y - line(x))[kinds == family] / spread)


def _run(scale: Scale, model: str) -> Run:
    origin, _, name = model.rpartition(":")
    weights = "pretrained" if origin and find_timm_weights(name) else "random"
    settings = {
        "model": model,
        "weights": weights,
        "data": IMAGENET if scale == "paper" else "digits",
        "targets": "labels" if scale == "paper" else "own outputs",
        "num": at_scale(scale, smoke=2, laptop=2, paper=100),
        "draws": at_scale(scale, smoke=4, laptop=8, paper=100),
        "seed": 0,
    }
    return Run(
        {"model": name, "weights": weights, "seed": 0}, Job(f"{__name__}:perform", settings, f"{model}, {weights}")
    )


def perform(settings: Mapping[str, Any], folder: Path) -> None:
    """The run function: build one model, measure it, write two numbers."""
    model, inputs, targets = _subject(settings)
    with RunWriter(folder, settings=settings, seed=settings["seed"], title=settings["model"], resume=True) as run:
        function = nn.Sequential(model, nn.Sigmoid())
        sharpness = f"sampled_adaptive_sharpness:rho={RHO}:num={settings['draws']}"
        problem = Problem(function, HalfSquaredError(), (inputs, targets))
        apart = Problem(function, HalfSquaredError(), (inputs, torch.zeros_like(targets)))  # MLS knows no targets
        values = {
            SHARPNESS: measure(problem, [sharpness], seed=settings["seed"])[sharpness].estimate,
            SENSITIVITY: measure(apart, [SENSITIVITY], seed=settings["seed"])[SENSITIVITY].estimate,
        }
        run.write(0, {**values, "parameters": sum(weight.numel() for weight in model.parameters())})


def _subject(settings: Mapping[str, Any]) -> tuple[nn.Module, Tensor, Tensor]:
    """The model in eval mode, images as it wants them, and targets between 0 and 1."""
    wanted = settings["data"]
    data = load_data(_brought() if wanted == IMAGENET else wanted, num=settings["num"])
    name, seed = settings["model"], settings["seed"]
    inputs = data.inputs
    if name.startswith("timm:"):
        model = build_model(name, seed=seed)
        inputs = _prepared(inputs, model.pretrained_cfg)  # type: ignore[arg-type]
    else:
        model = build_model(name, num_classes=10, input_shape=data.input_shape, seed=seed)
    if settings["weights"] == "pretrained":
        path = find_timm_weights(name.partition(":")[2])
        if path is None:
            raise ValueError(f"{name}: its weights were at hand when this run was planned, and are not any more")
        load_weights(model, path)
    model.eval()
    with torch.no_grad():
        outputs = torch.sigmoid(model(inputs))
    if settings["targets"] == "own outputs":
        return model, inputs, outputs
    return model, inputs, functional.one_hot(data.targets, outputs.shape[1]).to(outputs.dtype)


def _brought() -> Path:
    """The images of ImageNet, where other data sets are looked for, or in the current folder."""
    places = [*roots(None), Path()]
    for place in places:
        if (place / IMAGENET).is_file():
            return place / IMAGENET
    raise MissingDataError(
        f"{IMAGENET}: not found in {', '.join(str(place) for place in places)}: it is yours to bring, 100 images and "
        "labels of the ImageNet validation set by numpy.savez (see B-F3 in docs/recipes.md), placed there or in "
        f"{ENVIRONMENT_VARIABLE}"
    )


def _prepared(images: Tensor, wanted: Mapping[str, Any]) -> Tensor:
    """Resized, with three channels, standardised as the model was trained."""
    _, height, width = wanted["input_size"]
    resized = functional.interpolate(images, (height, width), mode="bilinear", antialias=True)
    channels = resized if resized.shape[1] == 3 else resized.expand(-1, 3, -1, -1)
    mean, std = (torch.tensor(wanted[name]).view(1, 3, 1, 1) for name in ("mean", "std"))
    return (channels - mean) / std


def _logs(results: Results, name: str) -> list[float]:
    return [float(np.log(value)) for value in results.final(name)]


def _family(name: str) -> str:
    return next((family for family in FAMILIES if name.startswith(family)), "other")


def _figure(results: Results) -> Panels:
    families = sorted({_family(str(run.labels["model"])) for run in results.runs})
    series = []
    for family in families:
        runs = [run for run in results.runs if _family(str(run.labels["model"])) == family]
        chosen = Results(runs, results.root)
        series.append(Series(family, chosen.final(SHARPNESS), chosen.final(SENSITIVITY), style="markers"))
    weights = sorted({str(run.labels["weights"]) for run in results.runs})
    panel = Panel(
        f"{len(results.runs)} models, weights {' and '.join(weights)}",
        "adaptive sharpness",
        "normalised MLS",
        series,
        log_x=True,
        log_y=True,
    )
    return Panels([panel], columns=1, caption="Every point is a model with a sigmoid head.")


def _departures(scale: Scale, runs: list[Run], missing: bool) -> list[str]:
    random = sum(run.labels["weights"] == "random" for run in runs)
    told = [f"{random} of {len(runs)} models have random weights: their trained ones are not at hand"] if random else []
    told.append("sampled adaptive sharpness is multiplied by 2/ρ² (B-e13); normalised MLS by power iteration (B-e14)")
    if scale == "paper":
        return [
            *told,
            "which 181 models is not in the text: chosen by family",
            f"100 images of the user's choice, in {IMAGENET}",
        ]
    if missing:
        told.insert(0, "timm is not installed: networks of our own zoo instead of vision transformers")
    return [
        f"{len(runs)} models instead of 181, on 2 enlarged digits instead of ImageNet",
        "targets are the model's own outputs, so that the loss is zero as at an interpolating solution",
        *told,
    ]
