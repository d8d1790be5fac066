"""Fixtures: a Ray cluster of several nodes on this machine. Without Ray, the tests are skipped with the reason."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.train.conftest import cache, corpus, tiny

__all__ = ["cache", "corpus", "tiny"]


@pytest.fixture(scope="package")
def cluster() -> Iterator[Any]:
    """A cluster whose head has no cores: work runs on the nodes that tests add."""
    pytest.importorskip("ray", reason="NO RAY FOUND: pip install 'keysift[ray]', or make test-scale")
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "OMP_NUM_THREADS": "1"}
    # A node starts slowly on a busy machine, where workers at Ray's niceness of 15 would hardly run.
    os.environ |= {"RAY_raylet_start_wait_time_s": "300", "RAY_worker_niceness": "0"}
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        yield cluster
    finally:
        cluster.shutdown()


@pytest.fixture
def nodes(cluster: Any) -> Iterator[list[Any]]:
    """Two nodes with one core each, removed after the test. Tests may remove and add nodes."""
    nodes = [cluster.add_node(num_cpus=1), cluster.add_node(num_cpus=1)]
    cluster.wait_for_nodes()
    yield nodes
    for node in list(cluster.worker_nodes):
        cluster.remove_node(node, allow_graceful=False)
