"""Headers become ``vllm_xargs``: the only part of them that reaches a vLLM scheduler."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, cast

from batchpolicy.errors import BatchPolicyError
from batchpolicy.metadata import VARIABLE
from batchpolicy.tenant_places import tenant_keys
from batchpolicy_vllm.settings import configured

logger = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

PATHS = frozenset(
    {
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/chat/completions/batch",
        "/v1/responses",
        "/v1/messages",
        "/invocations",
    }
)
"""Where vLLM takes JSON with ``vllm_xargs``."""

_FIELD = "vllm_xargs"
_PREFIX = "x-batchpolicy-"
_MOST_BYTES = 1024


class HeaderMiddleware:
    """What ``--middleware batchpolicy_vllm.HeaderMiddleware`` puts before a server.

    Copies headers of a request into ``vllm_xargs`` in its body:
    ``X-Batchpolicy-Ttft-Slo-S`` becomes the key ``ttft_slo_s`` of ``vllm_xargs``, and a
    header that ``requests.tenant_from`` names becomes the key of its name. A header goes
    before what the body says; under the name of a tenant's header the body says nothing,
    so that only whoever sets headers, a gateway, can set that.

    The policy file is the one in ``BATCHPOLICY_CONFIG``. If it has a mistake, the server
    does not start.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._tenant_headers: frozenset[str] = frozenset()
        self._fault = ""
        try:
            config = configured(None)
            if config is not None:
                self._tenant_headers = frozenset(tenant_keys(config.requests.tenant_from).headers)
            else:
                logger.warning(
                    "batchpolicy: %s names no policy file, so that no header can name the tenant",
                    VARIABLE,
                )
        except BatchPolicyError as e:
            # uvicorn takes an exception for a lack of start-up events, and goes on.
            self._fault = str(e)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one connection, or the start and end of the server."""
        if self._fault and scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.failed", "message": self._fault})
            return
        if not _takes_xargs(scope):
            await self._app(scope, receive, send)
            return
        given = self._xargs(scope["headers"])
        if not given and not self._tenant_headers:
            await self._app(scope, receive, send)
            return
        # The body is read when the application asks for it, which is after it has checked
        # who sends it. How long it will be is not known before.
        headers = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
        body = _Body(receive, lambda content: self._changed(content, given))
        await self._app({**scope, "headers": headers}, body, send)

    def _xargs(self, headers: Headers) -> dict[str, str]:
        """What the headers say; of repeated ones the last counts, which a proxy has added."""
        general: dict[str, str] = {}
        tenants: dict[str, str] = {}
        for raw_name, raw_value in headers:
            if len(raw_value) > _MOST_BYTES:
                continue
            try:
                name, value = raw_name.decode("ascii").lower(), raw_value.decode().strip()
            except UnicodeDecodeError:
                continue
            if name in self._tenant_headers:
                tenants[name] = value
            key = name.removeprefix(_PREFIX).replace("-", "_")
            if name.startswith(_PREFIX) and key not in self._tenant_headers:
                general[key] = value
        return {key: value for key, value in (general | tenants).items() if key and value}

    def _changed(self, body: bytes, given: dict[str, str]) -> bytes:
        """The body with what the headers say; as it is where it is not ours to read."""
        try:
            whole: object = json.loads(body)
            if not isinstance(whole, dict):
                return body
            request = cast("dict[str, object]", whole)
            said = request.get(_FIELD)
            if said is not None and not isinstance(said, dict):
                return body
            old = cast("dict[str, object]", said or {})
            new = {k: v for k, v in old.items() if k not in self._tenant_headers} | given
            if new == old:
                return body
            return json.dumps(request | {_FIELD: new}).encode()
        except ValueError:
            return body
        except RecursionError:
            # vLLM, with fewer calls on its stack than we have here, might still read it.
            return b"" if self._tenant_headers else body


class _Body:
    """Receives a request's body in one piece, changed; then whatever comes."""

    def __init__(self, receive: Receive, change: Callable[[bytes], bytes]) -> None:
        self._receive = receive
        self._change = change
        self._is_read = False

    async def __call__(self) -> Message:
        if self._is_read:
            return await self._receive()
        parts: list[bytes] = []
        more = True
        while more:
            message = await self._receive()
            if message["type"] != "http.request":
                # The client left before the end.
                self._is_read = True
                return message
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        self._is_read = True
        return {"type": "http.request", "body": self._change(b"".join(parts)), "more_body": False}


def _takes_xargs(scope: Message) -> bool:
    if scope["type"] != "http" or scope["method"] != "POST":
        return False
    return str(scope["path"]).removeprefix(scope.get("root_path", "")) in PATHS
