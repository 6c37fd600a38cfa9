"""Against servers and models by others: an OpenAI-compatible server, and a model that reads digits."""

import asyncio
import json
import subprocess
import sys
import threading
import time
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import platformdirs
import pytest
from serving_servers import Handler, Heard, free_port, options, process, reply, serving

from advisor.serving import measure
from advisor.serving_report import report
from advisor.serving_store import Store

RESPONSES = """
responses:
  "capital of Portugal?": It is Lisbon.
  "2+2?": That makes 4.
  # When it streams, mockllm 0.0.8 looks up the answer once more, as if it were a question.
  It is Lisbon.: It is Lisbon.
  That makes 4.: That makes 4.
defaults: {unknown_response: "I do not know."}
settings: {lag_enabled: true, lag_factor: 20}
"""


def test_an_openai_compatible_server(tmp_path: Path) -> None:
    """mockllm streams its answers letter by letter: they are put together, timed, counted and judged."""
    (tmp_path / "responses.yml").write_text(RESPONSES)
    profile = '{"prompt": "capital of Portugal?", "expected": "lisbon"}\n{"prompt": "2+2?", "expected": "4"}'
    goals = (
        "{goals: {ttft: {p90: 2s}, perToken: {p90: 1s}, endToEnd: {p90: 5s}}, timeout: 10s,"
        " quality: {threshold: 0.9, judge: {kind: contains, ignoreCase: true}}}"
    )
    port, heard = free_port(), Heard()
    command = [sys.executable, "-m", "uvicorn", "mockllm.server:app", "--port", str(port), "--log-level", "error"]
    with process(command, port, MOCKLLM_RESPONSES_FILE=str(tmp_path / "responses.yml")) as url:
        asked = options(url, goals, profile, model="gpt-4", start=8.0, most=8.0, trials=2, seconds=0.5, longest=0.5)
        with Store(tmp_path / "run") as store:
            asyncio.run(measure(asked, store, heard))
            assert store.fingerprint is not None
            assert store.fingerprint["target"] == url
    for trial in heard.trials:
        assert (trial.verdict, trial.quality, trial.answered) == ("pass", 1.0, 4)
        # A letter takes 1/200 s, give or take half of that; the whole answer 13 letters.
        assert trial.times["perToken"]["p90"] >= 3
        assert trial.times["ttft"]["p90"] <= trial.times["endToEnd"]["p90"] - 12 * 3


def digit_reader(waiting: int) -> tuple[Handler, list[tuple[list[float], int]]]:
    """A server that reads digits, one at a time, 40 ms each, and data it has not learned from.

    Its queue is bounded: what finds no place is read by a model that looks at six pixels only, at once.
    """
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression

    pixels, labels = load_digits(return_X_y=True)
    few = [20, 21, 28, 36, 43, 44]
    careful = LogisticRegression(max_iter=300).fit(pixels[:1000] / 16, labels[:1000])
    quick = LogisticRegression(max_iter=300).fit(pixels[:1000, few] / 16, labels[:1000])
    pool, inside, lock = ThreadPoolExecutor(1), [0], threading.Lock()

    def read(image: list[float]) -> int:
        time.sleep(0.04)
        found = careful.predict([[value / 16 for value in image]])
        with lock:
            inside[0] -= 1
        return int(found[0])

    async def handle(asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        with lock:
            full = inside[0] > waiting
            inside[0] += not full
        if full:
            label = int(quick.predict([[asked["pixels"][k] / 16 for k in few]])[0])
        else:
            label = await asyncio.get_running_loop().run_in_executor(pool, read, asked["pixels"])
        await reply(writer, {"digit": label})

    return handle, list(zip(pixels[1000:].tolist(), labels[1000:].tolist(), strict=True))


@pytest.mark.long
def test_a_model_that_gets_worse_under_load(tmp_path: Path) -> None:
    """Response times of a model behind a bounded queue never fail; how well it reads does, and that is its limit."""
    handler, data = digit_reader(waiting=3)
    profile = "\n".join(json.dumps({"body": {"pixels": image}, "expected": label}) for image, label in data)
    goals = (
        "{goals: {endToEnd: {p95: 3s}}, timeout: 10s, quality: {threshold: 0.88, judge: {kind: exact, field: digit}}}"
    )
    heard = Heard()
    with serving(handler) as url:
        asked = options(
            url, goals, profile, start=5.0, width=0.5, most=400.0, seconds=20.0, longest=20.0, warm_up=1.0, trials=30
        )
        with Store(tmp_path) as store:
            asyncio.run(measure(asked, store, heard))
            found = report(store.trials, asked.service, 0.5, None)
    slow = [trial for trial in heard.trials if trial.rate <= 5]
    assert all(trial.verdict == "pass" and trial.quality > 0.88 for trial in slow)
    assert found.found, found.bracket
    assert 5 <= found.bracket.low < found.bracket.high <= 40  # one at a time, 40 ms each: 25 a second
    assert "quality is 0." in found.broke
    assert "endToEnd" not in found.broke
    worst = max((trial for trial in heard.trials if trial.verdict == "fail"), key=lambda trial: trial.rate)
    assert worst.quality < 0.85
    assert worst.times["endToEnd"]["p95"] < 3000


LITELLM = "1.108.7"
GATEWAY = """
model_list:
- model_name: small
  litellm_params: {model: openai/small, api_key: none, mock_response: "It is Lisbon, the capital of Portugal."}
"""


def litellm() -> str:
    """LiteLLM's gateway in an environment of its own, in the user's cache: 750 MB that nothing else here needs."""
    folder = platformdirs.user_cache_path("punctual") / f"litellm-{LITELLM}"
    if not (folder / "ready").exists():
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", f"litellm[proxy]=={LITELLM}"]
        subprocess.run(pip, check=True)
        (folder / "ready").touch()
    return str(folder / "bin" / "litellm")


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_gateway_by_others(tmp_path: Path) -> None:
    """LiteLLM's gateway, which has a limit that nobody knows: its answers are read, and there is a rate it can take."""
    (tmp_path / "config.yaml").write_text(GATEWAY)
    goals = (
        "{goals: {ttft: {p90: 2s}, endToEnd: {p90: 4s}}, timeout: 20s,"
        " quality: {threshold: 0.9, judge: {kind: contains}}}"
    )
    port, heard = free_port(), Heard()
    command = [litellm(), "--config", str(tmp_path / "config.yaml"), "--host", "127.0.0.1", "--port", str(port)]
    with process(
        command, port, LITELLM_LOCAL_MODEL_COST_MAP="True", LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY="true"
    ) as url:
        asked = options(
            url + "/v1", goals, '{"prompt": "capital of Portugal?", "expected": "Lisbon"}', model="small",
            start=1.0, most=256.0, width=0.5, seconds=10.0, longest=10.0, warm_up=2.0,
        )  # fmt: skip
        with Store(tmp_path / "run") as store:
            asyncio.run(measure(asked, store, heard))
            found = report(store.trials, asked.service, 0.5, None)
            assert store.fingerprint is not None
            assert '"id": "small"' in store.fingerprint["models"]
    first, *_ = heard.trials
    assert (first.verdict, first.quality, first.answered) == ("pass", 1.0, first.planned)
    assert 0 < first.times["ttft"]["p90"] <= first.times["endToEnd"]["p90"]
    assert found.bracket.low is not None
    assert found.bracket.low >= 1
