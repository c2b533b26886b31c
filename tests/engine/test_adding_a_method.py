"""The recipe of docs/extend.md for a new method, followed to the letter."""

from gram_platform.config import CORE, View
from gram_platform.engine.evaluation import execute_evaluation
from gram_platform.engine.node import execute_run
from gram_platform.methods import METHODS
from gram_platform.methods.budgets import dense_run
from gram_platform.methods.nodes import method_nodes, require_closed
from gram_platform.methods.setting import MethodRuns, Setting


def core_only(setting: Setting) -> MethodRuns:
    run = dense_run(setting, (CORE,), 0, setting.routing.accumulation)
    return MethodRuns({"core": run}, {(): View.of(run.run_id)})


def test_a_method_is_one_function_and_one_line(execution, setting, monkeypatch):
    monkeypatch.setitem(METHODS, "core_only", core_only)
    run, evaluation = nodes = method_nodes("core_only", setting)
    require_closed(nodes)
    execute_run(run.config, run.names, execution)
    losses = execute_evaluation(evaluation.config, evaluation.names, execution)["losses"]
    assert set(losses) == set(setting.num_sequences)
    assert evaluation.names["profile"] == "core"
