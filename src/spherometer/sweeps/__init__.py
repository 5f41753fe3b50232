"""Many runs -> many rows: on this machine, on a Ray cluster, under SLURM; resumable after anything."""

from spherometer.sweeps.jobs import Job, JobError

__all__ = ["Job", "JobError"]
