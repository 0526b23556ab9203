# make run · make test · make check · make test-long · make soak · make test-shuffled · make coverage · make record · make pictures · make dist · make bench · make bench-quick · make spark
PYTHON ?= python3
# The Spark to work with; one that is not the pinned one has a virtual environment of its own.
PINNED := $(shell sed -n s/^pyspark==//p constraints.txt)
SPARK ?= $(PINNED)
VENV := .venv$(if $(filter-out $(PINNED),$(SPARK)),-spark-$(SPARK))
BIN := $(VENV)/bin
MVN := mvn -q -B
GOAL := copy-dependencies
# Tests wait longer than they compute: five processes keep two cores busy.
JOBS ?= 5
AXE_SHA256 := e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745
SIDE_BY_SIDE := -n $(JOBS) --dist loadscope --no-loadscope-reorder
# The order of sets follows from the hash seed: a seed of a simulation is the same history each time.
STEADY := PYTHONHASHSEED=0
# Tests are compiled once, not in each process, whatever the environment says.
export PYTHONDONTWRITEBYTECODE =

.PHONY: run pictures axe-core test test-shuffled coverage test-long record prove soak check format dist clean kafka-libs kafka44-libs works-with spark-jars spark-known spark-versions old-clients spark bench bench-quick

# On 127.0.0.1:9092 with its data in ./data, unless KPROXY_LISTEN and KPROXY_DATA_DIR say otherwise.
# The console is beside it, at CONSOLE, and ends with it.
CONSOLE ?= 127.0.0.1:8080
run: $(VENV)/.run
	@$(BIN)/kproxy serve & serve=$$!; \
	$(BIN)/kproxy console --listen $(CONSOLE) --bootstrap-server "$${KPROXY_LISTEN:-127.0.0.1:9092}" & \
	console=$$!; trap "kill $$serve" INT TERM HUP; \
	while kill -0 $$serve 2>/dev/null; do wait $$serve; status=$$?; done; \
	kill $$console 2>/dev/null; wait $$console; exit $$status

# Everything: static checks, fast tests, real clients, Kafka's tools, Spark, crashes and full disks.
test: $(VENV)/.dev kafka-libs spark-jars old-clients static
	$(BIN)/python -m compileall -q kproxy  # tests start it some hundred times
	$(STEADY) $(BIN)/python -m pytest -m "not long" $(SIDE_BY_SIDE)

# The same five times, files in another order each time: tests that fail now and then show.
test-shuffled: $(VENV)/.dev kafka-libs spark-jars old-clients
	$(BIN)/python -m compileall -q kproxy
	$(BIN)/python -m tests.running.shuffled -m "not long" $(SIDE_BY_SIDE)

# Branch coverage of kproxy by `make test`, with the processes that tests serve: build/coverage.txt.
# It takes twice the CPU, therefore a test of times may fail: the report is of what ran.
coverage: export COVERAGE_FILE = $(CURDIR)/build/coverage/data
coverage: $(VENV)/.dev kafka-libs spark-jars old-clients
	rm -rf build/coverage && mkdir -p build/coverage
	-COVERAGE_PROCESS_START=$(CURDIR)/pyproject.toml $(STEADY) $(BIN)/python -m pytest -m "not long" $(SIDE_BY_SIDE)
	$(BIN)/coverage combine -q
	$(BIN)/coverage report >build/coverage.txt
	grep TOTAL build/coverage.txt

# All long proofs on this commit; one that passed is not run again. Its record is docs/proofs.md.
prove: $(VENV)/.dev kafka-libs kafka44-libs works-with spark-jars spark-versions old-clients axe-core
	$(BIN)/python -m tests.running.prove

# Fresh seeds of all simulations, on two processes; conditions that none reaches show.
MINUTES ?= 60
soak: $(VENV)/.dev
	$(STEADY) $(BIN)/python -m tests.running.soak --minutes $(MINUTES)

test-long: $(VENV)/.dev kafka-libs kafka44-libs works-with spark-jars spark-versions old-clients axe-core
	$(BIN)/python -m pytest -m long
	$(BIN)/python -m pytest --live -m "not long" tests/kafka

# Kafka's answers, which kproxy's are compared with: tests/kafka/golden.
record: $(VENV)/.dev kafka-libs kafka44-libs
	$(BIN)/python -m pytest --record -m "not long" tests/kafka

# The pictures of docs/console, by a real browser.
pictures: $(VENV)/.dev
	$(BIN)/python -m pytest --record -m long tests/browser/test_flows.py

# kproxy against the Kafka beside it: README's table and picture, in benchmarks/results.
bench: $(VENV)/.dev kafka-libs
	$(BIN)/python -m benchmarks

bench-quick: $(VENV)/.dev kafka-libs
	$(BIN)/python -m benchmarks --quick --results benchmarks/results/quick

# Every test that needs nothing but Python, the dearest left out: at most three minutes.
check: JOBS = 6
check: $(VENV)/.check static
	$(STEADY) $(BIN)/python -m pytest -q -m "not long and not outside and not dear" $(SIDE_BY_SIDE)

.PHONY: static
static: $(VENV)/.check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	MYPYPATH=spark_examples $(BIN)/mypy spark_examples/*.py
	$(BIN)/mypy examples/outbox/*.py
	$(BIN)/mypy --follow-imports=silent -p benchmarks
	$(BIN)/lint-imports

format: $(VENV)/.check
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# What spark_examples need: for another Spark, make spark SPARK=3.5.1
spark: $(VENV)/.run spark-jars
	grep -v -E '^(pyspark|py4j)==' constraints.txt >$(VENV)/constraints.txt
	$(BIN)/pip install -q --disable-pip-version-check -c $(VENV)/constraints.txt pyspark==$(SPARK) -e ".[console,spark]"

# All that have jars to be had, for tests/spark/test_versions.py.
SPARKS := $(shell sed -n 's/.*<id>\(.*\)<.id>.*/\1/p' tools/spark/pom.xml)
spark-versions:
	$(foreach version,$(filter-out $(PINNED),$(SPARKS)),$(MAKE) spark SPARK=$(version) &&) true

kafka-libs: .tools/kafka-libs/.done
kafka44-libs: .tools/kafka44-libs/.done
# Java libraries of docs/works-with.md.
works-with: .tools/spring-libs/.done .tools/flink-libs/.done .tools/debezium-libs/.done
spark-jars: .tools/spark-jars-$(SPARK)/.done
old-clients: .tools/client-jars/.done .tools/kafka-python-2.0.2/.done
# What judges the console's pages in tests (MPL-2.0); no page has it.
axe-core: .tools/axe-core/.done
.tools/axe-core/.done:
	mkdir -p .tools/axe-core
	cd .tools/axe-core && npm pack --silent axe-core@4.14.1 && echo "$(AXE_SHA256)  axe-core-4.14.1.tgz" | sha256sum -c --quiet
	tar -xzf .tools/axe-core/axe-core-4.14.1.tgz -C .tools/axe-core --strip-components=1 package/axe.min.js package/LICENSE
	touch $@

# Releases of one artifact exclude each other as dependencies.
.tools/client-jars/.done: GOAL := copy

.tools/spark-jars-$(SPARK)/.done: MVN += -P$(SPARK) -DincludeScope=compile
.tools/spark-jars-$(SPARK)/.done: tools/spark/pom.xml | spark-known
spark-known:
	@$(if $(filter $(SPARK),$(SPARKS)),,echo "no jars are known for Spark $(SPARK): SPARK is one of $(SPARKS)"; exit 1)
.tools/%/.done: tools/
	mkdir -p .tools/$*
	$(MVN) -f tools/$(firstword $(subst -, ,$*))/pom.xml dependency:$(GOAL) -DoutputDirectory=$(CURDIR)/.tools/$*
	touch $@

.tools/kafka-python-%/.done: $(VENV)/.made
	$(BIN)/pip install -q --disable-pip-version-check --no-deps --target .tools/kafka-python-$* kafka-python==$*
	touch $@

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kproxy needs Python 3.11 or later; name one with: make run PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.run: $(VENV)/.made pyproject.toml constraints.txt
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[console]'
	touch $@

$(VENV)/.check: $(VENV)/.run
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev,console]'
	touch $@

# All at once: an installation of each part would build kproxy anew.
$(VENV)/.dev: $(VENV)/.made pyproject.toml constraints.txt
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev,console,spark,outbox]'
	touch $(VENV)/.run $(VENV)/.check $@

# A wheel, the same bytes for the same commit, and what an environment holds that it alone is installed in (CycloneDX).
dist: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct)
dist: $(VENV)/.made
	rm -rf build/dist && mkdir -p build/dist
	git archive HEAD | tar -x -C build/dist --one-top-level=source
	$(BIN)/pip wheel -q --disable-pip-version-check --no-deps -w build/dist build/dist/source
	$(PYTHON) -m venv build/dist/environment
	build/dist/environment/bin/pip install -q --disable-pip-version-check -c constraints.txt "$$(ls build/dist/*.whl)[console]"
	build/dist/environment/bin/python -I tools/sbom.py >build/dist/kproxy.cdx.json
	rm -rf build/dist/source build/dist/environment

clean:
	rm -rf $(VENV) .tools build *.egg-info
