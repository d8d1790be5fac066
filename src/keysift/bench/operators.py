"""Which operators of torch the time of a function is spent in."""

from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile


def operator_shares(run: Callable[[], object], most: int = 8) -> dict[str, float]:
    """Share of the time that each operator took itself, largest first, at most this many. Calls `run` twice."""
    run()
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        run()
    times = {event.key: event.self_cpu_time_total for event in recorded.key_averages()}
    total = sum(times.values())
    return {name: times[name] / total for name in sorted(times, key=times.__getitem__, reverse=True)[:most]}
