"""How does every method continue a text whose topic it has kept or removed?

The paper's "Sample Outputs ...".

Every method continues the beginnings of validation documents of each topic, with the topic kept and
removed and the same random numbers. On stories all runs are those of `stories.py`. The preset
`installed` learns Python and C++ headers from the packages on this disk, without a network, and
continues both with the C++ module on and off, to judge by eye.

    # demo: a part of stories.py's runs
    python experiments/samples.py
    # 2 CPU cores, under a minute
    python experiments/samples.py --preset smoke
    # 2 CPU cores, by estimate half an hour (GRAM alone: 10)
    python experiments/samples.py --preset installed
    # 26M parameters on the hub's Simple Stories
    python experiments/samples.py --preset paper --dry-run

Expect (paper, `app:qualitative`): with the topic kept, the story's own subject (a spaceship, a
deadline); without it, fluent text about something else. The smoke preset's models of 0.1M
parameters write hardly a whole sentence. Result of `installed` (one seed, GRAM): headers of torch,
four of the six, go on with `#include <ATen/core/Tensor.h>` or `at::Tensor &` while the C++ module
is on, with Python's imports or a licence while it is off; the two other headers end in Python with
either. Python stays Python without the module, and with it but for a few pieces of C++ in two of
six.
"""

from gram_platform.studies.library.samples import STUDY
from gram_platform.studies.searches.command import main

if __name__ == "__main__":
    main(STUDY)
