#!/usr/bin/env bash
# Stock vLLM against vLLM with a policy, on your GPU, under the same load.
#
#   examples/gpu/compare.sh MODEL [POLICY] [-- VLLM ARGUMENTS]
#
# Starts one server after another, stock and with POLICY in turn, ROUNDS times each, sends every
# one of them the same requests at RATE a second, and prints what their clients saw, side by side.
# Also measures what the policy costs the scheduler on this machine. All results stay in OUT.
#
#   PYTHON  interpreter of the environment that holds vLLM and batchpolicy      python
#   PORT    where the servers listen, on 127.0.0.1                              8137
#   ROUNDS  servers of each kind                                                3
#   RATE    requests a second                                                   8
#   PROMPTS requests sent to each server                                        400
#   INPUT, OUTPUT   tokens of a prompt and of an answer, each half to one and a half of it   1024, 256
#   OUT     folder for results and logs                                         gpu-compare
#
# Tried on the CPU with a tiny model; nobody has run it on a GPU yet.
set -euo pipefail

[ $# -ge 1 ] || { sed -n '2,19s/^# \{0,1\}//p' "$0" >&2; exit 2; }
model=$1; shift
policy=benefit
if [ $# -ge 1 ] && [ "$1" != -- ]; then policy=$1; shift; fi
[ "${1:-}" != -- ] || shift
PYTHON=${PYTHON:-python} PORT=${PORT:-8137} ROUNDS=${ROUNDS:-3} RATE=${RATE:-8} PROMPTS=${PROMPTS:-400}
INPUT=${INPUT:-1024} OUTPUT=${OUTPUT:-256} OUT=${OUT:-gpu-compare}
mkdir -p "$OUT"
if [ -f "$policy" ]; then
    file=$policy
else
    file=$OUT/policy.yaml
    printf 'apiVersion: batchpolicy/v1\nkind: Policy\npolicy: {name: %s}\n' "$policy" > "$file"
fi
"$PYTHON" -m batchpolicy policies validate "$file"
{ nvidia-smi -L 2>/dev/null || echo "no GPU found"; "$PYTHON" -c 'import vllm, torch; print("vllm", vllm.__version__, "torch", torch.__version__)'; } \
    | tee "$OUT/environment.txt"

server=
trap 'test -z "$server" || kill "$server" 2>/dev/null || true' EXIT

serve() { # ARM ARGUMENTS..., in place of the shell it is called in
    arm=$1; shift
    if [ "$arm" = stock ]; then
        exec "$PYTHON" -m vllm.entrypoints.openai.api_server --model "$model" --host 127.0.0.1 --port "$PORT" "$@"
    else
        exec "$PYTHON" -m batchpolicy serve --policy "$file" -- "$model" --host 127.0.0.1 --port "$PORT" "$@"
    fi
}

run() { # ARM ROUND ARGUMENTS...
    local arm=$1 round=$2; shift 2
    echo "== $arm, round $round"
    serve "$arm" "$@" > "$OUT/$arm-$round.log" 2>&1 &
    server=$!
    for _ in $(seq 600); do
        curl -fsS "http://127.0.0.1:$PORT/health" > /dev/null 2>&1 && break
        kill -0 "$server" 2>/dev/null || { tail -20 "$OUT/$arm-$round.log" >&2; server=; exit 1; }
        sleep 1
    done
    "$PYTHON" -m vllm.entrypoints.cli.main bench serve --backend openai --endpoint /v1/completions \
        --base-url "http://127.0.0.1:$PORT" --model "$model" --dataset-name random --seed "$round" \
        --random-input-len "$INPUT" --random-output-len "$OUTPUT" --random-range-ratio 0.5 --ignore-eos \
        --num-prompts "$PROMPTS" --request-rate "$RATE" --percentile-metrics ttft,tpot,e2el \
        --metric-percentiles 50,99 --save-result --result-dir "$OUT" --result-filename "$arm-$round.json" \
        > "$OUT/$arm-$round-load.log" 2>&1 || { tail -20 "$OUT/$arm-$round-load.log" >&2; exit 1; }
    kill "$server"; wait "$server" 2>/dev/null || true
    server=
}

for round in $(seq "$ROUNDS"); do
    run stock "$round" "$@"
    run policy "$round" "$@"
done

"$PYTHON" - "$OUT" "$ROUNDS" <<'END'
import json, sys
from pathlib import Path
from statistics import mean

out, rounds = Path(sys.argv[1]), range(1, int(sys.argv[2]) + 1)
arms = {a: [json.loads((out / f"{a}-{k}.json").read_text()) for k in rounds] for a in ("stock", "policy")}
names = ("p50_ttft_ms", "p99_ttft_ms", "p50_tpot_ms", "p99_tpot_ms", "p99_e2el_ms", "output_throughput", "completed")
print(f"{'mean over rounds':<20}{'stock':>12}{'policy':>12}{'ratio':>9}   ratio of each round")
for name in names:
    stock, policy = ([run[name] for run in arms[a]] for a in ("stock", "policy"))
    each = " ".join(f"{p / s:.3f}" for s, p in zip(stock, policy))
    print(f"{name:<20}{mean(stock):>12.4g}{mean(policy):>12.4g}{mean(policy) / mean(stock):>9.3f}   {each}")
END

echo "== what the policy costs the scheduler, on this machine's CPU"
"$PYTHON" -m batchpolicy bench overhead --engine vllm --json > "$OUT/overhead.json" && "$PYTHON" - "$OUT/overhead.json" <<'END'
import json, sys
for m in json.load(open(sys.argv[1]))["measurements"]:
    print(f"{m['what']:<60} {m['value']}")
END
