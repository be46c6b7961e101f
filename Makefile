# `make demo` answers a question; `make test` runs the tests; `make venv` makes the environment that
# both need, once.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
READY = $(VENV)/.ready
SITE = $(VENV)/.site

.PHONY: demo test venv soak docs site lint clean

demo: $(READY)
	$(BIN)/ablate run studies/quickstart.toml
	$(BIN)/ablate report quickstart

# three processes of one thread each: some wait for processes that they start, which read compiled
# modules
test: $(READY)
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 3 --dist worksteal

venv: $(READY)

soak: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto -m slow -rP  # with what the tests print: kills, resumed runs

docs: $(READY)
	$(BIN)/python docs/generate.py

site: $(SITE)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # build/site/index.html; broken links fail

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build *.egg-info

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "ablate needs Python 3.11 or newer; give one as make PYTHON=..."'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

$(SITE): $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	touch $@
