"""What a slot's process imports: its start is a second of CPU, and every library more adds to each
slot's.
"""

import pickle
import subprocess
import sys

from gram_platform.engine.node import execute_run
from gram_platform.methods.nodes import method_nodes

# the libraries of drivers, trials and runs of several ranks
OF_OTHERS = (
    "ray.train",
    "ray.tune",
    "ray.data",
    "mlflow",
    "optuna",
    "pandas",
    "plotly",
    "scipy",
    "transformers",
)
OF_OTHERS += (
    "gram_platform.engine.dispatch",
    "gram_platform.engine.ranks",
    "gram_platform.train.sharding",
)
# Imported by torch's optimizers, and by no evaluation.
OF_COMPILER = ("torch._dynamo", "torch.distributed.fsdp")
SLOT = """
import pickle, sys
from gram_platform.engine import slots
execution, *tasks = pickle.load(sys.stdin.buffer)
for task, absent in tasks:
    slots.execute_task(task, execution)
    found = set(absent) & set(sys.modules)
    assert not found, found
"""


def test_a_slot_imports_what_its_nodes_need(setting, execution):
    trained, evaluation, *_ = method_nodes("baseline", setting)
    run = method_nodes("gram", setting)[0]
    execute_run(trained.config, trained.names, execution)
    tasks = [((evaluation,), OF_OTHERS + OF_COMPILER), ((run,), OF_OTHERS)]
    command = [sys.executable, "-c", SLOT]
    done = subprocess.run(
        command, input=pickle.dumps([execution, *tasks]), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    store = execution.store()
    assert store.evaluation(evaluation.id).result()
    assert store.run(run.id).result()
