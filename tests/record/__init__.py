"""The record: the ids and bytes that a change of shape must leave as they are.

python -m tests.record                            # compare all ids with the committed file; minutes
python -m tests.record --write                    # renew the file, for a change that says what it
changes python -m tests.record campaign --against COMMIT  # train a smoke campaign at both commits,
and compare bytes
"""
