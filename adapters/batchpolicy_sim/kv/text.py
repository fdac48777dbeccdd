"""What requests share: keys of the blocks of their texts, equal where the texts are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from batchpolicy.workload import WorkloadRequest

_ANSWER, _STOP = 0, 1
_FIRST_NAMED = 2


class Piece(NamedTuple):
    """Tokens ``start`` to ``start + tokens`` of some source; of an answer, all are alike."""

    source: int
    start: int
    tokens: int


class KeyChain:
    """Keys of the blocks of one text, each made from the key before it and the block."""

    __slots__ = ("_at", "_block_tokens", "_keys", "_pieces", "_used", "root")

    def __init__(self, root: int, pieces: list[Piece], block_tokens: int) -> None:
        self.root = root
        self._pieces = pieces
        self._block_tokens = block_tokens
        self._keys: list[int] = []
        self._at = self._used = 0

    def keys(self, count: int) -> list[int]:
        """Keys of at least the first ``count`` blocks, which the text must fill; only to be read.

        Hashes of integers are the same in every process.
        """
        keys, size = self._keys, self._block_tokens
        key = keys[-1] if keys else self.root
        while len(keys) < count:
            source, start, tokens = self._pieces[self._at]
            if source < _FIRST_NAMED or tokens - self._used < size:
                key = hash((key, *self._next_block()))
                keys.append(key)
                continue
            first = start + self._used
            whole = min((tokens - self._used) // size, count - len(keys))
            for at in range(first, first + whole * size, size):
                key = hash((key, source, at, size))
                keys.append(key)
            self._move(whole * size)
        return keys

    def _next_block(self) -> list[int]:
        """Sources, places in them and tokens that the next block is made of."""
        parts: list[int] = []
        left = self._block_tokens
        while left:
            source, start, tokens = self._pieces[self._at]
            taken = min(tokens - self._used, left)
            parts += (source, start + self._used if source >= _FIRST_NAMED else 0, taken)
            left -= taken
            self._move(taken)
        return parts

    def _move(self, tokens: int) -> None:
        self._used += tokens
        if self._used == self._pieces[self._at].tokens:
            self._at, self._used = self._at + 1, 0


class Texts:
    """Makes the key chains of requests, to be asked in order of arrival."""

    def __init__(self, requests: Iterable[WorkloadRequest], block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._turns = Counter(r.session for r in requests if r.session)
        """Turns to come of each session."""
        self._said: dict[str, list[Piece]] = {}
        """Text of the latest turn of each session that goes on."""
        self._named: dict[str, int] = {}
        self._sources = _FIRST_NAMED - 1
        """The latest number given to a source."""

    def chain(self, r: WorkloadRequest) -> KeyChain:
        """Keys of the whole text of a request, its answer included."""
        pieces: list[Piece] = []
        left = r.prompt_tokens
        for piece in self._shared(r):
            if left:
                _add(pieces, piece._replace(tokens=min(piece.tokens, left)))
                left -= min(piece.tokens, left)
        if left:
            self._sources += 1
            _add(pieces, Piece(self._sources, 0, left))
        stops = r.output_tokens <= r.max_tokens
        plain = r.output_tokens - 1 if stops else r.max_tokens
        if plain:
            _add(pieces, Piece(_ANSWER, 0, plain))
        if stops:
            _add(pieces, Piece(_STOP, 0, 1))
        if r.session:
            self._turns[r.session] -= 1
            if self._turns[r.session]:
                self._said[r.session] = pieces
            else:
                self._said.pop(r.session, None)
        root = self._source(f"lora {r.lora}") if r.lora else 0
        return KeyChain(root, pieces, self._block_tokens)

    def _shared(self, r: WorkloadRequest) -> list[Piece]:
        """What the prompt begins with and other requests may have too."""
        if r.prefix_blocks:
            tokens = r.prefix_block_tokens
            return [Piece(self._source(f"block {b}"), 0, tokens) for b in r.prefix_blocks]
        if r.session in self._said:
            return self._said[r.session]
        if r.prefix_id and r.prefix_tokens:
            return [Piece(self._source(f"prefix {r.prefix_id}"), 0, r.prefix_tokens)]
        return []

    def _source(self, name: str) -> int:
        if name not in self._named:
            self._sources += 1
            self._named[name] = self._sources
        return self._named[name]


def _add(pieces: list[Piece], piece: Piece) -> None:
    """Append a piece, as a part of the last one if it goes on there: texts have one form."""
    if pieces and pieces[-1].source == piece.source:
        last = pieces[-1]
        if piece.source == _ANSWER or (
            piece.source >= _FIRST_NAMED and last.start + last.tokens == piece.start
        ):
            pieces[-1] = last._replace(tokens=last.tokens + piece.tokens)
            return
    pieces.append(piece)
