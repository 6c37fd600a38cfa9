"""A real Kubernetes and Kueue for the tests, with Punctual's manifests applied.

One cluster serves the whole run; each test gets namespaces and queues of its own, so that none disturbs another.

=============================  ========================================================================================
``cluster``                    the :class:`LocalCluster` (session): ``.api(method, path, body)``, ``.kubectl(*words)``,
                               ``.kubeconfig``, ``.stop/start/kill(name)``, ``.token(namespace, account)``
``punctual_kubeconfig``        path of a kubeconfig with the controller's own ServiceAccount token (session): what its
                               RBAC forbids is forbidden to who uses it
``make_team(gpus=4, ...)``     a fresh :class:`Team`: namespace, LocalQueue, ClusterQueue, flavor; gone after the test
``team``                       one with 4 GPUs, opted in
``punctual``                   a :class:`Punctual`: planner and controller running, as processes (module; ends with it)
``wait_until(check, what)``    polls until ``check()`` is true; returns what it returned
=============================  ========================================================================================

A :class:`tests.kueue.team.Team` makes Jobs (``team.job("a", gpus=2, run_for=3)``) and reads them, their Workloads and
conditions back.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from localcluster.cluster import LocalCluster
from localcluster.errors import LocalClusterError
from localcluster.policies import wait_for_policies
from tests.kueue.oracle_cases import RESOURCES
from tests.kueue.punctual import Punctual
from tests.kueue.team import KUEUE, Team, condition_of, new_team, remove_team, wait_for

__all__ = ["KUEUE", "Team", "condition_of", "wait_for"]

MANIFESTS = Path(__file__).parents[2] / "manifests"


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """The cluster of this run, with Punctual's manifests applied and acting."""
    configuration = {"resources": RESOURCES}
    yield from with_punctual(LocalCluster(tmp_path_factory.mktemp("cluster"), configuration=configuration))


def with_punctual(local: LocalCluster) -> Iterator[LocalCluster]:
    """Start a cluster, with Punctual's manifests applied and acting; take it down in the end."""
    try:
        local.stop_with_me()
        local.up()
        local.kubectl("apply", "--server-side", "-k", MANIFESTS)
        team = new_team(local, "probe", 1, True, "default", None, {})
        wait_for_policies(local, team.name, team.queue)
        remove_team(team)
        yield local
    except LocalClusterError as error:
        pytest.fail(str(error), pytrace=False)
    finally:
        local.down()


@pytest.fixture(scope="session")
def punctual_kubeconfig(cluster: LocalCluster) -> Path:
    """Kubeconfig of the controller's ServiceAccount, with a real token."""
    token = cluster.token("punctual-system", "punctual-controller")
    return cluster.kubeconfig_as(token, cluster.folder / "punctual-controller.kubeconfig")


_numbers = itertools.count(1)


@pytest.fixture
def make_team(cluster: LocalCluster) -> Iterator[Callable[..., Team]]:
    """Makes fresh teams.

    ``make_team(gpus=4, managed=True, queue="lq", cohort=None, **spec)``: ``gpus`` is the quota, ``managed`` opts the
    namespace in, ``spec`` is added to the ClusterQueue's spec (``queueingStrategy="StrictFIFO"``, ``preemption={…}``).
    """
    made: list[Team] = []

    def make(gpus: int = 4, *, managed: bool = True, queue: str = "lq", cohort: str | None = None, **spec: Any) -> Team:
        made.append(new_team(cluster, f"team-{next(_numbers)}", gpus, managed, queue, cohort, spec))
        return made[-1]

    yield make
    for each in made:
        remove_team(each)


@pytest.fixture
def team(make_team: Callable[..., Team]) -> Team:
    """A team with 4 GPUs in an opted-in namespace."""
    return make_team(4)


@pytest.fixture(scope="module")
def punctual(punctual_kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Punctual]:
    """Planner and controller, running. A test that ends one starts it again."""
    running = Punctual(punctual_kubeconfig, tmp_path_factory.mktemp("punctual"))
    try:
        running.start()
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="session")
def wait_until() -> Callable[..., Any]:
    """:func:`wait_for`, for tests."""
    return wait_for
