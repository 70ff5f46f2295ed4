# A thin front: CMake presets do the work. `make` builds, `make reproduce` runs the first study.
JOBS ?= $(shell nproc)
PYTHON := .venv/bin/python
SOURCES = $(shell git ls-files --cached --others --exclude-standard '*.cc' '*.h' '*.cu')

# $(call configured,PRESET,FOLDER): Ninja configures again by itself when a CMake file or a glob changes.
configured = @test -f $(2)/build.ninja || cmake --preset $(1)

.PHONY: build reproduce test test-cuda test-pages style bench bench-maps bench-calls bench-training bench-attention bench-attention-memory gpu mutate-cuda wheel check-wheel check-arm check-vllm docs pages papers log lint format sanitize fuzz weekly clean setup setup-lint setup-clang setup-browser

build: setup
	$(call configured,release,build)
	@cmake --build build -j $(JOBS)

setup:
	@scripts/setup.sh

setup-lint:
	@scripts/setup.sh lint

setup-clang:
	@scripts/setup.sh clang

setup-browser:
	@scripts/setup.sh browser

reproduce:
	@echo "make reproduce: installs what is missing, builds (the first time at most 10 minutes on two fast cores," \
	  "half an hour on slow ones), and trains four models (at most 10 or 25 minutes more; it shows the time left)"
	@$(MAKE) --no-print-directory build
	./tsallis reproduce max-retrieval --scale quick --resume

# The kernels are tested in a tree of their own (build-kernels): without torch on any path, and with every
# instruction set that the compiler knows. The rest is tested as it ships. ccache knows the kernels of the first tree
# again in the second. With nvcc CUDA kernels are compiled for one architecture; CUDA_ARCHITECTURES="80;90a;100;120"
# compiles for these, then and until it says otherwise. The wheel is made and tried in an environment of its own.
CUDA_ARCHITECTURES ?=
test: style
	$(call configured,release,build)
	$(call configured,kernels,build-kernels)
	$(if $(CUDA_ARCHITECTURES),@cmake build-kernels -DTSALLIS_CUDA_ARCHITECTURES="$(CUDA_ARCHITECTURES)" >/dev/null)
	@cmake --build build -j $(JOBS) --target all tests
	@cmake --build build-kernels -j $(JOBS) --target all tests
	@$(MAKE) --no-print-directory check-wheel
	@$(PYTHON) scripts/run_tests.py --ctest build-kernels --ctest build --pytest python/tests

# The CUDA kernels for every architecture, where there is nvcc, and the tests of the kernel library with them.
test-cuda: setup
	$(call configured,cuda,build-cuda)
	@cmake --build build-cuda -j $(JOBS) --target all tests
	@$(PYTHON) scripts/run_tests.py --ctest build-cuda

# The pages of `tsallis look` in Chromium, which it installs: `make test` has these tests where a browser is.
test-pages: build setup-browser
	@$(PYTHON) -m pytest -q python/tests/test_look_browser.py

# AddressSanitizer and UndefinedBehaviorSanitizer with the usual compiler; ThreadSanitizer with Clang, because
# GCC's OpenMP runtime does not tell it what synchronises and every parallel loop looks like a race.
sanitize: setup-clang
	$(call configured,dev,build-dev)
	$(call configured,tsan,build-tsan)
	@cmake --build build-dev -j $(JOBS) --target all tests
	@cmake --build build-tsan -j $(JOBS) --target all tests
	@$(PYTHON) scripts/run_tests.py --timeout 3600 --ctest build-dev --ctest build-tsan

# Each for SECONDS. An input that fails stays in build-fuzz/; `build-fuzz/bin/NAME_fuzz FILE` repeats it.
SECONDS ?= 600
FUZZERS ?= attention cache
fuzz: setup-clang
	$(call configured,fuzz,build-fuzz)
	@cmake --build build-fuzz -j $(JOBS) --target $(addsuffix _fuzz,$(FUZZERS))
	@cd build-fuzz && for name in $(FUZZERS); do \
	  mkdir -p corpus/$$name && bin/$${name}_fuzz -max_total_time=$(SECONDS) -max_len=2048 -len_control=0 \
	    -print_final_stats=1 corpus/$$name || exit 1; done

