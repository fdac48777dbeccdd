"""Headers into bodies, before a small application that answers with what it got."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpolicy_vllm import HeaderMiddleware
from batchpolicy_vllm.middleware import PATHS

pytestmark = pytest.mark.engine

Message = dict[str, Any]
Headers = list[tuple[bytes, bytes]]

FILE = """
apiVersion: batchpolicy/v1
kind: Policy
policy: fcfs
requests: {{tenant_from: {places}}}
"""


class App:
    """An ASGI application that keeps what it was called with and what it received."""

    def __init__(self, messages: int = 1) -> None:
        self.scope: Message = {}
        self.received: list[Message] = []
        self._messages = messages

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        self.scope = scope
        for _ in range(self._messages):
            self.received.append(await receive())
        await send({"type": "http.response.start", "status": 204})

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.received)

    @property
    def xargs(self) -> Any:
        return json.loads(self.body).get("vllm_xargs")


class Client:
    """Sends requests through the middleware to an ``App``."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, places: str) -> None:
        path = folder / "policy.yaml"
        path.write_text(FILE.format(places=places), encoding="utf-8")
        monkeypatch.setenv("BATCHPOLICY_CONFIG", str(path))

    def post(self, body: Any, *headers: tuple[str, str], **scope: Any) -> App:
        """What the application got of a POST with this body, JSON unless it is bytes."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        encoded = [(name.lower().encode(), value.encode()) for name, value in headers]
        return self.send([{"type": "http.request", "body": raw}], encoded, **scope)

    def send(
        self, messages: list[Message], headers: Headers, *, count: int = 1, **scope: Any
    ) -> App:
        """The same, of messages as a server gives them, the application taking ``count``."""
        app = App(count)
        serve(app, messages, headers, **scope)
        return app


def serve(app: App, messages: list[Message], headers: Headers, **scope: Any) -> list[Message]:
    """What comes back from ``app`` behind the middleware."""
    left = iter(messages)
    sent: list[Message] = []

    async def receive() -> Message:
        return next(left)

    async def send(message: Any) -> None:
        sent.append(message)

    kind: Message = {"type": "http", "method": "POST", "path": "/v1/completions"}
    asyncio.run(HeaderMiddleware(app)({**kind, "headers": headers, **scope}, receive, send))
    return sent


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    return Client(tmp_path, monkeypatch, "[X-Tenant, vllm_xargs.tenant]")


def test_headers_become_keys_of_the_body(client: Client) -> None:
    app = client.post(
        {"prompt": "é", "max_tokens": 3},
        ("X-Tenant", "acme"),
        ("X-Batchpolicy-Ttft-Slo-S", "0.5"),
        ("X-Batchpolicy-Program", " plan-7 "),
        ("X-Other", "not ours"),
    )
    assert json.loads(app.body) == {
        "prompt": "é",
        "max_tokens": 3,
        "vllm_xargs": {"x-tenant": "acme", "ttft_slo_s": "0.5", "program": "plan-7"},
    }


def test_a_header_goes_before_what_the_body_says_and_the_rest_of_it_stays(client: Client) -> None:
    app = client.post(
        {"vllm_xargs": {"x-tenant": "gold", "ttft_slo_s": 9, "weight": 2, "mine": [1, "a"]}},
        ("X-Tenant", "free"),
        ("X-Batchpolicy-Ttft-Slo-S", "0.5"),
    )
    assert app.xargs == {"x-tenant": "free", "ttft_slo_s": "0.5", "weight": 2, "mine": [1, "a"]}


@pytest.mark.parametrize(
    "body",
    [
        b'{"vllm_xargs": {"x-tenant": "gold", "tenant": "t"}}',
        b'{"vllm_xargs": {"x\\u002dtenant": "gold", "tenant": "t"}}',
        b'{"vllm\\u005fxargs": {"x-tenant": "gold", "tenant": "t"}}',
        b'{"vllm_xargs": {}, "vllm_xargs": {"x-tenant": "gold", "tenant": "t"}}',
        '{"vllm_xargs": {"x-tenant": "gold", "tenant": "t"}}'.encode("utf-16"),
    ],
)
@pytest.mark.parametrize("headers", [[], [("X-Tenant", "")]])
def test_only_a_header_sets_what_a_header_is_to_say(
    body: bytes, headers: list[tuple[str, str]], client: Client
) -> None:
    assert client.post(body, *headers).xargs == {"tenant": "t"}


def test_no_general_header_sets_the_name_of_a_tenants_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(tmp_path, monkeypatch, "[x_tenant]")
    assert client.post({}, ("X-Batchpolicy-X-Tenant", "gold")).xargs is None
    assert client.post({}, ("X_Tenant", "free"), ("X-Batchpolicy-X-Tenant", "gold")).xargs == {
        "x_tenant": "free"
    }


def test_a_body_too_deep_to_read_does_not_pass_with_a_tenant_of_its_own(client: Client) -> None:
    deep = b"[" * 200_000 + b"]" * 200_000
    body = b'{"a": ' + deep + b', "vllm_xargs": {"x-tenant": "gold"}}'
    assert client.post(body).body == b""


def test_the_last_of_repeated_headers_counts(client: Client) -> None:
    app = client.post({}, ("X-Tenant", "the client"), ("X-Tenant", "the proxy"))
    assert app.xargs == {"x-tenant": "the proxy"}


def test_xargs_of_null_are_none(client: Client) -> None:
    assert client.post({"vllm_xargs": None}, ("X-Tenant", "a")).xargs == {"x-tenant": "a"}
    assert client.post({"vllm_xargs": None}).body == b'{"vllm_xargs": null}'


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1, 2]",
        b'"text"',
        b"null",
        b"\xff\xfe\xfd",
        b'{"vllm_xargs": [1]}',
        b'{"vllm_xargs": "x-tenant"}',
        b"9" * 5000,
    ],
)
def test_a_body_that_is_not_ours_to_read_passes_as_it_is(body: bytes, client: Client) -> None:
    assert client.post(body, ("X-Tenant", "acme")).body == body


def test_a_body_to_which_nothing_is_added_keeps_its_bytes(client: Client) -> None:
    body = b'{ "prompt":"\xc3\xa9",  "vllm_xargs" : {"tenant":"t"}, "temperature": 1.0 }'
    assert client.post(body).body == body
    assert client.post(body, ("X-Batchpolicy-Tenant", "t")).body == body


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"x-tenant", b"\xff\xfe"),
        (b"x-t\xc3\xa9nant", b"a"),
        (b"x-batchpolicy-", b"a"),
        (b"x-batchpolicy-weight", b"9" * 2000),
        (b"x-batchpolicy-weight", b"   "),
    ],
)
def test_a_header_that_cannot_be_used_is_left_out_and_others_are_not(
    name: bytes, value: bytes, client: Client
) -> None:
    headers = [(name, value), (b"x-batchpolicy-program", b"p")]
    app = client.send([{"type": "http.request", "body": b"{}"}], headers)
    assert app.xargs == {"program": "p"}


def test_a_tenant_may_be_named_in_any_script(client: Client) -> None:
    assert client.post({}, ("X-Tenant", "Größe")).xargs == {"x-tenant": "Größe"}


def test_a_body_in_several_pieces_comes_in_one_and_what_follows_comes_through(
    client: Client,
) -> None:
    app = client.send(
        [
            {"type": "http.request", "body": b'{"prom', "more_body": True},
            {"type": "http.request", "more_body": True},
            {"type": "http.request", "body": b'pt": "a"}'},
            {"type": "http.disconnect"},
        ],
        [(b"x-tenant", b"acme")],
        count=2,
    )
    first, second = app.received
    assert json.loads(first["body"]) == {"prompt": "a", "vllm_xargs": {"x-tenant": "acme"}}
    assert not first["more_body"]
    assert second == {"type": "http.disconnect"}


def test_a_client_that_leaves_before_the_end_of_its_body_has_left(client: Client) -> None:
    pieces = [
        {"type": "http.request", "body": b"{", "more_body": True},
        {"type": "http.disconnect"},
        {"type": "http.disconnect"},
    ]
    app = client.send(pieces, [(b"x-tenant", b"acme")], count=2)
    assert app.received == [{"type": "http.disconnect"}] * 2


def test_no_length_is_promised_that_the_body_does_not_have(client: Client) -> None:
    app = client.post({}, ("Content-Length", "2"), ("X-Tenant", "a"), ("Accept", "*/*"))
    assert app.scope["headers"] == [(b"x-tenant", b"a"), (b"accept", b"*/*")]


def test_nothing_is_read_before_the_application_asks(client: Client) -> None:
    app = client.send([], [(b"x-tenant", b"acme")], count=0)
    assert app.scope["path"] == "/v1/completions"


@pytest.mark.parametrize("path", sorted(PATHS))
def test_all_paths_that_take_the_field_are_served_below_any_root(
    path: str, client: Client
) -> None:
    for scope in ({"path": path}, {"path": f"/api{path}", "root_path": "/api"}):
        assert client.post({}, ("X-Tenant", "a"), **scope).xargs == {"x-tenant": "a"}


@pytest.mark.parametrize(
    "scope",
    [
        {"method": "GET"},
        {"method": "OPTIONS"},
        {"path": "/v1/embeddings"},
        {"path": "/v1/completions/render"},
        {"path": "/health"},
        {"type": "websocket"},
        {"type": "lifespan"},
    ],
)
def test_all_else_passes_untouched(scope: Message, client: Client) -> None:
    app = client.post({}, ("X-Tenant", "acme"), ("Content-Length", "2"), **scope)
    assert app.body == b"{}"
    assert (b"content-length", b"2") in app.scope["headers"]


def test_without_a_policy_file_only_general_headers_are_copied_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("BATCHPOLICY_CONFIG", raising=False)
    app = App()
    headers = [(b"x-tenant", b"a"), (b"x-batchpolicy-tenant", b"b")]
    serve(app, [{"type": "http.request", "body": b"{}"}], headers)
    assert app.xargs == {"tenant": "b"}
    assert "BATCHPOLICY_CONFIG names no policy file" in caplog.text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            FILE.format(places="[x-tenant, header.x-tenant]"),
            "is 'header.x-tenant'; engines cannot read it",
        ),
        (FILE.format(places="[x-tenant]") + "preemt: class\n", "preemt"),
    ],
)
def test_a_mistake_in_the_policy_file_stops_the_server_and_is_named(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text, encoding="utf-8")
    monkeypatch.setenv("BATCHPOLICY_CONFIG", str(path))
    app = App()
    (sent,) = serve(app, [{"type": "lifespan.startup"}], [], type="lifespan")
    assert sent["type"] == "lifespan.startup.failed"
    assert said in sent["message"]
    assert not app.scope, "the application must not start"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
NAMES = st.sampled_from([b"x-tenant", b"x-batchpolicy-weight", b"x-batchpolicy-", b"content-type"])


@given(
    body=VALUES.map(lambda value: json.dumps(value).encode())
    | st.fixed_dictionaries({"vllm_xargs": VALUES}).map(lambda value: json.dumps(value).encode())
    | st.binary(),
    headers=st.lists(st.tuples(NAMES | st.binary(), st.binary())),
)
def test_whatever_comes_is_passed_on_and_never_an_error(
    body: bytes, headers: Headers, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        folder = tmp_path_factory.getbasetemp()
        client = Client(folder, monkeypatch, "[x-tenant]")
        app = client.send([{"type": "http.request", "body": body}], headers)
    try:
        before, after = json.loads(body), json.loads(app.body)
    except ValueError:
        assert app.body == body
        return
    if app.body != body:
        # repr, because NaN differs from itself.
        told = after.pop("vllm_xargs")
        before.pop("vllm_xargs", None)
        assert repr(before) == repr(after)
        assert isinstance(told, dict)
