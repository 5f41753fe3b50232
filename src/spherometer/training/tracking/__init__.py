"""Problem + Probes -> rows, inside anybody's training loop."""

from spherometer.training.tracking.change_points import ChangePoint, change_point
from spherometer.training.tracking.probes import Probe
from spherometer.training.tracking.schedules import EpochEnds, Every, LogSpaced, LossJumps, Schedule
from spherometer.training.tracking.tracker import Tracker
from spherometer.training.tracking.trajectory import Sketch

__all__ = [
    "ChangePoint",
    "EpochEnds",
    "Every",
    "LogSpaced",
    "LossJumps",
    "Probe",
    "Schedule",
    "Sketch",
    "Tracker",
    "change_point",
]
