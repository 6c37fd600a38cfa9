"""Profiles: what is sent, and their mistakes."""

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.serving_profile import read_profile
from scheduler.schema_file import BadFile


def test_what_is_sent() -> None:
    """A chat becomes a streaming request with a model, a body is sent as it is, empty lines are nothing."""
    chat, talk, plain, text, get = read_profile(
        """{"prompt": "2+2?", "expected": "4", "id": "sum"}
{"messages": [{"role": "system", "content": "Be brief."}], "parameters": {"model": "big", "max_tokens": 5}}

{"body": {"pixels": [0, 1]}, "path": "/predict", "expected": 7}
{"body": "as it is", "method": "PUT"}
{"method": "GET", "path": "/health"}
""",
        model="small",
    ).requests
    asked = json.loads(chat.payload)
    assert asked == {"model": "small", "messages": [{"role": "user", "content": "2+2?"}], "stream": True}
    assert (chat.id, chat.path, chat.chat, chat.expected) == ("sum", "/v1/chat/completions", True, "4")
    assert json.loads(talk.payload) | {"messages": []} == {
        "model": "big", "max_tokens": 5, "stream": True, "messages": [],
    }  # fmt: skip
    assert (plain.method, plain.path, json.loads(plain.payload), plain.id) == (
        "POST",
        "/predict",
        {"pixels": [0, 1]},
        "4",
    )
    assert (text.method, text.payload, text.content_type) == ("PUT", b"as it is", "text/plain; charset=utf-8")
    assert (get.method, get.payload) == ("GET", b"")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", 'has no requests; a line is, say, {"prompt": "2+2?", "expected": "4"}'),
        ('{"prompt": "a"}\n{', "line 2: is no JSON"),
        ("[]", "line 1: must be a JSON object"),
        ('{"promt": "a"}', "line 1: promt: is not known; allowed here: id, expected, prompt"),
        ('{"prompt": "a", "body": 1}', "line 1: has prompt and body; write one of them"),
        ('{"expected": 1}', "line 1: has no request; write prompt, messages or body"),
        ('{"prompt": 1}', "line 1: prompt: should be a valid string"),
        ('{"body": 1, "path": "predict"}', "line 1: path"),
        ('{"prompt": "a"}', "chats need a model: --model NAME"),
        ('{"body": 1}', "line 1: expected: is missing, and the judge compares with it"),
    ],
)
def test_a_mistake(text: str, said: str) -> None:
    """What cannot be sent is refused with its line, all mistakes at once."""
    with pytest.raises(BadFile) as caught:
        read_profile(text, judged='"body": 1}' in text, model="m" if "a" not in text else None)
    assert any(said in str(mistake) for mistake in caught.value.mistakes), caught.value


@given(
    st.text(max_size=40) | st.dictionaries(st.sampled_from(["prompt", "body", "id", "x"]), st.text()).map(json.dumps)
)
@settings(max_examples=40, deadline=None)
def test_any_junk_is_a_profile_or_refused(text: str) -> None:
    """Whatever is written, it is read or refused in words; nothing else happens."""
    with contextlib.suppress(BadFile):
        assert read_profile(text, model="m").requests
