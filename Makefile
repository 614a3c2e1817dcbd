.PHONY: fuzz lock fresh soak help setup demo test check format docs site dist bench

# Without compiled modules on disk each of thousands of processes would compile its own.
unexport PYTHONDONTWRITEBYTECODE

help: ## What can be made
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' Makefile | expand -t 18

setup: ## The environment in .venv and the system packages (quick when they are there)
	@scripts/setup $(MAKECMDGOALS)

demo: setup ## Four nodes on this machine train a model before your eyes
	@scripts/demo

test: setup ## Every test, those on a real local cluster included (unit tests alone: .venv/bin/pytest tests/unit)
	@scripts/schedulers
	@.venv/bin/pytest -n $$(($$(nproc) + 1)) --maxprocesses 4 --dist loadgroup --no-loadscope-reorder

# What must work on macOS too: the command line and the library, used with AWS.
ON_A_MAC = $(filter-out src/phalanx/localcloud/ src/phalanx/runner/ src/phalanx/node/,$(wildcard src/phalanx/*/ src/phalanx/*.py))

check: setup ## Style, formatting, types, and whether the generated pages are up to date
	@.venv/bin/ruff check
	@.venv/bin/ruff format --check
	@.venv/bin/pyright
	@.venv/bin/pyright --pythonplatform Darwin $(ON_A_MAC)
	@scripts/tree --check
	@.venv/bin/python scripts/lock --check
	@.venv/bin/python scripts/commands --check
	@scripts/site >/dev/null

format: setup ## Format the code and mend what ruff can mend
	@.venv/bin/ruff check --fix --quiet
	@.venv/bin/ruff format

lock: setup ## Write the locks of recipes and of .venv anew, with today's versions of what is not pinned
	@.venv/bin/python -m pip install --quiet uv
	@.venv/bin/python scripts/lock

docs: setup ## Write the generated pages: docs/modules.md and docs/commands.md
	@scripts/tree
	@.venv/bin/python scripts/commands

site: setup ## The documents as web pages in build/site, every link checked
	@scripts/site

dist: setup ## The wheel in dist/, tried in an environment of its own
	@scripts/dist

soak: setup ## 200 random kills on a real cluster: nothing may be left, nothing else touched (half an hour)
	@.venv/bin/python -m benchmarks.soak

fresh: ## README's two commands in a new minimal Debian; benchmarks/results/fresh-<date>.txt (root; ONLY=setup, demo or test)
	@scripts/fresh

fuzz: SECONDS ?= 3600
fuzz: setup ## Random input for whatever reads what others wrote, for SECONDS (an hour): make fuzz SECONDS=60 SEED=1
	@PHALANX_FUZZ_S=$(SECONDS) PHALANX_FUZZ_SEED=$(SEED) .venv/bin/pytest tests/fuzz

bench: setup ## Measure; one table, and benchmarks/results/<date>.json
	@.venv/bin/python -m benchmarks
