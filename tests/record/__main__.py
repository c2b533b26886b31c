"""Compares the ids with the record, or renews it; `campaign` trains at two commits and compares
what they wrote."""

import argparse
import sys

from tests.record import __doc__ as about
from tests.record.campaign import compare_with
from tests.record.ids import differences, found_ids, recorded_ids, write_ids


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.record",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("subject", nargs="?", choices=("ids", "campaign"), default="ids")
    parser.add_argument("--write", action="store_true", help="renew the record of ids")
    parser.add_argument(
        "--against", metavar="COMMIT", help="the commit that a campaign is compared with"
    )
    flags = parser.parse_args()
    if (flags.subject == "campaign") != bool(flags.against) or (flags.write and flags.against):
        parser.error("campaign needs --against COMMIT, and nothing else takes it")
    if flags.against:
        sys.exit(compare_with(flags.against))
    if flags.write:
        write_ids()
        return
    lines = differences(recorded_ids(), found_ids())
    print("\n".join(lines) or "equal")
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()
