"""Training: the loop, and what acts on the geometry: optimisers, penalties, transforms, adversaries, schedules."""

from spherometer.training import adversaries, optim, penalties, schedules
from spherometer.training.adversaries import *  # noqa: F403
from spherometer.training.averaging import IterateAverage, gadam
from spherometer.training.checkpoints import load_checkpoint, save_checkpoint
from spherometer.training.descent import gradient_descent
from spherometer.training.evaluation import Score, evaluate
from spherometer.training.loop import Step, Training
from spherometer.training.losses import SmoothedCrossEntropy
from spherometer.training.objectives import Objective, Penalised, Plain
from spherometer.training.penalties import *  # noqa: F403
from spherometer.training.progress import watched
from spherometer.training.stopping import AccuracyReached, LossBelow
from spherometer.training.tracking import Probe, Tracker
from spherometer.training.transforms import CropAndFlip, Mixup

__all__ = [
    "AccuracyReached",
    "CropAndFlip",
    "IterateAverage",
    "LossBelow",
    "Mixup",
    "Objective",
    "Penalised",
    "Plain",
    "Probe",
    "Score",
    "SmoothedCrossEntropy",
    "Step",
    "Tracker",
    "Training",
    "evaluate",
    "gadam",
    "gradient_descent",
    "load_checkpoint",
    "optim",
    "save_checkpoint",
    "schedules",
    "watched",
    *adversaries.__all__,
    *penalties.__all__,
]
