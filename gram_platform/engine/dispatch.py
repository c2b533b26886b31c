"""Executes one node: in this process, or on Ray Train workers."""

from collections.abc import Mapping

from gram_platform.config import AnyEvaluation, RunConfig
from gram_platform.engine.evaluation import execute_evaluation
from gram_platform.engine.execution import Execution, Resources
from gram_platform.engine.node import execute_run


def execute_node(
    config: RunConfig | AnyEvaluation, tags: Mapping[str, str], execution: Execution, resources: Resources
) -> dict:
    """The node's result: an evaluation or a run in this process, a run of several ranks on Ray Train's workers.

    Raises LeaseHeld before any worker is asked for while another process works on the run.
    """
    execution = execution.of_node(config, tags)
    if not isinstance(config, RunConfig):
        return execute_evaluation(config, tags, execution)
    if execution.num_ranks == 1:
        return execute_run(config, tags, execution)
    execution.store().run(config.run_id).require_free()
    from gram_platform.engine.sharded import execute_sharded_run  # Ray Train is slow to import

    return execute_sharded_run(config, tags, execution, resources)
