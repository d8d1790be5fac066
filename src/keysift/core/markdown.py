"""Markdown tables, for pages that are generated."""


def table_head(*titles: str) -> list[str]:
    """The two lines that start a table."""
    return [table_row(*titles), "|" + "---|" * len(titles)]


def table_row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
