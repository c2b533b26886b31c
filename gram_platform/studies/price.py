"""Predicts what is left of a submission in hours and dollars; high prices need the user's word."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gram_platform.config.identity import invalid
from gram_platform.config.terminal import say
from gram_platform.methods.nodes import Node, unique
from gram_platform.planner import Machine, evaluation_hours, expected_hours
from gram_platform.studies.plan import StudyPlan


def amount(value: float) -> str:
    return f"{value:,.2f}" if value >= 1 or not value else f"{value:.2g}"


def planned_hours(
    nodes: Iterable[Node], machine: Machine, ids: Collection[str] | None = None
) -> float:
    """Returns the machine hours that the planner expects of runs and of evaluations of their views.

    `ids`: of the nodes that count; by default all.
    """
    nodes = list(nodes)
    runs = {node.id: node for node in nodes if node.is_run}
    counted = [node for node in nodes if ids is None or node.id in ids]
    hours = sum(expected_hours(node, machine) for node in counted)
    return hours + evaluation_hours(counted, runs, machine)


def rung_text(
    of_size: Mapping[str, Sequence[Node]], spent: float, machine: Machine, has_failed: bool
) -> str:
    """Returns the hours of the first size, and those of the next at the same ratio to the plan, if
    any, in words.

    `of_size`: the nodes of both sizes.
    """
    (size, predicted), *following = (
        (one, planned_hours(nodes, machine)) for one, nodes in of_size.items()
    )
    text = f"{size}: {spent:.3g} {machine.name} hours spent, {predicted:.3g} predicted"
    for one, planned in following:
        hours = planned * spent / predicted
        text += (
            f"; {one}: {planned:.3g} predicted, {hours:.3g}"
            f" (${hours * machine.dollars_per_hour:,.2f}) "
        )
        text += f"at the ratio of {size}"
        if has_failed:
            text += f"; it is not started, because nodes of {size} have failed"
    return text


# ---------------------------------------------------------------------------- before money is spent


@dataclass(frozen=True)
class Left:
    """The nodes of a study or a search that are not done.

    Nodes of several studies are counted at the first.
    """

    part: StudyPlan
    ids: frozenset[str]
    # The share of these nodes that will be executed: below 1 in an Optuna search that has complete
    # trials.
    share: float

    def hours(self, machine: Machine) -> float:
        return self.share * planned_hours(self.part.nodes, machine, self.ids)


def work_left(studies: Iterable[StudyPlan], done: Collection[str]) -> list[Left]:
    """Returns what is left of each study or search that has nodes other than those that are `done`,
    by id."""
    seen, found = set(done), []
    for part in studies:
        ids = {node.id for node in part.nodes} - seen
        seen |= ids
        if ids and (share := part.share_left()):
            found.append(Left(part, frozenset(ids), share))
    return found


def price(work: Iterable[Left], machine: Machine | None = None) -> tuple[str, float]:
    """Returns the predicted hours and dollars as a text, and the dollars.

    `machine`: that executes all of it; by default each study's own, of --machine.
    """
    hours: dict[Machine, float] = {}
    for one in work:
        on = machine or one.part.machine
        hours[on] = hours.get(on, 0.0) + one.hours(on)
    dollars = sum(number * on.dollars_per_hour for on, number in hours.items())
    return (
        (
            f"{' and '.join(f'{amount(h)} {on.name} hours' for on, h in hours.items())},"
            f" ${dollars:,.2f}"
        ),
        dollars,
    )


def predicted(work: Sequence[Left]) -> str:
    """Returns in words what a submission has left to execute, and its price."""
    if not work:
        return "predicted: nothing is left to execute"
    names = ", ".join(dict.fromkeys(one.part.name for one in work))
    return (
        f"predicted: {sum(len(one.ids) for one in work)} nodes of {names} are not done,"
        f" {price(work)[0]}"
    )


def require_approval(work: Sequence[Left], confirm_above: float) -> None:
    """Prints the predicted price of what is left.

    ValueError above --confirm-above without --yes or --max-cost. Nobody is asked: a job and a
    restart have no terminal.
    """
    if not work:
        return
    dollars = price(work)[1]
    say(predicted(work))
    if dollars > confirm_above:
        said = f"${dollars:,.2f} are more than --confirm-above {confirm_above:g}"
        expected = f"--yes, since {said}, or --max-cost DOLLARS, at which nothing more is started"
        raise invalid("yes", False, expected)


def sharing(studies: Sequence[StudyPlan]) -> str:
    """Returns the number of runs of all studies, and the saving by training each run once."""
    runs = [node for part in studies for node in part.nodes if node.is_run]
    machine, union = studies[0].machine, unique(runs)
    alone, together = (sum(expected_hours(node, machine) for node in of) for of in (runs, union))
    saved = (
        f"{len(runs) - len(union)} saved by sharing ({alone - together:,.2f} {machine.name} hours)"
    )
    return f"all studies: {len(union)} runs, {saved}"
