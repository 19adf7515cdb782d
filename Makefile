# The two commands of the README are `make demo` and `make test`; both set everything up themselves.
# Nothing is installed outside this folder. A second call finds the stamp file and starts at once.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check -q
# One thread a process: two processes with two threads each are ten times slower on two cores.
export OMP_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1

.PHONY: demo test test-timm test-trackers check lint types layers docs bench soak hashes hashes-check install-hashed test-slow clean help

help:
	@echo "make demo   train ERM and MR2 side by side on the embedded data and write report.html"
	@echo "make test   checks and the test suite"
	@echo "make check  ruff, mypy --strict, import layers"
	@echo "make docs   the documentation site, offline; warnings are errors; writes site/"
	@echo "make bench  speed, as ratios measured in one run; writes benchmarks/out/*.json (BENCH=name: one of them)"
	@echo "make soak   kills, full disks, long hauls, hostile files; at most 15 minutes; writes soak/out/*.json"
	@echo "make hashes-check  is what pip would install what requirements-ci.txt pins by checksum?"

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing into $(VENV) (once) ..."
	$(PIP) install -c constraints.txt -e '.[demo]'
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing into $(VENV) (once) ..."
	$(PIP) install -c constraints.txt -e '.[test]'
	@touch $@ $(VENV)/.demo

$(VENV)/.docs: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing into $(VENV) (once) ..."
	$(PIP) install -c constraints.txt -e '.[docs]'
	@touch $@

demo: $(VENV)/.demo
	$(BIN)/python -m classmargin.recipes.demo

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test
	$(BIN)/mypy

layers: $(VENV)/.test
	$(BIN)/python -m pytest -q -p no:cacheprovider tests/architecture

check: lint types layers

test: check
	$(BIN)/python -m pytest -q -n 2 -m "not slow" --dist loadfile

test-slow: $(VENV)/.test
	$(BIN)/python -m pytest -q -m slow

# timm and open_clip bring torchvision, which breaks other packages beside a CPU build of torch: an environment of their own.
.venv-timm/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-timm
	.venv-timm/bin/python -m pip --disable-pip-version-check -q install -c constraints.txt -e '.[timm,open-clip]' pytest pytest-timeout
	@touch $@

test-timm: .venv-timm/.ready
	.venv-timm/bin/python -c "from classmargin.backbones import open_clip_family, timm_family as t; t.load_timm(), open_clip_family.load_open_clip()"
	.venv-timm/bin/python -m pytest -q -W ignore tests/integrations/test_timm.py tests/integrations/test_open_clip.py

# W&B and MLflow for real, offline. The versions of constraints.txt but for pyarrow: MLflow wants an older one than the extra data.
.venv-trackers/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-trackers
	sed 's/^pyarrow==.*/pyarrow==25.0.1/' constraints.txt > .venv-trackers/constraints.txt
	.venv-trackers/bin/python -m pip --disable-pip-version-check -q install -c .venv-trackers/constraints.txt -e '.[report,tensorboard,wandb,mlflow]' pytest pytest-timeout
	@touch $@

test-trackers: .venv-trackers/.ready
	.venv-trackers/bin/python -c "import mlflow, tensorboard, wandb"
	.venv-trackers/bin/python -m pytest -q -W ignore tests/integrations/test_loggers.py tests/integrations/test_loggers_of_runs.py tests/training/test_loggers.py

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "open site/index.html; its search needs a server: python3 -m http.server -d site"

bench: $(VENV)/.test  
	$(BIN)/python -m benchmarks $(BENCH)

soak: $(VENV)/.test
	$(BIN)/python -m soak

# By checksum; fails where pip is given other files (another platform or another build of torch).
install-hashed: | $(VENV)/bin/python
	$(PIP) install --require-hashes --no-deps -r requirements-ci.txt

hashes: $(VENV)/.test
	$(BIN)/python scripts/make_ci_hashes.py

hashes-check: $(VENV)/.test
	$(BIN)/python scripts/make_ci_hashes.py --check

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis benchmarks/out soak/out site
