"""A page that follows runs while they go on: read-only, on this machine, from the run folders alone."""

from spherometer.report.live.runs import Runs
from spherometer.report.live.server import PORT, LiveServer

__all__ = ["PORT", "LiveServer", "Runs"]
