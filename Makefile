# The two commands of the README are `make demo` and `make test`; both set everything up themselves.
# Nothing is installed outside this folder. A second call finds the stamp file and starts at once.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check -q
# One thread a process: two processes with two threads each are ten times slower on two cores.
export OMP_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1

.PHONY: demo test test-oldest test-newest licences test-timm test-trackers test-ray check lint types layers docs bench soak hashes hashes-check install-hashed test-slow clean help

help:
	@echo "make demo   look for a remedy for the weak classes of the embedded data (classmargin improve) and write report.html"
	@echo "make test   checks and the test suite"
	@echo "make test-oldest, make test-newest  the core on the lowest and on the newest versions of every package (environments of their own)"
	@echo "make licences  licences of everything installed, as Markdown"
	@echo "make check  ruff, mypy --strict, import layers"
	@echo "make docs   the documentation site, offline; warnings are errors; writes site/"
	@echo "make bench  speed as ratios, harm and coverage; writes benchmarks/out/*.json (BENCH=name: one of them, or an experiment of hours)"
	@echo "make soak   kills, full disks, long hauls, hostile files; at most 20 minutes; writes soak/out/*.json and the figures of docs/reliability.md"
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
	$(BIN)/python -m classmargin demo

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
	CLASSMARGIN_HYPOTHESIS=explore $(BIN)/python -m pytest -q -m "slow or property"

# timm and open_clip bring torchvision, which breaks other packages beside a CPU build of torch: an environment of their own.
.venv-timm/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-timm
	.venv-timm/bin/python -m pip --disable-pip-version-check -q install -c constraints.txt -e '.[timm,open-clip]' pytest pytest-timeout
	@touch $@

# TIMM_TRAIN_SCRIPT=path/of/train.py, from timm's repository, trains with that script too.
test-timm: .venv-timm/.ready
	.venv-timm/bin/python -c "from classmargin.backbones import library_families as f; f.load_timm(), f.load_open_clip()"
	.venv-timm/bin/python -m pytest -q -W ignore tests/integrations/test_timm.py tests/integrations/test_open_clip.py

# W&B and MLflow for real, offline. The versions of constraints.txt but for pyarrow: MLflow wants an older one than the extra data.
.venv-trackers/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-trackers
	sed 's/^pyarrow==.*/pyarrow==25.0.1/' constraints.txt > .venv-trackers/constraints.txt
	.venv-trackers/bin/python -m pip --disable-pip-version-check -q install -c .venv-trackers/constraints.txt -e '.[report,tensorboard,wandb,mlflow]' pytest pytest-timeout
	@touch $@

test-trackers: .venv-trackers/.ready
	.venv-trackers/bin/python -c "import mlflow, tensorboard, wandb"
	.venv-trackers/bin/python -m pytest -q -W ignore tests/integrations/test_trackers.py tests/integrations/test_reports_in_trackers.py tests/training/test_metric_logs.py

# Ray for real: each command on a local cluster of two workers, of which one is killed.
.venv-ray/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-ray
	.venv-ray/bin/python -m pip --disable-pip-version-check -q install -c constraints.txt -e '.[ray,train,report]' pytest pytest-timeout psutil
	@touch $@

test-ray: .venv-ray/.ready
	.venv-ray/bin/python -c "import ray"
	.venv-ray/bin/python -m pytest -q -W ignore tests/recipes/test_ray_engine.py tests/improve/test_kills.py

# The lowest version of every range in pyproject.toml, and the newest that pip finds. Warnings of other versions are not ours.
# On Linux both bring builds of torch with CUDA, several GB; nothing of it is needed to run them.
# The oldest Python the package supports and the newest that runs here; without them, PYTHON.
OLDEST_PYTHON ?= $(shell python3.10 -c "import sys; print(sys.executable)" 2>/dev/null || echo $(PYTHON))
NEWEST_PYTHON ?= $(shell for name in python3.14 python3.13 python3.12; do $$name -c "import sys; print(sys.executable)" 2>/dev/null && exit; done; echo $(PYTHON))
OLD_EXTRAS  := report,train,torchmetrics,sklearn
NEW_EXTRAS  := report,train,torchmetrics,sklearn,huggingface,skorch
TEST_TOOLS  := pytest pytest-timeout hypothesis jaxtyping beartype psutil
# The compiler of torch 2.4 breaks the graph of the loss in two, and notices hooks that come late.
OLD_SKIPS   := --deselect tests/mr2/test_compile.py --deselect tests/mr2/test_health.py::test_nothing_is_read_while_compiling_and_reading_between_steps_finds_the_signs \
	--deselect tests/integrations/test_capture.py::test_capture_after_the_first_compiled_call_is_an_error_not_a_wrong_number
CORE_TESTS  := tests/mr2 tests/theory tests/integrations/test_capture.py tests/integrations/test_lightning.py \
	tests/integrations/test_sklearn_classifier.py tests/integrations/test_sklearn_offsets.py tests/integrations/test_torchmetrics.py

.venv-oldest/.ready: pyproject.toml scripts/lowest_versions.py
	$(OLDEST_PYTHON) -m venv .venv-oldest
	$(PYTHON) scripts/lowest_versions.py $(OLD_EXTRAS) > .venv-oldest/constraints.txt
	.venv-oldest/bin/python -m pip --disable-pip-version-check -q install -c .venv-oldest/constraints.txt -e '.[$(OLD_EXTRAS)]' $(TEST_TOOLS)
	@touch $@

test-oldest: .venv-oldest/.ready
	.venv-oldest/bin/python -m pytest -q -p no:cacheprovider -W ignore -m "not slow" $(OLD_SKIPS) $(CORE_TESTS)

.venv-newest/.ready: pyproject.toml
	$(NEWEST_PYTHON) -m venv .venv-newest
	.venv-newest/bin/python -m pip --disable-pip-version-check -q install --upgrade -e '.[$(NEW_EXTRAS)]' $(TEST_TOOLS) peft jax keras
	@touch $@

test-newest: .venv-newest/.ready
	.venv-newest/bin/python -m pytest -q -p no:cacheprovider -W ignore -m "not slow" $(CORE_TESTS) tests/integrations/test_skorch.py tests/integrations/test_huggingface.py

licences: $(VENV)/.test
	@$(BIN)/python scripts/list_licences.py

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "open site/index.html; its search needs a server: python3 -m http.server -d site"

bench: $(VENV)/.test
	$(BIN)/python -m benchmarks $(BENCH)

soak: $(VENV)/.test
	$(BIN)/python -m soak --page

# By checksum; fails where pip is given other files (another platform or another build of torch).
install-hashed: | $(VENV)/bin/python
	$(PIP) install --require-hashes --no-deps -r requirements-ci.txt

hashes: $(VENV)/.test
	$(BIN)/python scripts/make_ci_hashes.py

hashes-check: $(VENV)/.test
	$(BIN)/python scripts/make_ci_hashes.py --check

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis benchmarks/out soak/out site
