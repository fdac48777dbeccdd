"""What the requests of a workload look like to SGLang."""

from __future__ import annotations

from array import array
from functools import cache
from typing import Any

from batchpolicy.prompts import STOP, Prompts, said
from batchpolicy.workload import Workload, WorkloadRequest
from batchpolicy_sglang.seams import names
from batchpolicy_sglang.settings import KEY


class Clients:
    """Make what SGLang's front end would send, from requests in order of arrival."""

    def __init__(
        self, workload: Workload, *, prefix_cache: bool, seed: int, planned: bool = False
    ) -> None:
        self._planned = planned
        self._prompts = Prompts(workload.requests, seed) if prefix_cache else None

    def request(self, r: WorkloadRequest) -> Any:
        """The message for one request."""
        params = names.sampling_params.SamplingParams(
            max_new_tokens=r.max_tokens,
            temperature=0.0,
            stop_token_ids=[STOP],
            custom_params={KEY: said(r)},
        )
        params.normalize(None)
        # Without a prefix cache nobody looks at the tokens.
        prompt = [0] * r.prompt_tokens if self._prompts is None else self._prompts.prompt(r)
        return names.io_struct.TokenizedGenerateReqInput(
            rid=r.id,
            input_text="",
            input_ids=_tokens(prompt),
            input_embeds=None,
            mm_inputs=None,
            token_type_ids=None,
            sampling_params=params,
            return_logprob=False,
            logprob_start_len=-1,
            top_logprobs_num=0,
            token_ids_logprob=None,
            stream=False,
            lora_id=r.lora or None,
            # The replay sets SGLang up so that lower is more urgent. To a policy, 0 is what a
            # request without a priority has, as on vLLM's wire.
            priority=(r.priority or None) if self._planned else r.priority,
        )


def _tokens(prompt: list[int]) -> Any:
    return prompt if _takes_lists() else array("q", prompt)


@cache
def _takes_lists() -> bool:
    """Before 0.5.13 tokens travel as lists."""
    annotations = names.io_struct.TokenizedGenerateReqInput.__annotations__
    return "List[int]" in str(annotations["input_ids"])
