"""Runs the `gram` command as `python -m gram_platform`."""

from gram_platform.cli import main

if __name__ == "__main__":
    main()