# What takes too long for every change: the sanitizers, an hour of fuzzing, clang-tidy, the wheel with other torches and
# in vLLM, ARM's processors, the CUDA kernels for every architecture and faults in them, pages in a browser. Once a week.
weekly: TORCHES = 2.10.0 2.13.0 2.15.0
weekly: lint check-wheel check-arm check-vllm sanitize test-cuda mutate-cuda test-pages
	@$(MAKE) fuzz SECONDS=3600

# Everything that takes a GPU: build, tests, compute-sanitizer, benchmark. Not after `setup`, which needs Debian's
# packages: here nvcc, CMake and the machine's own Python do. GPU="build test" and the like run parts alone.
GPU ?=
gpu:
	@python3 gpu/run.py $(GPU)

# Faults in the CUDA kernels, one after the other: the emulated tests must find them. An hour of a core.
mutate-cuda: setup
	$(call configured,kernels,build-kernels)
	@cmake --build build-kernels -j $(JOBS) --target tsallis
	@$(PYTHON) scripts/mutate_cuda.py

bench: bench-maps bench-calls bench-training

bench-maps: build
	@mkdir -p build/bench
	$(PYTHON) bench/maps.py --out build/bench/maps.json

bench-calls: build
	@mkdir -p build/bench
	$(PYTHON) bench/calls.py --out build/bench/calls.json

bench-training: build
	@cmake --build build -j $(JOBS) --target training_steps decoder_steps
	@mkdir -p build/bench
	$(PYTHON) bench/training.py --out build/bench/training.json
	$(PYTHON) bench/training_sequences.py --out build/bench/training-sequences.json --figure build/bench/training-sequences

# Some half an hour, and the figure of docs/index.md; BENCH="--cases n4096" and the like measure less and leave that alone.
bench-attention: build
	./tsallis bench attention --out build/bench $(BENCH)
	$(if $(BENCH),,cp $(addprefix build/bench/attention.,svg csv json) docs/figures/)

# What a call of attention takes beyond its arguments, in a few minutes.
bench-attention-memory: build
	PYTHONPATH=python $(PYTHON) bench/attention_memory.py --out build/bench/attention-memory.json

# The committed studies' pages with all their figures, drawn from results/runs: build/pages/STUDY/report.html.
pages: build
	@scripts/draw_pages.sh build/pages

# docs/papers.md: every table and figure of the papers, from recipes and results.
papers: setup
	PYTHONPATH=python $(PYTHON) -m tsallis_report.papers

# The index of docs/log.md, from the headings of its entries.
log:
	@scripts/log_index.py

# The package's pages, in build/docs.
docs: setup
	@NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict -q

# One wheel for every torch from 2.10 on, in build-wheel/wheelhouse; then used in a fresh environment with the torch of
# .venv, or in one for each version that TORCHES names. MACHINE=aarch64 compiles for ARM, into build-arm/wheelhouse.
TORCHES ?=
MACHINE ?=
wheel: setup
	@scripts/build_wheel.sh $(MACHINE)
check-wheel: wheel
	@scripts/check_wheel.sh $(TORCHES)

# ARM's processors under emulation: the kernels' tests on two, and the operators of a wheel. ARM=kernels is a part.
ARM ?=
check-arm: setup
	@scripts/check_arm.sh $(ARM)

# The wheel in vLLM for CPUs, which it installs into build-vllm (1.5 GB): python/tests_vllm, some 15 minutes.
# VLLM="-k entmax" and the like run parts.
VLLM ?=
check-vllm: wheel
	@scripts/check_vllm.sh $(VLLM)

# What `make test` looks at before it builds: form and types, in seconds. `lint` adds clang-tidy, which takes longer.
style: setup
	@.venv/bin/clang-format --dry-run -Werror $(SOURCES)
	@$(PYTHON) -m ruff check -q .
	@$(PYTHON) -m ruff format -q --check .
	@$(PYTHON) -m mypy --no-error-summary

lint: style setup-lint
	@cmake --preset lint >/dev/null
	@scripts/tidy.sh build-lint

format: setup
	@.venv/bin/clang-format -i $(SOURCES)
	@$(PYTHON) -m ruff check --fix .
	@$(PYTHON) -m ruff format .

clean:
	rm -rf build build-gpu build-kernels build-cuda build-dev build-tsan build-fuzz build-ci build-lint build-arm build-vllm build-wheel
