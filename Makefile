# A thin front: CMake presets do the work. `make` builds, `make reproduce` runs the first study.
JOBS ?= $(shell nproc)
PYTHON := .venv/bin/python
SOURCES = $(shell git ls-files --cached --others --exclude-standard '*.cc' '*.h')

# $(call configured,PRESET,FOLDER): Ninja configures again by itself when a CMake file or a glob changes.
configured = @test -f $(2)/build.ninja || cmake --preset $(1)

.PHONY: build reproduce test bench bench-maps bench-training bench-attention lint format sanitize clean setup setup-lint

build: setup
	$(call configured,release,build)
	@cmake --build build -j $(JOBS)

setup:
	@scripts/setup.sh

setup-lint:
	@scripts/setup.sh lint

reproduce: build
	./tsallis reproduce max-retrieval --scale quick --resume

# The kernels are tested in a tree of their own (build-kernels): without torch on any path, and with every
# instruction set that the compiler knows. The rest is tested as it ships.
test: setup
	$(call configured,release,build)
	$(call configured,kernels,build-kernels)
	@cmake --build build -j $(JOBS) --target all tests
	@cmake --build build-kernels -j $(JOBS) --target all tests
	@$(PYTHON) scripts/run_tests.py --ctest build-kernels --ctest build --pytest python/tests

sanitize: setup
	$(call configured,dev,build-dev)
	@cmake --build build-dev -j $(JOBS) --target all tests
	@$(PYTHON) scripts/run_tests.py --ctest build-dev

bench: bench-maps bench-training

bench-maps: build
	@mkdir -p build/bench
	$(PYTHON) bench/maps.py --out build/bench/maps.json

bench-training: build
	@mkdir -p build/bench
	$(PYTHON) bench/training.py --out build/bench/training.json

# Some twenty minutes, and the README's figure; BENCH="--cases n4096" and the like measure less and draw nothing.
bench-attention: build
	@mkdir -p build/bench
	$(PYTHON) bench/attention.py --out build/bench/attention.json $(if $(BENCH),$(BENCH),--figure docs/figures/attention)

lint: setup-lint
	@clang-format --dry-run -Werror $(SOURCES)
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .
	@cmake --preset lint >/dev/null
	@scripts/tidy.sh build-lint

format: setup-lint
	@clang-format -i $(SOURCES)
	@$(PYTHON) -m ruff check --fix .
	@$(PYTHON) -m ruff format .

clean:
	rm -rf build build-kernels build-dev build-ci build-lint
