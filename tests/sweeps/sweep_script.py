"""A sweep in a process of its own, to be interrupted and killed: ROOT, list of settings, options of `sweep`."""

import json
import sys

from sweep_runs import job

from spherometer.sweeps import sweep


def main(root: str, settings: str, options: str) -> None:
    jobs = [job(number, **chosen) for number, chosen in enumerate(json.loads(settings))]
    outcomes = sweep(jobs, root, **json.loads(options))
    sys.stdout.write(json.dumps([[outcome.state, outcome.attempts, outcome.message] for outcome in outcomes]))


if __name__ == "__main__":
    main(*sys.argv[1:])
