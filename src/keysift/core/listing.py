"""Long lists in messages."""

from collections.abc import Sequence


def first_three(items: Sequence[str], separator: str = "; ") -> str:
    """The first three items and the number of the others: "a; b; c and 4 more"."""
    more = f" and {len(items) - 3} more" if len(items) > 3 else ""
    return separator.join(items[:3]) + more
