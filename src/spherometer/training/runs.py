"""A training in its run folder: rows as they come, checkpoints, and what is left at the end."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from spherometer.records import RunReader, RunWriter, write_tensors
from spherometer.training.adversaries import PGD, AutoAttack, robust_accuracy
from spherometer.training.assembly import Assembly, assemble
from spherometer.training.checkpoints import load_checkpoint, save_checkpoint
from spherometer.training.evaluation import Score, evaluate
from spherometer.training.instruments import final_rows, tracker_of, try_options
from spherometer.training.loop import Step
from spherometer.training.progress import watched
from spherometer.training.settings import Settings
from spherometer.training.tracking import Tracker
from spherometer.values import Estimate, format_with_error

CHECKPOINTS, WEIGHTS = "checkpoints", "weights.safetensors"
JUDGE_STEPS = 20  # PGD-20 judges a defended model (C Table 2)


@dataclass(frozen=True)
class Trained:
    """The end of a run: how many steps, and the numbers of the last rows."""

    headline: str
    steps: int
    values: dict[str, float | Estimate]

    def shown(self) -> dict[str, str]:
        """Numbers for a table, with error bars and intervals where there are."""
        return {"steps": str(self.steps)} | {name: _shown(value) for name, value in self.values.items()}

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        told = {k: v.to_dict() if isinstance(v, Estimate) else v for k, v in self.values.items()}
        return {"run": self.headline, "steps": self.steps, **told}


def perform(settings: Mapping[str, Mapping[str, Any]], folder: Path) -> None:
    """The run function of a sweep: settings as `Settings.differences()` tells them, nothing shown.

    Example:
        >>> perform({"loop": {"steps": 100}, "measurement": {"track": ["sharpness"]}}, Path("runs/a"))
    """
    train_in_folder(Settings.of(settings), folder, show=False)


def train_in_folder(settings: Settings, folder: Path, *, show: bool = True) -> Trained:
    """Train into a run folder, from the start or from its last checkpoint; `show` a progress bar on a terminal."""
    told, resume = _settings_told(settings, folder), RunReader(folder).exists
    parts = assemble(settings)  # wrong names and missing data are told before anything is written
    if not resume:
        try_options(parts)
    with RunWriter(folder, settings=told, seed=settings.loop.seed, title="train", resume=resume) as run:
        tracker = tracker_of(parts, run)
        beside = load_checkpoint(parts.training, folder / CHECKPOINTS)
        if beside and tracker is not None:
            tracker.load_state_dict(beside["tracker"])
        run.rewind(parts.training.number)
        steps = watched(parts.training, parts.num_steps) if show else parts.training.run(parts.num_steps)
        return _go_on(parts, run, steps, tracker, folder)


def _settings_told(settings: Settings, folder: Path) -> dict[str, Any]:
    """What the manifest says, of a run that was begun before a setting existed too; another run is refused."""
    there = RunReader(folder)
    if not there.exists:
        return settings.plain()
    before: Any = there.manifest["settings"]
    now, usual = (json.loads(json.dumps(each.plain())) for each in (settings, Settings()))
    if not isinstance(before, dict) or before.keys() != now.keys():
        raise ValueError(f"{folder}: holds a run of another kind: choose another folder (--out)")
    for table, entries in now.items():
        for name, value in entries.items():
            known = before[table].get(name, usual[table][name])
            if known != value:
                raise ValueError(
                    f"{folder}: holds a run with {name} {known}, not {value}: resume with the same, "
                    "or choose another folder (--out)"
                )
    return before


def _go_on(parts: Assembly, run: RunWriter, steps: Iterator[Step], tracker: Tracker | None, folder: Path) -> Trained:
    training, loop = parts.training, parts.settings.loop
    look = loop.evaluate_every or max(training.steps_per_epoch, ceil(parts.num_steps / 100))
    keep = loop.checkpoint_every or look

    def save() -> None:
        beside = {} if tracker is None else {"tracker": tracker.state_dict()}
        save_checkpoint(training, folder / CHECKPOINTS, beside)

    if training.number == 0:
        run.write(0, _scores(parts, training.model))
        if tracker is not None:
            tracker.step(training.optimizer, step=0)
    for step in steps:
        if tracker is not None:
            tracker.step(training.optimizer, step.loss, step=step.number)
        if step.number % look == 0:
            scores = _scores(parts, training.model)
            run.write(step.number, {"batch_loss": step.loss, "learning_rate": step.learning_rate, **scores})
        if step.number % keep == 0:
            save()
    save()
    final = _final_model(parts)
    values = _scores(parts, final) | _robustness(parts, final)
    rows, arrays = final_rows(parts, final)
    told = values | rows
    run.write(training.number, {f"final_{name}": value for name, value in told.items()}, arrays=arrays)
    write_tensors(folder / WEIGHTS, final.state_dict())
    return Trained(_headline(parts), training.number, values | {k: v for k, v in rows.items() if _is_number(v)})


def _is_number(value: Any) -> bool:
    return not isinstance(value, Estimate) or not isinstance(value.value, Tensor) or value.value.ndim == 0


def _scores(parts: Assembly, model: nn.Module) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for name, dataset in (("train", parts.train), ("test", parts.test)):
        score: Score = evaluate(model, dataset.tensors, parts.loss)
        told[f"{name}_loss"] = score.loss
        if score.accuracy is not None:
            told[f"{name}_accuracy"] = score.accuracy
    return told


def _final_model(parts: Assembly) -> nn.Module:
    """The averaged weights where they are averaged, else the last."""
    average, size = parts.training.average, parts.settings.loop.batch_size or len(parts.train)
    if average is None or not average.num_averaged:
        return parts.training.model
    batches: tuple[Tensor, ...] = parts.train.inputs.split(size)
    return average.finished(iter(batches))


def _robustness(parts: Assembly, model: nn.Module) -> dict[str, Any]:
    wanted = parts.settings.objective
    if wanted.defence == "none":
        return {}
    judge = PGD(parts.settings.usual("radius"), wanted.norm, num_steps=JUDGE_STEPS)  # type: ignore[arg-type]
    data = parts.test.tensors
    found = robust_accuracy(model, data, judge, seed=parts.settings.loop.seed, check_masking=True)
    told = {"test_robust_accuracy": replace(found, seconds=0.0)}  # the same rows however long it took
    num = parts.settings.measurement.autoattack
    if num:
        few = data[0][:num], data[1][:num]
        strongest = AutoAttack(parts.settings.usual("radius"), wanted.norm)  # type: ignore[arg-type]
        found = robust_accuracy(model, few, strongest, seed=parts.settings.loop.seed)
        told["test_autoattack_accuracy"] = replace(found, seconds=0.0)
    return told


def _headline(parts: Assembly) -> str:
    wanted, data = parts.settings, parts.train
    num = sum(weight.numel() for weight in parts.training.model.parameters())
    names = [wanted.method.base, *([wanted.method.method] if wanted.method.method != "plain" else [])]
    names += [part for part in (wanted.objective.penalty, wanted.objective.defence) if part != "none"]
    average = parts.training.average
    early = "; stopped before any weights were averaged" if average is not None and not average.num_averaged else ""
    what = f"{wanted.model.model} ({num:,} parameters) on {repr(data)[len('Dataset(') : -1]}"
    return f"{what} by {' + '.join(names)}{early}"


def _shown(value: float | Estimate) -> str:
    if not isinstance(value, Estimate):
        return f"{value:.4g}"
    interval = "" if value.interval is None else " (95 %: {:.3f} to {:.3f})".format(*value.interval)
    doubt = "" if value.status else f"  DOUBTFUL: {value.status.message}"
    return f"{format_with_error(value.value, value.error)}{interval}{doubt}"
