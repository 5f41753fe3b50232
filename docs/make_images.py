"""Draw the pictures of the README and the docs again: python docs/make_images.py [edge] [bound] [watch]

The live page needs chromium; everything else only Spherometer.
"""

import runpy
import shutil
import subprocess
import sys
import tempfile
import threading
from contextlib import chdir
from pathlib import Path

import torch

import spherometer as sm
from spherometer.commands.edge import reach_edge
from spherometer.figures import draw_edge
from spherometer.records import RunWriter
from spherometer.report.live import LiveServer, Runs
from spherometer.zoo import build_model, load_data, rescale_inputs

IMAGES = Path(__file__).resolve().parent / "images"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def draw_edge_of_stability() -> None:
    edge = reach_edge(num_steps=2500, every=20, seed=0)
    columns = zip(*((row.step, row.sharpness, row.error, row.loss) for row in edge.rows), strict=True)
    draw_edge(IMAGES / "edge-of-stability.png", *columns, threshold=edge.threshold)


def draw_generalisation_bound() -> None:
    example = runpy.run_path(str(IMAGES.parent.parent / "examples" / "plot_generalisation_bound.py"))
    example["figure"].savefig(IMAGES / "generalisation-bound.png", dpi=150)


def train_tracked(run: RunWriter, learning_rate: float, num_steps: int = 800) -> None:
    """Digits by full-batch gradient descent; the spectrum is kept now and then."""
    digits = rescale_inputs(load_data("digits", num=500), -1, 1)
    model, loss_function = build_model("digits-mlp", seed=0), sm.HalfSquaredError()
    problem = sm.Problem(model, loss_function, digits.tensors)
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    metrics = ["sharpness", "input_jacobian_norm", "mls"]
    tracker = sm.Tracker(problem, metrics, every=10, budget=1.0, run=run)
    for step in range(1, num_steps + 1):
        optimizer.zero_grad()
        loss = loss_function(model(digits.inputs), digits.targets)
        loss.backward()
        optimizer.step()
        tracker.step(optimizer, loss.detach())
        if step % 50 == 0:
            top = sm.eigenvalues(sm.Hessian(problem), num=12, rtol=0.05)
            run.write(step, arrays={"spectrum": top.value})


def photograph_live_page() -> None:
    """Two runs that are over, one that goes on."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        sys.exit("make_images: the picture of the live page needs chromium: install it")
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        root = Path("runs")
        for learning_rate in (0.06, 0.09):
            with RunWriter(root / f"lr{learning_rate}", title="digits, full batch") as run:
                train_tracked(run, learning_rate)
        with RunWriter(root / "lr0.12", title="digits, full batch") as run, LiveServer(Runs(root), port=0) as server:
            train_tracked(run, 0.12, 500)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            keys = ",".join(told["key"] for told in server.runs.overview())
            picture = f"--screenshot={IMAGES / 'watch.png'}"
            look = (
                "--headless --no-sandbox --hide-scrollbars --window-size=1400,1250 --virtual-time-budget=15000".split()
            )
            subprocess.run([program, *look, picture, f"{server.address}#{keys}"], check=True, capture_output=True)
            server.shutdown()


PICTURES = {"edge": draw_edge_of_stability, "bound": draw_generalisation_bound, "watch": photograph_live_page}


def main() -> None:
    for name in sys.argv[1:] or PICTURES:
        PICTURES[name]()


if __name__ == "__main__":
    main()
