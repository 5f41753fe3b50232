"""Many runs -> many rows: on this machine, on a Ray cluster, under SLURM; resumable after anything."""

from spherometer.sweeps.jobs import Job, JobError
from spherometer.sweeps.outcomes import Outcome, Progress, SweepError
from spherometer.sweeps.sweep import sweep, sweeping

__all__ = ["Job", "JobError", "Outcome", "Progress", "SweepError", "sweep", "sweeping"]
