"""Compares the code with the record, or renews it; `campaign` trains at two commits and compares what they wrote."""

import argparse
import sys
from collections.abc import Iterable

from tests.record import __doc__ as about
from tests.record.campaign import compare_with
from tests.record.files import differences, found, recorded, write
from tests.record.subjects import SUBJECTS

CAMPAIGN = "campaign"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.record", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=f"{', '.join(SUBJECTS)}, or {CAMPAIGN}")
    parser.add_argument("--write", action="store_true", help="renew the files in place of comparing")
    parser.add_argument("--against", metavar="COMMIT", default="", help=f"of {CAMPAIGN}: the commit to compare with")
    flags = parser.parse_args()
    if unknown := set(flags.subjects) - {*SUBJECTS, CAMPAIGN}:
        parser.error(f"subjects={', '.join(sorted(unknown))!r}: expected some of {', '.join(SUBJECTS)}, or {CAMPAIGN}")
    if CAMPAIGN in flags.subjects or flags.against:
        if flags.subjects != [CAMPAIGN] or not flags.against or flags.write:
            parser.error(f"{CAMPAIGN} stands alone with --against COMMIT, which nothing else takes")
        sys.exit(compare_with(flags.against))
    chosen = flags.subjects or SUBJECTS
    if flags.write:
        renew(chosen)
    elif not all([is_equal(subject) for subject in chosen]):  # noqa: C419 - every subject is compared
        sys.exit(1)


def renew(subjects: Iterable[str]) -> None:
    for subject in subjects:
        write(subject, found(subject))
        print(f"{subject}: written", flush=True)


def is_equal(subject: str) -> bool:
    """Prints the differences from the record, and tells whether there are none."""
    lines = differences(recorded(subject), found(subject))
    print("\n".join([f"{subject}: {'DIFFERENT' if lines else 'equal'}", *lines]), flush=True)
    return not lines


if __name__ == "__main__":
    main()
