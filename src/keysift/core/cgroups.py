"""Find the control groups that limit this process, in both versions of cgroups."""

from collections.abc import Iterator
from pathlib import Path

ROOT, GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def folders(controller: str, root: Path = ROOT, groups: Path = GROUPS) -> Iterator[tuple[Path, int]]:
    """Folder and cgroup version (1 or 2) of every group of this process, from its own up to the root."""
    try:
        lines = [line.split(":", 2) for line in groups.read_text().splitlines()]
    except OSError:
        return
    for _, controllers, path in lines:
        if controllers == "":
            top, version = root, 2
        elif controller in controllers.split(","):
            top = next((folder for folder in (root / controllers, root / controller) if folder.is_dir()), root)
            version = 1
        else:
            continue
        # Inside a container, the root is the container's own group, whatever the path says.
        own = top / path.lstrip("/")
        yield from ((folder, version) for folder in (own, *own.parents) if folder.is_relative_to(top))


def read_number(path: Path) -> int | None:
    """The number in a cgroup file; None if the file is missing or says `max`."""
    try:
        return int(path.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
