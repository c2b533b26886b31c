"""Which attack gives a removed capability back: of all weights or adapters, on which text?

GRAM, filtering and three ways to unlearn, each attacked in four ways with one budget; `attack` is
the kind. `full` trains all weights on the removed domain, `lora` adapters of the MLPs at ten times
the rate, `neighbour` all weights on the next auxiliary domain by name, `core` on core's first
sequences. The last two never see the removed domain's text.

    # demo: the runs of stories.py at 0.15M, four attacks each
    python experiments/attack_kinds.py
    # 2 CPU cores, about 2 minutes
    python experiments/attack_kinds.py --preset smoke
    gram run attack_kinds --preset smoke --in-process        # the same by name, without Ray

Expect little of the smoke preset, where 49 steps isolate nothing (one seed; elicited by full, lora,
neighbour, core): filtering .847 .840 .838 .831 from forget .837, GRAM .941 .938 .931 .929 from
.937, RMU 1.005 .990 .992 .977 from .981.

In the demo (three seeds) full finetuning gives most back for every method, adapters .02 to .14
less. By full, lora, neighbour and core: filtering .833 .786 .498 .498 from forget .499, GRAM .803
.782 .525 .521 from .523, MaxEnt 1.012 .923 .663 .629 from .626, RMU .713 .575 .416 .123 from .120,
GradDiff .655 .586 .331 .329 from .327. Text of the next domain alone brings RMU back: it hides more
than it deletes.
"""

from gram_platform.studies.library.attack_kinds import STUDY
from gram_platform.studies.searches.command import main

if __name__ == "__main__":
    main(STUDY)
