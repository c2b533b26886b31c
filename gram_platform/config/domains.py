"""Names the core and unlabelled domains, and fixes the order of domains."""

CORE = "core"  # the domain D1 in every config, whatever the corpus calls it
UNLABELLED = "unlabelled"  # the pool of all domains' unlabelled text, under partial labels
UNLABELLED_OF = "unlabelled:"  # + domain: the domain's unlabelled text, if not pooled


def is_unlabelled(name: str) -> bool:
    """Tells whether a budget of this name draws sequences without their labels."""
    return name == UNLABELLED or name.startswith(UNLABELLED_OF)


def core_first(domains: tuple, name=lambda domain: domain) -> tuple:
    """Sorts domains (`name(item)`): core, then the others by name, so that equal mixtures are equal configs."""
    return tuple(sorted(domains, key=lambda d: (name(d) != CORE, name(d))))
