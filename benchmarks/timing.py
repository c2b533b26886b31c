"""Times several actions side by side on a machine whose speed changes."""

import time
from collections.abc import Callable, Mapping

import torch

Clock = Callable[[], float]


def clock_of(device: torch.device | str) -> Clock:
    """Returns a clock in seconds; on a GPU it first waits for all queued work."""
    if torch.device(device).type != "cuda":
        return time.perf_counter

    def clock() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return clock


def interleaved(
    actions: Mapping[str, Callable[[], object]],
    num_rounds: int,
    clock: Clock = time.perf_counter,
) -> dict[str, tuple[float, ...]]:
    """Returns the seconds of every action in every round, after an untimed call of each.

    Every second round runs the actions in reverse, so that a machine that becomes slower or faster
    favours none.
    """
    for action in actions.values():
        action()
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for number in range(num_rounds):
        names = list(actions)
        for name in names[:: -1 if number % 2 else 1]:
            started = clock()
            actions[name]()
            seconds[name].append(clock() - started)
    return {name: tuple(measured) for name, measured in seconds.items()}
