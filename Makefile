# Every target prepares what it needs in .venv at its first run, and finds it ready at the next one.
# Works with GNU make and any /bin/sh, on a machine that has nothing else than Python and git (see CONTRIBUTING.md).

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test brokers lint coverage soak fuzz mutants states prove-01 prove-02 prove-03 prove-04 prove-05 prove-06 bench bench-tables clean

# The interpreter of .venv, 3.10 to 3.13. To take another one later: make clean, then PYTHON=...
override PYTHON := $(or $(PYTHON),python3)
# How many seeds `make soak` runs.
SEEDS ?= 10000
# How long `make fuzz` goes on.
SECONDS ?= 600
# More arguments for pytest: make test ARGS="-k clock"
ARGS ?=
# Some tables for `make bench-tables`: ONLY=core-events,wan
ONLY ?=

VENV := .venv
BIN := $(VENV)/bin
# A comma in it would end an argument of $(call ...).
PROVE := .[fast,test,bench]
PROVE_SPARK := .[fast,test,bench,spark]
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
PYENV_ROOT ?= $(HOME)/.pyenv

# A stamp holds the folder that it was made for. One from before the checkout was moved or copied, or whose interpreter
# has gone, does not count.
$(shell for stamp in $(VENV)/.ready-*; do \
    [ -x $(BIN)/python ] && [ "$$(cat "$$stamp" 2>/dev/null)" = "$(CURDIR)" ] || rm -f "$$stamp"; \
done)

help: ## this list
	@echo 'make TARGET [PYTHON=python3] [SEEDS=10000] [ARGS="arguments for pytest"]'
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  \1: \2/p' Makefile

demo: $(VENV)/.ready-package ## see total order across topics on this machine: ordered-pubsub demo
	@$(BIN)/ordered-pubsub demo

test: brokers $(VENV)/.ready-tox ## lint, the tests on each Python from 3.10 to 3.13 that is found, and what is heavy once (TOXENV=py311 for one)
	@$(run_tox)

brokers:
	@$(provide_brokers)

lint: $(VENV)/.ready-tox ## only ruff and mypy
	@TOXENV=lint; export TOXENV; $(run_tox)

coverage: $(VENV)/.ready-tox ## which branches of the core no test takes
	@TOXENV=coverage; export TOXENV; $(run_tox)

soak: $(VENV)/.ready-package ## simulate many more seeds than the tests do (SEEDS=10000)
	@$(BIN)/python -m ordered_pubsub.testing.soak --seeds $(SEEDS) --workers 2

fuzz: $(VENV)/.ready-prove ## feed whatever reads with what it does not expect (SECONDS=600)
	@cd tests && ../$(BIN)/python -m fuzz.run --seconds $(SECONDS)

mutants: $(VENV)/.ready-package ## take the guards away one at a time, and write docs/mutants.md again
	@cd tests && ../$(BIN)/python -m simulation.mutants > ../docs/mutants.md

states: $(VENV)/.ready-package ## draw docs/states.md from the tables in the code
	@$(BIN)/python -m ordered_pubsub.testing.states > docs/states.md

prove-01: $(VENV)/.ready-package ## print the evidence for the first milestone, line by line with its figures
	@$(BIN)/python benchmarks/prove_01.py

prove-02: brokers $(VENV)/.ready-prove ## … and for the second: brokers, kills, figures, security, fuzzing (two hours)
	@$(BIN)/python benchmarks/prove_02.py

prove-03: brokers $(VENV)/.ready-prove ## … and for the third: exactly once over lossy lines, whatever is killed (half an hour)
	@$(BIN)/python benchmarks/prove_03.py

prove-04: brokers $(VENV)/.ready-spark ## … and for the fourth: Spark, killed pipelines, rates, memory, the audit, sizes (half an hour)
	@$(BIN)/python benchmarks/prove_04.py

prove-05: brokers $(VENV)/.ready-spark ## … and for the fifth: forgers, damaged disks, a hostile client, silent brokers, costs (an hour)
	@$(BIN)/python benchmarks/prove_05.py

prove-06: brokers $(VENV)/.ready-spark $(VENV)/.ready-tox ## … and for the sixth: the client's machine, rooms, adapters, costs, tests (two hours)
	@$(BIN)/python benchmarks/prove_06.py

bench: $(VENV)/.ready-bench ## measure the core
	@$(BIN)/python benchmarks/core.py

bench-tables: brokers $(VENV)/.ready-spark ## measure all tables of benchmarks/README.md, and write them again (an hour; ONLY=wan,replay)
	@$(BIN)/python benchmarks/tables.py $(if $(ONLY),--only $(ONLY))

clean: ## remove everything that was set up, built or cached
	@rm -rf $(VENV) .tox build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage*
	@rm -rf ./*.egg-info adapters/*.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# pyenv's interpreters come last on PATH, so that tox finds those that the machine does not have otherwise. All environments
# run two side by side, and each shows what it says when it is done; one that is asked for shows it at once.
define run_tox
for folder in "$(PYENV_ROOT)"/versions/3.1[0-3].*/bin; do \
    if [ -d "$$folder" ]; then PATH="$$PATH:$$folder"; fi; \
done; \
export PATH; \
how="run-parallel --parallel 2 --parallel-no-spinner"; \
[ -z "$$TOXENV" ] || how=run; \
$(BIN)/python -m tox $$how --quiet $(if $(ARGS),-- $(ARGS))
endef

# What the targets stand on.

