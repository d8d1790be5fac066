"""List the presets with their exact parameter counts."""

from keysift.core.config import config


@config
class Args:
    json: bool = False
    """Print JSON."""
    markdown: bool = False
    """Print the table of docs/models.md."""


def run(args: Args) -> None:
    from keysift.cli.terminal import output
    from keysift.models.presets import markdown, rows

    if args.markdown:
        output.print_plain(markdown(), end="")
        return
    presets = rows()
    if args.json:
        output.print_json(presets)
        return
    table = output.table("Build a preset: keysift.models.presets.PRESETS.find(name).model()")
    for column in ("preset", "layers", "heads", "width", "parameters", "without embedding"):
        table.add_column(column, justify="left" if column == "preset" else "right")
    for row in presets:
        sizes = (f"{row[key]:,}" for key in ("layers", "heads", "width", "parameters", "non_embedding"))
        table.add_row(row["name"], *sizes)
    output.console().print(table)
