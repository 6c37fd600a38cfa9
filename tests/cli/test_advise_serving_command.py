"""``punctual advise serving``: as a user calls it."""

import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.advise import app

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "04-serving"
QUICK = ["--duration", "300ms", "--max-duration", "300ms", "--warm-up", "50ms"]


@pytest.fixture
def server():
    running = subprocess.Popen([sys.executable, str(EXAMPLE / "server.py"), "0"], stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    yield running.stdout.readline().strip()
    running.kill()
    running.wait()


def arguments(url: str, folder: Path, *more: str) -> list[str]:
    given = ["--target", url, "--profile", str(EXAMPLE / "requests.jsonl"), "--goals", str(EXAMPLE / "success.yaml")]
    return ["serving", *given, "--dir", str(folder), *more]


def test_the_example(server: str, tmp_path: Path) -> None:
    """A run prints bracket, curve, price and where it is kept, as text and as JSON; a finished one is only shown."""
    asked = arguments(server, tmp_path / "run", *QUICK, "--start-rate", "10", "--max-rate", "10", "--gpus", "1")
    asked += ["--prices", str(EXAMPLE / "prices.yaml"), "--flavor", "a100"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 3, done.output
    assert "trial 1: 10/s pass" in done.stderr
    assert "Sustainable: at least 10 requests a second; no higher rate has failed twice." in done.stdout
    assert "error: the highest rate, 10 a second, passes (--max-rate)" in done.stderr
    assert "EUR (within the budget of 0.0001)" in done.stdout
    again = CliRunner().invoke(app, [*asked, "-o", "json"])
    told = json.loads(again.stdout)
    assert again.exit_code == 3
    assert "trial 3" not in again.stderr
    assert (told["found"], told["bracket"]["highestPassing"], told["bracket"]["lowestFailing"]) == (False, 10, None)
    assert told["perGoodAnswer"]["cost"] == pytest.approx(told["perGoodAnswer"]["gpuSeconds"] / 3600 * 2.5)
    assert [trial["verdict"] for trial in told["trials"]] == ["pass", "pass"]
    assert [point["rate"] for point in told["curve"]] == [10]
    assert told["fingerprint"]["target"] == server
    other = CliRunner().invoke(app, [*asked, "--seed", "1"])
    assert other.exit_code == 4
    assert f"{tmp_path / 'run'} holds a run of something else; give another --dir (trials: was " in other.stderr


def test_ctrl_c_keeps_what_is_done(server: str, tmp_path: Path) -> None:
    """Ctrl-C ends the run at once with exit code 130, tells what is known, and keeps the trials that were done."""
    asked = arguments(server, tmp_path / "run", *QUICK, "--start-rate", "10", "--max-rate", "10")
    command = [sys.executable, "-c", "from cli.main import main; main()", "advise", *asked]
    run = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert run.stderr is not None
    told = ""
    for line in run.stderr:
        told += line
        if line.startswith("trial 2: "):  # it begins
            run.send_signal(signal.SIGINT)
            break
    out, rest = run.communicate(timeout=60)
    assert run.returncode == 130, told + rest
    assert "interrupted; the same command goes on from here" in rest
    assert "1 trial, kept in" in out
    assert len((tmp_path / "run" / "trials.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (
            ["--target", "http://gpu-1:8000"],
            2,
            "gpu-1 is not this machine; if it may be put under load, add --allow",
        ),
        (["--service", "chat"], 2, "has no service chat; it has adding"),
        (["--duration", "60"], 2, 'error: --duration: "60" has no unit; write 60s'),
        (["--start-rate", "0"], 2, "--start-rate is 0; it must be more than 0"),
        (["--start-rate", "2000"], 2, "--start-rate 2000 is not from 0.05 (--min-rate) to 1000"),
        (["--width", "10"], 2, "--width is 10; it must be from 0.01 (1 %) to 1 (100 %)"),
        (["--gpus", "0"], 2, "--gpus is 0; it must be more than 0"),
        (["--gpus", "1", "--prices", str(EXAMPLE / "prices.yaml")], 2, "has no price for *; it has a100"),
        (["--api-key-env", "NO_SUCH_KEY"], 2, "the environment has no NO_SUCH_KEY"),
        (["--profile", "/no/such/file"], 1, "/no/such/file: cannot be read: No such file"),
        (["--profile", str(EXAMPLE / "success.yaml")], 1, "success.yaml:1: is no JSON"),
        (["--goals", str(EXAMPLE / "prices.yaml")], 1, "currency: is not known"),
        (
            ["--target", "http://127.0.0.1:9"],
            1,
            "no result for request 1, without any load: no connection",
        ),
        (["--facts-command", "exit 3"], 1, "--facts-command failed with exit code 3"),
        (["--dir", str(EXAMPLE / "prices.yaml")], 1, "--dir: "),
    ],
)
def test_bad_usage(tmp_path: Path, more: list[str], code: int, said: str) -> None:
    """Each mistake is told in a line, with what to do about it; nothing is sent."""
    done = CliRunner().invoke(app, arguments("http://127.0.0.1:9", tmp_path / "run", *more))
    assert (done.exit_code, said in done.stderr) == (code, True), done.stderr
    assert not (tmp_path / "run").exists(), "nothing was measured, so nothing stays behind"
    assert done.stdout == ""


def test_goals_without_a_service(tmp_path: Path) -> None:
    """Success metrics of tasks alone have nothing to measure here."""
    (tmp_path / "success.yaml").write_text("version: 1\ntasks: {t: {match: {family: t}}}")
    asked = arguments("http://127.0.0.1:9", tmp_path / "run", "--goals", str(tmp_path / "success.yaml"))
    done = CliRunner().invoke(app, asked)
    assert (done.exit_code, "success.yaml names no service; write its goals there" in done.stderr) == (2, True)


def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where aiohttp is not installed, it is said how to install it."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = CliRunner().invoke(app, arguments("http://127.0.0.1:9", tmp_path))
    assert done.exit_code == 1
    assert "install it with: python -m pip install 'kueue-punctual[serving]'" in done.stderr


def test_the_page(server: str, tmp_path: Path) -> None:
    """Commands of docs/serving.md are ones that exist, and its requests and goals are read."""
    from advisor.serving_profile import read_profile
    from advisor.success import read_success

    page = (ROOT / "docs" / "serving.md").read_text()
    blocks = {
        kind: [block.partition("```")[0] for block in page.split(f"```{kind}\n")[1:]] for kind in ("jsonl", "yaml")
    }
    for text in blocks["jsonl"]:
        assert read_profile(text, model="m").requests
    for text in blocks["yaml"]:
        assert read_success(text).services
    shown = [line for line in page.splitlines() if line.startswith("$ punctual advise serving")]
    assert shown
    for line in shown:
        words = shlex.split(line.removeprefix("$ punctual advise "))
        words[words.index("--target") + 1] = server
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(ROOT)
            done = CliRunner().invoke(app, [*words, "--dir", str(tmp_path / "r"), *QUICK, "--max-trials", "1"])
        assert done.exit_code == 3, done.output
        assert "--max-trials 1 is used up" in done.stderr
