"""What a slot's process imports: its start is a second of CPU, and every library more adds to each slot's."""

import json
import subprocess
import sys

from gram_platform.engine.node import execute_run
from gram_platform.engine.slots import plain_nodes
from gram_platform.methods.nodes import method_nodes

# the libraries of drivers, trials and runs of several ranks
OF_OTHERS = ("ray.train", "ray.tune", "ray.data", "mlflow", "optuna", "pandas", "plotly", "scipy", "transformers")
OF_OTHERS += ("gram_platform.engine.dispatch", "gram_platform.engine.ranks", "gram_platform.train.sharding")
OF_COMPILER = ("torch._dynamo", "torch.distributed.fsdp")  # imported by torch's optimizers, and by no evaluation
SLOT = """
import json, sys
from gram_platform.engine.execution import Execution, Resources
from gram_platform.engine.slots import execute_plain
storage, *tasks = json.load(sys.stdin)
for task, absent in tasks:
    execute_plain(task, Execution(storage), Resources())
    found = set(absent) & set(sys.modules)
    assert not found, found
"""


def test_a_slot_imports_what_its_nodes_need(setting, execution):
    trained, evaluation, *_ = method_nodes("baseline", setting)
    run = method_nodes("gram", setting)[0]
    execute_run(trained.config, trained.names, execution)
    tasks = [(plain_nodes([evaluation]), OF_OTHERS + OF_COMPILER), (plain_nodes([run]), OF_OTHERS)]
    given = json.dumps([execution.storage, *tasks])
    command = [sys.executable, "-c", SLOT]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    store = execution.store()
    assert store.evaluation(evaluation.id).result()
    assert store.run(run.id).result()