define install
{ $(PIP) install $(1) || { \
    echo "make: expected pip to install the above into $(VENV), and it could not." >&2; \
    echo "make: it needs a package index: check the network and pip's configuration (pip config list)," >&2; \
    echo "make: then run the same make again. If $(VENV) itself is broken: make clean first." >&2; \
    exit 1; }; \
}; printf '%s' "$(CURDIR)" > $@
endef

$(VENV)/.ready-package: setup.cfg pyproject.toml | $(BIN)/python
	@echo "make: installing ordered-pubsub into $(VENV) (only now)"
	@$(call install,--editable .)

$(VENV)/.ready-bench: setup.cfg pyproject.toml | $(BIN)/python
	@echo "make: installing ordered-pubsub and what the benchmarks need into $(VENV) (only now)"
	@$(call install,--editable '.[bench]')

$(VENV)/.ready-prove: setup.cfg pyproject.toml | $(BIN)/python
	@echo "make: installing ordered-pubsub with all that its tests and measurements need into $(VENV) (only now)"
	@$(call install,--editable '$(PROVE)')

$(VENV)/.ready-spark: setup.cfg pyproject.toml | $(BIN)/python
	@echo "make: installing ordered-pubsub with all that its tests and measurements need, and PySpark, into $(VENV) (only now)"
	@$(call install,--editable '$(PROVE_SPARK)')

# Tox itself sees when setup.cfg or tox.ini change, and renews the environments concerned.
$(VENV)/.ready-tox: | $(BIN)/python
	@echo "make: installing tox into $(VENV), then its environments into .tox (only now: minutes)"
	@$(call install,'tox>=4.40')

$(BIN)/python:
	@$(check_interpreter)
	@$(provide_ensurepip)
	@echo "make: creating $(VENV) with $$($(PYTHON) --version 2>&1) (only now)"
	@$(PYTHON) -m venv --clear $(VENV) || { \
	    echo "make: expected '$(PYTHON) -m venv $(VENV)' to work; see above, and try another PYTHON=..." >&2; \
	    rm -rf $(VENV); exit 1; }

define check_interpreter
$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null || { \
    echo "make: expected '$(PYTHON)' to be a Python 3.10, 3.11, 3.12 or 3.13; it answers:" >&2; \
    echo "make:   $$($(PYTHON) --version 2>&1)" >&2; \
    echo "make: name one that is: make $(or $(MAKECMDGOALS),demo) PYTHON=/path/to/python3.11" >&2; \
    echo "make: (Debian and Ubuntu: apt-get install python3)" >&2; \
    exit 1; }
endef

# Debian's Python comes without what creates virtual environments.
define provide_ensurepip
$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
    package="python$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"; \
    echo "make: $$package is missing, without which '$(PYTHON)' cannot create virtual environments"; \
    packages="$$package"; services=""; $(apt_install); \
    $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
        echo "make: expected '$(PYTHON)' to have ensurepip, to create $(VENV) with; it has not." >&2; \
        $(say_apt_line); \
        echo "make: (elsewhere than on Debian and Ubuntu: a Python that is complete, with PYTHON=...)" >&2; \
        exit 1; }; }
endef

# The tests start brokers of their own (ordered_pubsub/testing/brokers.py), and look for the programs in these folders too.
# Spark starts a Java runtime.
define find_missing
missing=""; \
for program in mosquitto nats-server rabbitmq-server java; do \
    PATH="$$PATH:/usr/local/sbin:/usr/sbin:/opt/homebrew/sbin:/opt/homebrew/bin" \
        command -v "$$program" >/dev/null || missing="$$missing $$program"; \
done
endef

# RabbitMQ brings Erlang, and Erlang's package a name server of its own with two units; who has that already keeps it.
define add_epmd
case "$$missing" in \
    *rabbitmq-server*) command -v epmd >/dev/null || services="$$services epmd.service epmd.socket" ;; \
esac
endef

define provide_brokers
$(find_missing); \
if [ -n "$$missing" ]; then \
    echo "make: the tests run over real brokers, and Spark; missing:$$missing"; \
    packages="$$(echo "$$missing" | sed 's/\<java\>/default-jre-headless/')"; \
    services="$$(echo "$$missing" | sed 's/\<java\>//')"; $(add_epmd); $(apt_install); \
    $(find_missing); \
    if [ -n "$$missing" ]; then \
        echo "make: expected these programs, and they are not there:$$missing" >&2; \
        packages="$$(echo "$$missing" | sed 's/\<java\>/default-jre-headless/')"; $(say_apt_line); \
        exit 1; \
    fi; \
fi
endef

# Installs $$packages if this user may; who calls it sees whether they are there then. The $$services that come with them
# are neither started (RUNLEVEL is for init scripts, the masks are for systemd and gone after a restart) nor enabled.
define apt_install
if [ "$$(id -u)" = 0 ]; then as_root="env"; \
elif ! command -v sudo >/dev/null; then as_root=""; \
elif [ -t 0 ]; then as_root="sudo"; \
else as_root="sudo -n"; fi; \
if [ -n "$$as_root" ] && command -v apt-get >/dev/null; then \
    echo "make: installing" $$packages; \
    [ -d /run/systemd/system ] || services=""; \
    [ -z "$$services" ] || $$as_root systemctl --quiet --runtime mask $$services; \
    $$as_root apt-get -qq update && \
    $$as_root env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 PREVLEVEL=N \
        apt-get -qq install -y --no-install-recommends $$packages >/dev/null; \
    [ -z "$$services" ] || $$as_root systemctl --quiet --runtime unmask $$services; \
    [ -z "$$services" ] || $$as_root systemctl --quiet disable $$services; \
fi
endef

define say_apt_line
echo "make: run this as root, then the same make again:" >&2; \
echo "    apt-get update && apt-get install -y" $$packages >&2
endef
