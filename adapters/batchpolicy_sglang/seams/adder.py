"""SGLang's prefill adder, made to follow a plan."""

from __future__ import annotations

from typing import Any, Protocol

from batchpolicy_sglang.seams import upstream


class Offers(Protocol):
    """Who may start in a pass, and how."""

    chunk: int | None
    """Most tokens of the prompt in flight, where that is limited."""
    reserves: bool
    """KV is reserved by the plan, so that the adder looks only one token ahead."""

    def offers(self, rid: str) -> bool:
        """Whether a request is one of the plan's; all are where there is no plan."""
        ...


def adder_class(base: Any, offers: Offers) -> Any:
    """The subclass of an adder that starts the plan's requests and nobody else.

    SGLang reserves KV for what a request may put out at most, and stops at the first that
    does not fit. Where the plan has looked ahead, it has done so with what is predicted.
    """
    stop = _other()

    def _get_running_request_total_token_offset(self: Any, req: Any) -> Any:
        if not offers.reserves:
            return base._get_running_request_total_token_offset(self, req)
        # The page that its next token may need.
        computed = len(req.origin_input_ids) + len(req.output_ids) - 1
        return self.page_size if computed % self.page_size == 0 else 0

    def _update_prefill_budget(
        self: Any, prefix_len: int, extend: int, most: int, *a: Any, **k: Any
    ) -> None:
        most = min(most, 1) if offers.reserves else most
        base._update_prefill_budget(self, prefix_len, extend, most, *a, **k)

    def add_one_req(self: Any, req: Any, has_chunked_req: bool, *a: Any, **k: Any) -> Any:
        if not offers.offers(req.rid):
            return stop
        if has_chunked_req and not _fits_whole(self, req):
            # Only one prompt may be midway.
            return stop
        if not offers.reserves:
            return base.add_one_req(self, req, has_chunked_req, *a, **k)
        params = req.sampling_params
        most = params.max_new_tokens
        params.max_new_tokens = min(most, len(req.output_ids) + 1)
        try:
            return base.add_one_req(self, req, has_chunked_req, *a, **k)
        finally:
            params.max_new_tokens = most

    def add_chunked_req(self: Any, req: Any) -> Any:
        if offers.chunk is None or self.rem_chunk_tokens is None:
            return base.add_chunked_req(self, req)
        beyond = max(self.rem_chunk_tokens - offers.chunk, 0)
        self.rem_chunk_tokens -= beyond
        try:
            return base.add_chunked_req(self, req)
        finally:
            self.rem_chunk_tokens += beyond

    methods = (
        _get_running_request_total_token_offset,
        _update_prefill_budget,
        add_one_req,
        add_chunked_req,
    )
    return type(f"Planned{base.__name__}", (base,), {m.__name__: m for m in methods})


def follow(scheduler: Any, offers: Offers) -> None:
    """Let a scheduler make adders that follow a plan."""
    made: dict[Any, Any] = {}

    def planned(base: Any) -> Any:
        if base not in made:
            made[base] = adder_class(base, offers)
        return made[base]

    native = getattr(scheduler, "get_prefill_adder_class", None)
    if native is not None:
        scheduler.get_prefill_adder_class = lambda: planned(native())
        return
    # Before 0.5.22 the class is a name in the scheduler's module, which all schedulers of a
    # process read.
    module, prefill = upstream.scheduler(), scheduler._get_new_batch_prefill_raw

    def _get_new_batch_prefill_raw(*args: Any, **kwargs: Any) -> Any:
        kept = module.PrefillAdder
        module.PrefillAdder = planned(kept)
        try:
            return prefill(*args, **kwargs)
        finally:
            module.PrefillAdder = kept

    scheduler._get_new_batch_prefill_raw = _get_new_batch_prefill_raw


def _fits_whole(adder: Any, req: Any) -> bool:
    left = adder.rem_chunk_tokens
    return left is None or bool(adder.ceil_paged_tokens(_to_compute(req)) <= left)


def _to_compute(req: Any) -> int:
    tokens = getattr(req, "full_untruncated_fill_ids", None)
    if tokens is None:
        return int(req.extend_input_len)
    # Before 0.5.22 the places of what is cached are kept, and not their number.
    cached = getattr(req, "prefix_len", None)
    return len(tokens) - int(len(req.prefix_indices) if cached is None else cached)


def _other() -> Any:
    return upstream.schedule_policy().AddReqResult.OTHER
