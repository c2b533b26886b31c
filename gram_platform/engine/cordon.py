"""Keeps a driver's work off machines whose device does not work.

Only a failed probe cordons a machine, never the error of a run. The cordon lives as long as its driver: a submission
begins without one and probes anew, so a mended machine takes part again.
"""

import time
from collections.abc import Callable
from dataclasses import replace

from gram_platform.config.endings import SUBMIT_AGAIN
from gram_platform.engine.capacity import has_fixed_size, slots, usable_machines
from gram_platform.engine.cluster import ClusterLost
from gram_platform.engine.devices import ProbeReport
from gram_platform.engine.execution import Resources

# Replacements of cordoned machines that a cluster is asked for, one after another, until one
# passes.
MAX_REPLACEMENTS = 3


class Cordon:
    """The machines that take nothing more of one driver; `resources` are the driver's, without those machines."""

    def __init__(self, resources: Resources, on_cordon: Callable[[ProbeReport], None] = lambda report: None):
        """`on_cordon` is called with the report of each machine that is cordoned."""
        self.resources, self._on_cordon = resources, on_cordon
        self.reports: dict[str, ProbeReport] = {}
        self._passed: set[str] = set()
        # When the last machine was cordoned, by the monotonic clock.
        self.changed = 0.0
        # Machines that failed since one passed for the first time.
        self._failures_in_a_row = 0
        # None until it is asked, once.
        self._is_fixed: bool | None = None

    def note(self, report: ProbeReport) -> bool:
        """Notes the outcome of a probe; returns whether the device works."""
        if not report.failure:
            if report.machine not in self._passed:
                self._failures_in_a_row = 0
            self._passed.add(report.machine)
        elif report.machine not in self.reports:
            self.reports[report.machine] = report
            self.changed = time.monotonic()
            self._failures_in_a_row += 1
            self.resources = replace(self.resources, cordoned=tuple(self.reports))
            self._on_cordon(report)
        return not report.failure

    @property
    def may_grow(self) -> bool:
        """Whether the cluster may be asked for more machines: not after `MAX_REPLACEMENTS` that failed too."""
        return self._failures_in_a_row <= MAX_REPLACEMENTS

    def require_machines(self, num_ranks: int = 1) -> None:
        """Raises ClusterLost, naming machines and probes, when the cluster lacks capacity for the ranks."""
        if self.lacks_capacity(num_ranks):
            found = "\n".join(f"  {report}" for report in self.reports.values())
            what = "a device that works" if num_ranks == 1 else f"capacity for {num_ranks} ranks on devices that work"
            raise ClusterLost(f"this cluster has no machine with {what}:\n{found}\n{SUBMIT_AGAIN}")

    def lacks_capacity(self, num_ranks: int) -> bool:
        """Returns whether the ranks do not fit on the machines that are not cordoned, and never will.

        False before a machine is cordoned: waiting for machines has no time limit.
        """
        if not self.reports or self._capacity() >= num_ranks:
            return False
        if self._is_fixed is None:
            self._is_fixed = has_fixed_size()
        return self._is_fixed or not self.may_grow

    def _capacity(self) -> int:
        """Counts the ranks that fit on the machines that are not cordoned."""
        return sum(slots(self.resources, machine) for machine in usable_machines(self.resources))
