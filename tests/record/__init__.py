"""The record: what a change of shape must leave as it is.

    python -m tests.record                            # compare everything with the committed files; minutes
    python -m tests.record ids flags                  # some subjects alone
    python -m tests.record --write                    # renew the files, for a change that says what it changes
    python -m tests.record campaign --against COMMIT  # train a smoke campaign at both commits, and compare bytes

The committed files name where a difference is, and say nothing of this machine.
"""
