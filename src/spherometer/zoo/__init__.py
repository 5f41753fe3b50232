"""Data sets and architectures by name."""
