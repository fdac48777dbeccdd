"""Two ranks, each with a scheduler of its own: all must decide alike."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.sglang_server import ENGINE_ARGUMENTS, environment
from tests.support.tiny_model import make_tiny_model

pytestmark = [pytest.mark.engine, pytest.mark.slow]

POLICY = """
apiVersion: batchpolicy/v1
kind: Policy
policy: benefit
preempt: class
predictor: tenant-history
"""
TOKENS = 24

# Answers of requests one at a time, and all at once under the policy.
PROGRAM = """
import asyncio, json, sys
import sglang

def main():
    model, arguments = json.loads(sys.argv[1])
    engine = sglang.Engine(model_path=model, **arguments)
    lengths = [12 + 17 * (i % 5) for i in range(16)]
    prompts = [[3 + (7 * i + j) % 250 for j in range(n)] for i, n in enumerate(lengths)]

    async def one(i, delay_s):
        await asyncio.sleep(delay_s)
        said = {{"tenant": "ab"[i % 2], "ttft_slo_s": (0.05, 1.0, "inf")[i % 3]}}
        params = {{
            "max_new_tokens": {tokens}, "temperature": 0, "ignore_eos": True,
            "custom_params": {{"batchpolicy": said}},
        }}
        answer = await engine.async_generate(
            input_ids=prompts[i], sampling_params=params, rid=f"r{{delay_s}}-{{i}}", priority=i % 3
        )
        return answer["output_ids"]

    async def all_of_them():
        alone = [await one(i, 0) for i in range(len(prompts))]
        together = await asyncio.gather(*(one(i, 0.02 * i + 0.001) for i in range(len(prompts))))
        states = await engine.tokenizer_manager.get_internal_state()
        return alone, together, [state["batchpolicy"]["counters"] for state in states]

    print("FOUND " + json.dumps(engine.loop.run_until_complete(all_of_them())))
    engine.shutdown()

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("parallel", ["tp", "pp"])
def test_answers_under_a_policy_that_reads_the_clock_are_those_of_each_request_alone(
    parallel: str, tmp_path: Path
) -> None:
    model = make_tiny_model(tmp_path / "model")
    file, program = tmp_path / "policy.yaml", tmp_path / "program.py"
    file.write_text(POLICY, encoding="utf-8")
    program.write_text(PROGRAM.format(tokens=TOKENS), encoding="utf-8")
    arguments = {
        **ENGINE_ARGUMENTS,
        f"{parallel}_size": 2,
        "max_running_requests": 2 if parallel == "tp" else 4,
        "max_total_tokens": 1024,
        "chunked_prefill_size": 64,
        "log_level": "warning",
    }
    done = subprocess.run(
        [sys.executable, str(program), json.dumps([str(model), arguments])],
        env=environment(
            {
                "BATCHPOLICY_CONFIG": str(file),
                # SGLang's own check; it ends the server as soon as two ranks differ.
                "SGLANG_ENABLE_RANK_CONSENSUS_CHECKER": "1",
                "SGLANG_CPU_OMP_THREADS_BIND": "0|1",
            }
        ),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert lines, done.stdout[-3000:] + done.stderr[-3000:]
    alone, together, counters = json.loads(lines[0].removeprefix("FOUND "))
    assert together == alone
    assert all(len(tokens) == TOKENS for tokens in together)
    # Otherwise there was nothing to disagree on.
    assert counters[0]["displaced"] > 0
    assert "adapter_faults" not in counters[0]
