"""Options of a SGLang server that would fight with a policy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """What a server was told, as far as it concerns who is scheduled."""

    schedule_policy: str = "fcfs"
    priority_scheduling: bool = False
    diffusion: bool = False
    hisparse: bool = False
    pdmux: bool = False
    lora_overlap_loading: bool = False
    role: str = "null"
    """``prefill``, ``decode``, or ``null`` for a server that does both."""
    stages: int = 1
    """Of a pipeline."""
    role_switch: bool = False


def conflicts(options: Options) -> Iterator[str]:
    """What has to be told otherwise, a sentence each."""
    if options.schedule_policy != "fcfs":
        yield (
            f"--schedule-policy is {options.schedule_policy!r}, expected fcfs: the policy file "
            "says who goes first."
        )
    if options.priority_scheduling:
        yield (
            "--enable-priority-scheduling orders and displaces by itself; leave it out: requests' "
            "priorities reach the policy without it."
        )
    if options.diffusion:
        yield "diffusion models are scheduled by a queue of their own, which takes no policy."
    for given, option in (
        (options.hisparse, "--enable-hisparse"),
        (options.pdmux, "--enable-pdmux"),
        (options.lora_overlap_loading, "--enable-lora-overlap-loading"),
    ):
        if given:
            yield f"{option} admits requests in an order of its own; leave it out."
    if options.role == "null":
        return
    if options.role != "prefill":
        yield (
            f"--disaggregation-mode is {options.role!r}: requests get their KV there in SGLang's "
            "own order, before they are in the queue that batchpolicy orders. Give the policy to "
            "the servers that prefill; here SGLang's --enable-priority-scheduling goes by "
            "`priority`."
        )
        return
    if options.stages > 1:
        yield (
            "--pp-size must be 1 with --disaggregation-mode prefill: with stages, SGLang "
            "schedules such a server in a loop of its own, which takes no policy."
        )
    if options.role_switch:
        yield (
            "--enable-pd-role-switch would make a server that prefills one that decodes, which "
            "takes no policy; leave it out."
        )
