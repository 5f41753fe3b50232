"""Connecting to a cluster that fails at first, with a stand-in for Ray."""

from types import SimpleNamespace

import pytest

from spherometer.sweeps import cluster
from spherometer.sweeps.outcomes import SweepError


class Proxy:
    """Fails to start the server of a client so many times."""

    def __init__(self, failures, error=ConnectionAbortedError):
        self.failures, self.error, self.calls = failures, error, 0
        self.exceptions = SimpleNamespace(RayError=LookupError)

    def init(self, **options):
        assert options["address"] == "ray://head:10001"
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error("Initialization failure from server")

    def shutdown(self):
        pass


@pytest.fixture(autouse=True)
def somebody_listens(monkeypatch):
    monkeypatch.setattr(cluster, "_knock", lambda address: None)


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_it_is_asked_again(failures):
    ray = Proxy(failures)
    cluster._connect(ray, "ray://head:10001", None)
    assert ray.calls == failures + 1


def test_not_for_ever():
    ray = Proxy(3)
    with pytest.raises(SweepError, match="cannot reach a Ray cluster at 'ray://head:10001'"):
        cluster._connect(ray, "ray://head:10001", None)
    assert ray.calls == 3


def test_other_errors_are_told_at_once():
    ray = Proxy(1, ValueError)
    with pytest.raises(SweepError):
        cluster._connect(ray, "ray://head:10001", None)
    assert ray.calls == 1
