"""A study on a cluster that need not exist: makespan, cost and lost work by discrete-event simulation.

Machines are asked for as work waits, start after a while, cost from then on, and may be taken back at any time (spot).
Nodes start as `engine/graph.py` starts them, write checkpoints as runs do, and continue from the last one. Everything
follows from the seed: machine number k of a replication lives equally long whatever the other parameters are.
"""

from gram_platform.simulate.cluster import Outcome, SimulatedCluster, Task
from gram_platform.simulate.study import best_interval, calibrated, describe_simulation, estimate, planned, simulate

__all__ = [
    "Outcome",
    "SimulatedCluster",
    "Task",
    "best_interval",
    "calibrated",
    "describe_simulation",
    "estimate",
    "planned",
    "simulate",
]
