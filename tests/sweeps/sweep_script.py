"""A sweep in a process of its own, to be interrupted and killed: ROOT, number of runs, rows, seconds a row, workers."""

import json
import sys

from sweep_runs import job

from spherometer.sweeps import sweep


def main(root: str, num: str, rows: str, seconds: str, workers: str) -> None:
    jobs = [job(number, rows=int(rows), seconds=float(seconds)) for number in range(int(num))]
    outcomes = sweep(jobs, root, workers=int(workers))
    sys.stdout.write(json.dumps([outcome.state for outcome in outcomes]))


if __name__ == "__main__":
    main(*sys.argv[1:])
