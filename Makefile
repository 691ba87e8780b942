# One command sets up a fresh machine and does what you asked: make demo, make test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Processes that run tests side by side.
JOBS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$(( n > 4 ? 4 : n )))
SYSTEM_PACKAGES := libosmesa6 libegl1 libgles2 libgl1 libgl1-mesa-dri libegl-mesa0 libopengl0 libvulkan1 libusb-1.0-0 \
	libhidapi-hidraw0
# Some virtual CPUs advertise AMX and then kill the process that uses it; tests run everywhere with this cap.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_FP16

.PHONY: setup setup-demo demo test unit check format docs bench clean

setup: $(VENV)/.installed .stamps/system .stamps/swiftshader

# What the demo needs: the core and the embedded simulation.
setup-demo: $(VENV)/.installed-demo .stamps/system

demo: setup-demo
	$(BIN)/referee demo

# Tests of one module stay in one process; those that measure time, or start many processes, run alone afterwards.
test: check
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m "not alone"
	$(BIN)/python -m pytest -m alone

unit: setup
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m "not slow and not alone"

check: setup
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff check --fix src tests benchmarks examples
	$(BIN)/ruff format src tests benchmarks examples

# The documentation as a site in site/; a warning fails. Nothing is loaded from the network, then or when it is read.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "open site/index.html, or with search: python3 -m http.server --bind 127.0.0.1 -d site"

bench: setup
	$(BIN)/python benchmarks/peers/setup.py
	$(BIN)/python benchmarks/sim_speed.py
	$(BIN)/python benchmarks/render_speed.py
	$(BIN)/python benchmarks/draw_pairs.py
	$(BIN)/python benchmarks/experts.py
	$(BIN)/python benchmarks/ppo_speed.py
	$(BIN)/python benchmarks/ppo_profile.py
	$(BIN)/python benchmarks/ppo_tasks.py
	$(BIN)/python benchmarks/recording_speed.py
	$(BIN)/python benchmarks/kill_recording.py
	$(BIN)/python benchmarks/kill_labelling.py
	$(BIN)/python benchmarks/campaign.py --files 10000 --kills 200
	$(BIN)/python benchmarks/dataset_speed.py
	$(BIN)/python benchmarks/lerobot_reads.py
	$(BIN)/python benchmarks/checksum_cost.py
	$(BIN)/python benchmarks/reader_speed.py
	$(BIN)/python benchmarks/reward_training.py
	$(BIN)/python benchmarks/scoring_speed.py
	$(BIN)/python benchmarks/serve_speed.py
	$(BIN)/python benchmarks/runtime_speed.py
	$(BIN)/python benchmarks/cluster_speed.py
	$(BIN)/python benchmarks/reward_speed.py
	$(BIN)/python benchmarks/refinement.py --steps 960000 --modes terminal
	$(BIN)/python benchmarks/refinement.py --modes terminal --folder .bench/refinement_320
	$(BIN)/python benchmarks/refinement.py --tasks PickCube --modes per_step
	$(BIN)/python benchmarks/refinement.py --tasks PickCube --seeds 0 --modes terminal --arms mined jitter
	$(BIN)/python benchmarks/refinement.py --tasks PickCube --scratch
	$(BIN)/python benchmarks/alarms.py
	$(BIN)/python benchmarks/gates.py
	$(BIN)/python benchmarks/control_loop.py
	$(BIN)/python benchmarks/twin_peg.py --minutes 30
	$(BIN)/python benchmarks/sac_speed.py
	$(BIN)/python benchmarks/rlpd.py
	$(BIN)/python benchmarks/maniskill_reward.py --task PushCube-v1
	$(BIN)/python benchmarks/maniskill_reward.py
	$(BIN)/python benchmarks/maniskill_speed.py --pool 500
	$(BIN)/python benchmarks/maniskill_pickcube.py
	$(BIN)/python benchmarks/vlm_trend.py
	$(BIN)/python benchmarks/history_reward.py --model .bench/vlm_trend/own/checkpoints/best_model --task PickCube --seed 1 --arms history oracle env none
	$(BIN)/python benchmarks/history_chain.py
	for seed in 1 2 3; do $(BIN)/python benchmarks/history_reward.py --model .bench/history_chain/taught/checkpoints/best_model --task Reach --seed $$seed --steps 48000 --eval-interval 3 --arms history oracle env none || exit 1; done
	$(BIN)/python benchmarks/history_chain.py --task PickCube --folder .bench/history_chain_pick
	$(BIN)/python benchmarks/history_reward.py --model .bench/history_chain_pick/taught/checkpoints/best_model --task PickCube --seed 1 --arms history
	$(BIN)/python benchmarks/peers/beside.py
	$(BIN)/python benchmarks/fetch.py
	$(BIN)/python benchmarks/background_speed.py --model .bench/refinement/PickCube_reward/checkpoints/best_model

clean:
	rm -rf $(VENV) .stamps .bench

# Every package is one whose digest stands in requirements/lock.txt, where that serves; torch comes as its index has it.
# $(call install,FILE OF REQUIREMENTS,EXTRA): by digests where the lock serves this machine, else by constraints alone.
define install
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Referee needs Python 3.11 or newer: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@if $(BIN)/python requirements/lock.py --check; then \
	  $(BIN)/python -m pip install --quiet --no-deps --require-hashes -r requirements/build.txt && \
	  $(BIN)/python -m pip install --quiet --no-deps --require-hashes --no-build-isolation -r requirements/$(1) && \
	  $(BIN)/python -m pip install --quiet -c constraints.txt torch && \
	  $(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .; \
	else \
	  echo "note: requirements/$(1) is for Python 3.11 to 3.13 on Linux x86-64: installing without digests" && \
	  $(BIN)/python -m pip install --quiet --upgrade pip && \
	  $(BIN)/python -m pip install --quiet -c constraints.txt -e ".[$(2)]"; \
	fi
endef

$(VENV)/.installed: pyproject.toml constraints.txt requirements/lock.txt requirements/build.txt
	$(call install,lock.txt,dev)
	touch $@ $(VENV)/.installed-demo

$(VENV)/.installed-demo: pyproject.toml constraints.txt requirements/demo.txt requirements/build.txt
	$(call install,demo.txt,sim)
	touch $@

# Software Vulkan, with which ManiSkill draws where there is no GPU: two files from Debian's Chromium, into ~/.cache.
.stamps/swiftshader: $(VENV)/.installed .stamps/system
	@mkdir -p .stamps
	@if ! command -v apt-get >/dev/null; then echo "note: ManiSkill needs a Vulkan driver"; \
	elif $(BIN)/python -c 'from referee.envs.maniskill import vulkan; vulkan.swiftshader() or vulkan.install()'; \
	then touch $@; else echo "note: ManiSkill will not start; later:  referee doctor --install-swiftshader"; fi

# System libraries for drawing: installed when that is allowed, otherwise the line to run is printed.
.stamps/system: Makefile
	@mkdir -p .stamps
	@missing=""; for p in $(SYSTEM_PACKAGES); do dpkg -s $$p >/dev/null 2>&1 || missing="$$missing $$p"; done; \
	if [ -z "$$missing" ]; then touch $@; \
	elif ! command -v apt-get >/dev/null; then echo "note: drawing needs OSMesa or EGL; install them with your package manager"; \
	elif [ "$$(id -u)" = 0 ]; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $$missing >/dev/null && touch $@; \
	else echo "note: to draw, run:  sudo apt-get update && sudo apt-get install -y$$missing"; fi
