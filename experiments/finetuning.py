"""Does removal survive a stage of supervised finetuning?

Views of GRAM, filtering and three ways to unlearn are finetuned on generated instructions about
core's topics, such as "Who is ... at the mill?", then evaluated and attacked again. `stage` is
pretrained or finetuned; every compute ratio is to the pretrained baseline. The presets' loss is on
prompt and response alike; with `--instructions` it is on responses alone.

    python experiments/finetuning.py                         # demo: 0.15M, three seeds, 25 minutes
    python experiments/finetuning.py --preset smoke          # 2 CPU cores, about 2 minutes
    gram run finetuning --preset smoke --in-process          # the same by name, without Ray

Your own instructions are the lines of `--instructions FILE.jsonl`, each with `prompt` and
`response`, beside your own corpus (`--corpus FOLDER`), or records of the corpus with the label
`instructions`, whose text is prompt and response together and whose loss is on both. Pretraining
leaves them out.

Expect removal to survive: in the demo (0.15M, three seeds) forget falls with core, which the stage
lowers for the baseline too (.601). Before and after, in the methods' order from filtering on: core
.959 .561, .903 .553, .879 .626, .755 .561, 1.018 .604; forget .525 .345, .473 .333, .568 .439, .328
.377, .329 .299; elicited .776 .705, .686 .642, .898 .866, .807 .825, .612 .670. The smoke preset
shows nothing: GRAM's forget is .919 before and .876 after.
"""

from gram_platform.studies.library.finetuning import STUDY
from gram_platform.studies.searches.command import main

if __name__ == "__main__":
    main(STUDY)
