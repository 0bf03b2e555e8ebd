# The two commands are `make demo` and `make test`; everything they need is set up on the way.
# Variables: VENV (default .venv), PYTEST_ARGS, FUZZ_SECONDS, SOAK_ARGS, CMAKE_BUILD_PARALLEL_LEVEL.
SHELL := /bin/bash
VENV ?= .venv
BIN := $(VENV)/bin
FRAMEWORKS := .venv-frameworks
SITE := import sysconfig; print(sysconfig.get_path("purelib"))
FUZZ_SECONDS ?= 15
export CMAKE_ARGS ?= -DDMLCOMM_WERROR=ON
# Packages are installed without bytecode. Python writes it when it first loads a module, whatever the
# environment says: torch then loads in half of the time.
unexport PYTHONDONTWRITEBYTECODE
# cmake and ninja are the system's, and pip's where there are none.
export PATH := $(PATH):$(abspath $(BIN))

CXX_FILES = $(shell git ls-files '*.h' '*.cc')

.PHONY: help setup build demo test test-cpp test-python check format bench bars docs conformance \
  soak frameworks wheel clean

help:  ## This list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# --- environment: each stamp is remade only when what it depends on has changed ---

$(BIN)/python:
	scripts/system_packages.sh build
	"$$(scripts/find_python.sh)" -m venv $(VENV)

$(VENV)/.requirements: pyproject.toml scripts/requirements.py | $(BIN)/python
	$(BIN)/python scripts/requirements.py dev demo | \
	  $(BIN)/pip install -q --no-compile -r /dev/stdin
	touch $@

$(VENV)/.installed: $(VENV)/.requirements setup.py
	$(BIN)/pip install -q --no-build-isolation --no-deps -e .
	touch $@

$(VENV)/.docs: $(VENV)/.requirements
	$(BIN)/python scripts/requirements.py docs | $(BIN)/pip install -q -r /dev/stdin
	touch $@

setup: build  ## Environment in .venv, with the package built into it (editable)

build: $(VENV)/.installed  ## Compile what has changed
	$(BIN)/python setup.py -q build_ext --inplace

# The frameworks lie over $(VENV), with its torch, against which dmlcomm is compiled.
$(FRAMEWORKS)/bin/python: | $(VENV)/.installed
	$(BIN)/python -m venv $(FRAMEWORKS)
	echo "import site; site.addsitedir('$$($(BIN)/python -c '$(SITE)')')" > \
	  "$$($(FRAMEWORKS)/bin/python -c '$(SITE)')/below.pth"

$(VENV)/.wheel: $(VENV)/.requirements
	$(BIN)/python scripts/requirements.py wheel | $(BIN)/pip install -q -r /dev/stdin
	touch $@

# --- what people run ---

demo: build  ## Train LeNet-5 with gloo and with dmlcomm and compare: on this host, then in a lab
	$(BIN)/python examples/demo.py
	$(BIN)/python examples/demo_lab.py

test:  ## Everything: checks, C++ tests (plain, ASan+UBSan, TSan, fuzz), Python tests
	VENV=$(VENV) FUZZ_SECONDS=$(FUZZ_SECONDS) scripts/tests.sh

# The plain tests link what the Python modules are made of, and so lie in the same folder.
test-cpp: build
	scripts/system_packages.sh build test
	scripts/cpp_tests.sh plain "build/$$($(BIN)/python -c 'import sys; print(sys.implementation.cache_tag)')"
	scripts/cpp_tests.sh address
	scripts/cpp_tests.sh thread
	scripts/fuzz.sh $(FUZZ_SECONDS)

test-python: build
ifdef PYTEST_ARGS
	$(BIN)/pytest $(PYTEST_ARGS)
else
	$(BIN)/pytest -m "not alone" -n $$(nproc) --dist loadgroup
	$(BIN)/pytest -m alone
endif

check: $(VENV)/.requirements  ## Formatting, lint, types and the layer rules
	$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python setup.py -q protocol
	$(BIN)/mypy
	$(BIN)/python scripts/check_layers.py

format: $(VENV)/.requirements  ## Rewrite the sources as `make check` wants them
	$(BIN)/clang-format -i $(CXX_FILES)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: build  ## Side by side with gloo and OpenMPI: times, ratios, bounds
	-scripts/system_packages.sh bench
	$(BIN)/python -m benchmarks

bars: build  ## Judge the performance bars in one run (longer than bench)
	-scripts/system_packages.sh bench
	$(BIN)/python -m benchmarks.bars

docs: build $(VENV)/.docs  ## Manual in site/
	$(BIN)/python -m dmlcomm.lab draw docs/lab-bcube.png --topology bcube:3,2 --rate 200mbit
	$(BIN)/python -m dmlcomm proxy draw --hosts 8 --racks 2 --oversubscription 4 \
	  --picture docs/proxy-trees.png
	$(BIN)/python -m benchmarks.proxy.page --folder docs
	$(BIN)/python -m benchmarks.reproduce_bml --folder docs --draw
	$(BIN)/python -m benchmarks.reproduce_psnet --folder docs --draw
	$(BIN)/python -m benchmarks.reproduce_mlnet --folder docs --draw
	$(BIN)/python -m benchmarks.prio.switch_page --folder docs --draw
	$(BIN)/python -m benchmarks.prio.steps_page --folder docs --draw
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

conformance: build  ## PyTorch's own distributed tests on this backend
	$(BIN)/python -m tests.conformance

soak: build  ## Random operations under random faults, for minutes (SOAK_ARGS="--hours 8 --seed 7")
	PYTHONPATH=tests $(BIN)/python -m soak $(SOAK_ARGS)

frameworks: build $(FRAMEWORKS)/bin/python  ## Examples of Lightning, Ray, Hugging Face, ...; newest releases
	$(BIN)/python scripts/requirements.py --only frameworks | \
	  $(FRAMEWORKS)/bin/pip install -q --upgrade -r /dev/stdin
	REQUIRE_FRAMEWORKS=1 $(FRAMEWORKS)/bin/python -m pytest --durations 0 -rs \
	  tests/test_frameworks.py tests/test_examples.py -k "frameworks or elastic or torchft"

wheel: $(VENV)/.wheel  ## sdist, and a wheel for the torch in .venv, in dist/
	$(BIN)/python scripts/build_wheel.py dist

clean:  ## Remove what was built; the environment stays
	rm -rf build dist site demo_output *.egg-info dmlcomm/*.so
	rm -f docs/lab-*.png docs/proxy-*.png docs/reproduction-*.png
	rm -f dmlcomm/*/_proto/*_pb2*
	rm -f $(VENV)/.installed
