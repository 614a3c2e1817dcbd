.PHONY: check-types check-types-on-a-mac check-pages check-style checkov conformance full-os images smoke-aws fuzz red mutants lock fresh soak help setup demo test check format docs tables newer site dist bench

# Tests start thousands of processes: without compiled modules on disk, each would compile its own.
unexport PYTHONDONTWRITEBYTECODE

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 18

setup: ## Set up .venv and the system packages (quick when they are installed)
	@scripts/setup $(MAKECMDGOALS)

demo: setup ## Train a model on four nodes on this machine
	@scripts/demo

test: setup ## Run every test, including those on real local clusters (unit tests only: .venv/bin/pytest tests/unit)
	@scripts/schedulers
	@scripts/prometheus
	@scripts/uml
	@scripts/browser
	@scripts/test

# What must work on macOS, too: the command line and the library, with AWS.
ON_A_MAC = $(filter-out src/phalanx/runner/ src/phalanx/node/,$(wildcard src/phalanx/*/ src/phalanx/*.py))

# Each checker uses one core, and the two for types take longest.
check: setup ## Check style, formatting, types and links, and that the generated pages are up to date
	@$(MAKE) --no-print-directory --jobs $$(nproc) --output-sync check-types check-types-on-a-mac check-pages check-style

check-types:
	@.venv/bin/pyright

check-types-on-a-mac:
	@.venv/bin/pyright --pythonplatform Darwin $(ON_A_MAC)

check-pages:
	@.venv/bin/python scripts/lock --check
	@.venv/bin/python scripts/commands --check
	@.venv/bin/python scripts/rights --check
	@.venv/bin/python scripts/types --check
	@.venv/bin/python scripts/proofs
	@scripts/site >/dev/null

check-style:
	@.venv/bin/ruff check
	@.venv/bin/ruff format --check

format: setup ## Format the code and fix what ruff can fix
	@.venv/bin/ruff check --fix --quiet
	@.venv/bin/ruff format

lock: setup ## Update the locks of the recipes and of .venv to the latest versions of what is not pinned
	@.venv/bin/python -m pip install --quiet uv
	@.venv/bin/python scripts/lock

docs: setup ## Generate docs/commands.md, docs/phalanx-yaml.md and docs/terminal.svg
	@.venv/bin/python scripts/commands
	@scripts/terminal

tables: setup ## Generate the tables of rights and instance types, from what cfn-lint and moto carry of AWS
	@.venv/bin/python scripts/rights
	@.venv/bin/python scripts/types

newer: setup ## Say what the newest botocore, cfn-lint and moto know of AWS that this checkout does not (a minute)
	@.venv/bin/python scripts/newer

site: setup ## Build the documents as web pages in build/site and check every link
	@scripts/site

dist: setup ## Build the wheel in dist/ and try it in a new environment
	@scripts/dist

checkov: setup ## Check the template with checkov, which must find nothing (scripts/checkov.yaml says what is skipped, and why)
	@scripts/checkov

red: setup ## Remove each defence in a copy of the code and check that its attack succeeds, or go on with that (an hour)
	@.venv/bin/python -m benchmarks.red

mutants: setup ## Check that a unit test notices each small change of the code that decides (minutes)
	@.venv/bin/python scripts/mutants $(JOBS)

soak: PART ?= soak
soak: SEED ?= 1
soak: setup ## Kill 200 random processes or nodes of a real cluster, or cut its power 50 times: make soak PART=power COUNT=50
	@.venv/bin/python -m benchmarks.$(PART) $(if $(COUNT),--count $(COUNT)) --seed $(SEED)

smoke-aws: ENDPOINT ?= aws
smoke-aws: setup ## Try phalanx on your AWS account, for less than 20 cents; it asks first (a rehearsal here: make smoke-aws ENDPOINT=local)
	@.venv/bin/python -m benchmarks.smoke --endpoint $(ENDPOINT) $(ARGUMENTS)

fresh: ## Run README's two commands in a new minimal Debian; writes benchmarks/results/fresh-<date>.txt (root; ONLY=setup, demo or test)
	@scripts/fresh

full-os: setup ## Boot nodes with systemd and cloud-init, and test them; builds their image first (minutes): make full-os IMAGE=debian-11
	@BUILD=$(BUILD) IMAGE=$(IMAGE) ONLY="$(ONLY)" scripts/full-os

conformance: setup ## Run the tests marked `long` (minutes): trainings to their accuracy, and programs of others: make conformance PART=judges
	@ONLY="$(ONLY)" PART="$(PART)" scripts/conformance

images: setup ## Make the images of recipes in the local cloud, test them, and write down what they contain: make images RECIPES=jax
	@scripts/images $(RECIPES)

fuzz: SECONDS ?= 3600
fuzz: setup ## Fuzz everything that reads untrusted input, for SECONDS (default: an hour): make fuzz SECONDS=60 SEED=1
	@PHALANX_FUZZ_S=$(SECONDS) PHALANX_FUZZ_SEED=$(SEED) .venv/bin/pytest tests/fuzz

bench: setup ## Run the benchmarks; prints a table and writes benchmarks/results/<date>.json
	@.venv/bin/python -m benchmarks
