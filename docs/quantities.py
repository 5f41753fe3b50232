"""A Sphinx directive that trains one small network and shows every quantity of the catalogue, measured on it.

Measured while the page is built, so that the page can neither fall behind the catalogue nor show an old number.
"""

from __future__ import annotations

import io
import re
from functools import cache
from itertools import groupby
from typing import Any

import torch
from docutils import nodes
from docutils.parsers.rst import Directive
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from sphinx.application import Sphinx
from torch import nn

import spherometer as sm
from spherometer.commands.tables import conventions_line, remark_lines, value_lines
from spherometer.figures.decomposition import draw_layers
from spherometer.figures.logits import draw_class_cosines, draw_impurity_matrix
from spherometer.figures.sensitivity import draw_bounds, draw_profile, draw_spectra
from spherometer.metrics.sample_norms import singular_values
from spherometer.operators.sensitivity import sensitivity
from spherometer.training.descent import gradient_descent
from spherometer.zoo import load_data

LEARNING_RATE, NUM_STEPS, NUM_SAMPLES, MAX_LINES = 0.5, 150, 200, 12
BOUNDS = ["mls_chain", "nmls_bound", "layer_bound", "adaptive_bound", "volume_bound", "network_volume_bound"]


@cache
def trained() -> sm.Problem:
    """Softmax regression on digits through two hidden layers of ReLU, after some steps of gradient descent."""
    data = load_data("digits", num=NUM_SAMPLES)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 10))
    problem = sm.Problem(model, nn.CrossEntropyLoss(), (data.inputs.flatten(1), data.targets))
    for _ in gradient_descent(problem, learning_rate=LEARNING_RATE, num_steps=NUM_STEPS):
        pass
    return problem


@cache
def measured() -> sm.Measurements:
    """Every metric with its own defaults; those that are about a step are told its size."""
    names = [f"{name}:lr={LEARNING_RATE}" if "lr" in entry.options else name for name, entry in sm.metrics().items()]
    return sm.measure(trained(), names, seed=0)


class Quantities(Directive):
    """Tables of all measurements, one for each family."""

    def run(self) -> list[nodes.Node]:
        self.state.document.settings.env.note_reread()  # an old page must not be kept
        found = measured()
        parts: list[nodes.Node] = [nodes.paragraph("", str(conventions_line(found)))]
        entries = sorted(found.values(), key=lambda entry: entry.metric.function.__module__)
        for module, family in groupby(entries, lambda entry: entry.metric.function.__module__):
            title = module.rpartition(".")[2].replace("_", " ")
            section = nodes.section(ids=[f"quantities-{title.replace(' ', '-')}"])
            section += nodes.title("", title)
            section += _table([_cells(entry) for entry in family])
            parts.append(section)
        return parts


class Pictures(Directive):
    """The same network in pictures."""

    def run(self) -> list[nodes.Node]:
        return [nodes.raw("", _svg(), format="html")]


def _cells(entry: sm.Measurement) -> list[nodes.Node]:
    name, estimate = entry.metric.name, entry.estimate
    link = nodes.reference(
        "", "", nodes.literal("", name), internal=True, refuri=f"metrics.html#{name.replace('_', '-')}"
    )
    lines, value = value_lines(estimate), torch.as_tensor(estimate.value)
    if value.ndim > 1:
        lines = [f"{' x '.join(map(str, value.shape))} matrix: see the pictures"]
    elif len(lines) > MAX_LINES:
        lines = [*lines[:MAX_LINES], f"… {len(lines) - MAX_LINES} more"]
    remarks = remark_lines(estimate) + ([] if estimate.status else [f"not converged: {estimate.status.message}"])
    return [nodes.paragraph("", "", link), nodes.paragraph("", entry.metric.symbol), _lines(lines), _lines(remarks)]


def _lines(lines: list[str]) -> nodes.line_block:
    block = nodes.line_block()
    block += [nodes.line("", line) for line in lines]
    return block


def _table(rows: list[list[nodes.Node]]) -> nodes.table:
    table, group, head, body = nodes.table(), nodes.tgroup(cols=4), nodes.thead(), nodes.tbody()
    group += [nodes.colspec(colwidth=width) for width in (28, 18, 30, 24)]
    titles = ("quantity", "symbol", "value ± error", "uncertainty")
    head += _row([nodes.paragraph("", title) for title in titles])
    body += [_row(row) for row in rows]
    group += [head, body]
    table += group
    return table


def _row(cells: list[nodes.Node]) -> nodes.row:
    row = nodes.row()
    row += [nodes.entry("", cell) for cell in cells]
    return row


def _svg() -> str:
    figure = Figure(figsize=(10, 13), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(3, 2)
    found: dict[str, Any] = dict(measured())
    gram = sensitivity(trained(), frozenset({"input"})).input_gram
    draw_spectra(singular_values(gram), axes[0, 0])
    draw_profile({"MLS_l": found["layer_mls"]}, axes[0, 1], label="sensitivity to what enters the layer")
    draw_impurity_matrix(found["impurity_matrix"], axes[1, 0])
    draw_class_cosines(found["class_mean_cosines"], axes[1, 1])
    draw_bounds({name: found[name] for name in BOUNDS}, axes[2, 0])
    draw_layers(found["sharpness_by_layer"], axes[2, 1])
    titles = "singular values of J", "layer profile", "⟨QΛ^½⟩", "cosines of class means", "bounds", "layers of ‖G‖"
    for one, title in zip(axes.flat, titles, strict=True):
        one.set_title(title, fontsize=10)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    drawing = text.getvalue()[text.getvalue().index("<svg") :]
    return re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', 'width="100%"', drawing, count=1)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("quantities", Quantities)
    app.add_directive("quantity-pictures", Pictures)
    return {"parallel_read_safe": True}
