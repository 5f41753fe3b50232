"""Ray: a cluster that is started here, and two nodes on loopback of which one is killed in the middle of a sweep."""

import fcntl
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from sweep_process import alive, answer, begun, callers, descendants, jobs_of, start, values, wait_until
from sweep_runs import count

from spherometer.records import RunReader, read_runs
from spherometer.sweeps import sweep

pytest.importorskip("ray")
pytestmark = pytest.mark.slow

HEAD, OTHER = "127.0.0.2", "127.0.0.3"  # Ray takes 127.0.0.1 for the outward address of the machine
RUNS = [{"rows": 20, "seconds": 0.1 + 0.01 * number} for number in range(6)]


@pytest.fixture(autouse=True)
def alone(tmp_path_factory) -> Iterator[None]:
    """One of these tests at a time: Ray finds every cluster of a machine."""
    with (tmp_path_factory.getbasetemp().parent / "ray.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HEAD, 0))
        return int(listener.getsockname()[1])


class Cluster:
    """Two nodes of one core each."""

    def __init__(self, folder: Path) -> None:
        token = folder / "token"
        token.write_text(secrets.token_hex(32))
        token.chmod(0o600)
        self.environment = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_health_check_period_ms": "500",  # a dead node is noticed in seconds
            "RAY_health_check_failure_threshold": "4",
        }
        self.port, self.client_port = free_port(), free_port()
        self.address = f"{HEAD}:{self.port}"
        self.log = folder / "ray.log"
        self.nodes: list[subprocess.Popen[bytes]] = []

    def add(self, *words: str) -> None:
        command = [Path(sys.executable).parent / "ray", "start", "--num-cpus=1", "--block", *words]
        environment = os.environ | self.environment
        with self.log.open("a") as log:
            self.nodes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log, process_group=0))
        started = len(self.nodes)
        wait_until(lambda: self.log.read_text().count("Ray runtime started") == started or self._broken)
        assert not self._broken, self.log.read_text()

    @property
    def _broken(self) -> bool:
        return any(node.poll() is not None for node in self.nodes)

    def kill(self, node: subprocess.Popen[bytes]) -> None:
        """As if its power had failed."""
        processes = [node.pid, *descendants(node.pid)]
        for process in processes:
            with suppress(ProcessLookupError):  # it has just ended with its parent
                os.kill(process, signal.SIGKILL)
        node.wait()
        wait_until(lambda: not any(alive(process) for process in processes), 20)


@pytest.fixture
def cluster(tmp_path, alone) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    head = ["--head", f"--node-ip-address={HEAD}", f"--port={made.port}", "--include-dashboard=false"]
    try:
        made.add(*head, f"--ray-client-server-port={made.client_port}")
        made.add(f"--address={made.address}", f"--node-ip-address={OTHER}")
        yield made
    finally:
        for node in made.nodes:
            if node.poll() is None:
                made.kill(node)


def reachable(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HEAD, port)) == 0


def table(root: Path) -> list[tuple]:
    """Run, step, name, value of all rows."""
    columns = read_runs(root, frame="columns")
    return sorted(zip(*(columns[name] for name in ("run", "step", "name", "value")), strict=True))


def test_a_node_is_killed_in_the_middle_of_a_sweep(tmp_path, cluster):
    process = start(tmp_path / "ray", RUNS, cluster.environment, ray=cluster.address)

    def on_both_nodes() -> bool:
        at_work = [path for path in begun(tmp_path / "ray") if RunReader(path).state == "running"]
        return len(at_work) == 2 or process.poll() is not None

    wait_until(on_both_nodes)
    cluster.kill(cluster.nodes[1])
    assert answer(process) == [["done", 1, ""]] * len(RUNS)  # it was not the fault of the run
    jobs = jobs_of(RUNS)
    assert [count(one.folder(tmp_path / "ray"), "ends.txt") for one in jobs] == [1] * len(RUNS)
    assert sorted(count(one.folder(tmp_path / "ray"), "calls.txt") for one in jobs) == [1] * (len(RUNS) - 1) + [2]
    sweep(jobs, tmp_path / "local", workers=2)
    assert table(tmp_path / "ray") == table(tmp_path / "local")
    assert len(table(tmp_path / "ray")) == 20 * len(RUNS)


def test_a_cluster_is_reached_from_outside(tmp_path, cluster):
    wait_until(lambda: reachable(cluster.client_port))
    process = start(tmp_path / "ray", RUNS[:2], cluster.environment, ray=f"ray://{HEAD}:{cluster.client_port}")
    assert answer(process) == [["done", 1, ""]] * 2


def test_a_troubled_sweep_on_a_cluster_of_its_own(tmp_path):
    troubled = [
        {},
        {"trouble": "raise"},
        {"trouble": "kill", "bad_calls": 1},
        {"trouble": "os exit"},
        {"trouble": "exit", "bad_calls": 1},
    ]
    outcomes = answer(start(tmp_path, troubled, ray="local", workers=2))
    assert [outcome[0] for outcome in outcomes] == ["done", "failed", "done", "failed", "done"]
    assert [outcome[1] for outcome in outcomes] == [1, 2, 2, 2, 2]
    assert outcomes[1][2] == "ArithmeticError: as told over two lines"
    assert "worker" in outcomes[3][2]
    assert values(jobs_of(troubled)[2], tmp_path) == [4, 5, 6]
    assert not any(alive(process) for process in callers(tmp_path))


def test_ctrl_c_lets_runs_end_their_records(tmp_path):
    process = start(tmp_path, [{"rows": 600, "seconds": 0.05}] * 3, ray="local", workers=2)
    wait_until(lambda: len(begun(tmp_path)) == 2 or process.poll() is not None)
    below = descendants(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    told, errors = process.communicate(timeout=40)
    assert told == ""
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert [RunReader(folder).state for folder in begun(tmp_path)] == ["stopped", "stopped"]
    wait_until(lambda: not any(alive(child) for child in below), 20)


@pytest.mark.parametrize("address", ["auto", "recorded", "127.0.0.2:{port}", "ray://127.0.0.2:{port}"])
def test_an_address_where_nothing_is_says_so(tmp_path, address):
    if address == "recorded":
        (tmp_path / "ray").mkdir()
        (tmp_path / "ray" / "ray_current_cluster").write_text(f"{HEAD}:{free_port()}")
    asked = address.format(port=free_port()).replace("recorded", "auto")
    process = start(tmp_path, RUNS[:1], {"RAY_TMPDIR": str(tmp_path)}, ray=asked)
    _, errors = process.communicate(timeout=60)
    assert f"SweepError: cannot reach a Ray cluster at '{asked}'" in errors
