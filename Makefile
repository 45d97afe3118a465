# make demo    install what is missing and open the app      (PORT=, HOST=, EXTRAS=)
# make test    lint, types and every test, a browser included
# make setup   only the installing                            (EXTRAS=)
# make lint    ruff and mypy       make bench   measure against the peers, write RESULTS.md
# make clean   remove the environment and the caches; stored runs stay
#
# EXTRAS is a list of the extras in pyproject.toml. `make demo EXTRAS=` installs no torch and still
# shows everything published. Works with the make of macOS (GNU make 3.81).

EXTRAS ?= models
PORT   ?= 8501
HOST   ?= localhost
# Workers for the tests; two suit two cores.
JOBS   ?= 2

# The first Python that is new enough. PYTHON=/path/to/python chooses another.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo "$$p"; break; }; done)

venv   := .venv/bin/python
ensure  = @python="$(PYTHON)"; [ -n "$$python" ] || { \
	echo "cloudchamber: no Python 3.11 or newer was found; install one, or name it: make $@ PYTHON=/path/to/python3" >&2; exit 1; }; \
	exec "$$python" app/environment.py --extras

.PHONY: help setup demo test bench lint clean .test-setup

help:
	@sed -n '1,8s/^# \{0,1\}//p' Makefile

setup:
	$(ensure) "$(EXTRAS)"

demo: setup
	@exec $(venv) -m app.cli serve --port "$(PORT)" --host "$(HOST)"

.test-setup:
	$(ensure) "models,cluster,test"
	@$(venv) -m app.commands.browser

# Every check and every test runs to its end, so that one run shows all there is to mend.
check = ok=0; for tool in "ruff check ." "ruff format --check ." mypy; do $(venv) -m $$tool || ok=1; done

test: .test-setup
	@$(check); OMP_NUM_THREADS=1 $(venv) -m pytest -n $(JOBS) --dist loadfile; tests=$$?; \
	[ $$ok -eq 0 ] || echo "make lint fails: see above" >&2; \
	[ $$tests -eq 0 ] || exit $$tests; exit $$ok

lint: .test-setup
	@$(check); exit $$ok

bench: .test-setup
	@$(venv) -m tests.benchmarks.run_all

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis tests/artifacts *.egg-info
	find app data models precompute tests -name __pycache__ -type d -prune -exec rm -rf {} +
