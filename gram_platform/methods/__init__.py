"""The methods: each a function from a setting to runs and views, and the one table of them."""

from gram_platform.identity import require_choice
from gram_platform.methods import baseline, filtering, gram
from gram_platform.methods.setting import Plans, Profile, Setting

METHODS = {
    "baseline": baseline.plan,
    "filtering": filtering.plan,
    "gram": gram.plan,
}


def plan(method: str, setting: Setting) -> Plans:
    """The runs and views of a method in a setting; ValueError for an unknown method."""
    require_choice("methods", method, tuple(METHODS))
    return METHODS[method](setting)


__all__ = ["METHODS", "Plans", "Profile", "Setting", "plan"]
