"""Measurement -> rows on disk: a run is a folder with one writer, and one call reads it back."""

from spherometer.records.errors import RecordError
from spherometer.records.reader import RunReader, find_runs
from spherometer.records.schema import Event, Row
from spherometer.records.tables import export_runs, read_runs
from spherometer.records.tensors import read_tensors, write_tensors
from spherometer.records.writer import RunWriter

__all__ = [
    "Event",
    "RecordError",
    "Row",
    "RunReader",
    "RunWriter",
    "export_runs",
    "find_runs",
    "read_runs",
    "read_tensors",
    "write_tensors",
]
