# ruff: noqa: F401 - the names that other rooms import from here
"""Defines a run as a value: frozen dataclasses that determine a training stage, and their ids.

`RunConfig` holds everything that can change a result and nothing else: no paths, names, hardware or
tracking. Equal configs are the same run on every machine; `run_id` hashes the config's canonical
JSON. `dataclasses.replace(run, ...)` makes a variant. The dataclasses need only the standard
library.
"""

from gram_platform.config.run import (
    RECIPE_VERSION,
    RunConfig,
    State,
    hash_run,
    node_from_plain,
    run_from_plain,
)
from gram_platform.config.training import (
    CORE,
    UNLABELLED,
    UNLABELLED_OF,
    DataConfig,
    DomainBudget,
    EvalPoints,
    ModelConfig,
    ModuleSpec,
    Objective,
    OptimizerConfig,
    RoutingConfig,
    Slice,
    core_first,
    is_unlabelled,
)
from gram_platform.config.view import (
    EVAL_VERSION,
    IMPORTED,
    LOSSES,
    AnyEvaluation,
    Continuations,
    Evaluation,
    TaskScores,
    TokenLosses,
    View,
    evaluation_from_plain,
)
