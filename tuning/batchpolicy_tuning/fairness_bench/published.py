"""What others measured on the suites that ours are made after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Published:
    """One row of the artifact's raw results; text as it is shown, empty where there is none."""

    pair_gap: str = ""
    """Sampled once a second."""
    cumulative_gap: str = ""
    latency_s: str = ""
    tokens_per_s: str = ""
    ttft_p50_s: str = ""
    ttft_p99_s: str = ""


PUBLISHED: Mapping[str, Mapping[str, Published]] = {
    "on-off": {
        "VTC": Published("14,827", "9,064", tokens_per_s="879"),
        "fcfs": Published("378,399", "378,413", tokens_per_s="876"),
    },
    "overload-multi": {
        "VTC": Published("5,977", "3,840", tokens_per_s="875"),
        "VTC, true lengths booked": Published("1,980", "2,304", tokens_per_s="875"),
        "fcfs": Published("23,283", "24,045", tokens_per_s="875"),
    },
    "poisson-short-long": {
        "VTC": Published("10,880", "20,469", tokens_per_s="1,445"),
        "fcfs": Published("206,967", "220,818", tokens_per_s="1,475"),
    },
    "arena-like": {
        "VTC": Published("14.6k", "", "0.48", "779", "4.9", "211"),
        "VTC, true lengths booked": Published("7.1k", tokens_per_s="781"),
        "VTC without lift": Published("41k", tokens_per_s="778"),
        "fcfs": Published("124k", "", "0.96", "777", "39.1", "137"),
    },
    "noisy-tenant": {},
}
"""By suite and row."""
SOURCE = (
    'Published: worked out from the raw results in the artifact of Y. Sheng et al., "Fairness in '
    'Serving Large Language Models", OSDI 2024 (github.com/Ying1123/VTC-artifact): one run each '
    "on an A10G with Llama-2-7B, a pool of 10,000 tokens, backlog sampled once a second. Their "
    "lengths and rates are followed where they are known; where not, ours are chosen so that "
    "fcfs comes near. The arena trace itself is not here: what stands for it is generated. "
    "Compare within a column; between the two, only how far policies are apart."
)
