# The menu. Everything works as root on Debian 12 with a Rust toolchain; `make help` lists it.

SHELL := /bin/sh
MAKEFLAGS += --no-print-directory
PYTHON := /usr/bin/python3

# Debian packages, by the target that needs them.
BUILD_PACKAGES := gcc libc6-dev libibverbs-dev
RUN_PACKAGES := python3 python3-pyverbs ibverbs-utils perftest crun iproute2 nftables util-linux qperf strace ucx-utils

.PHONY: help deps build test demo bench clean

help:
	@echo "make build   library, daemon and command line into dist/"
	@echo "make demo    RDMA between two containers, beside TCP (needs root; about 2 minutes)"
	@echo "make test    all tests (needs root; about 20 minutes)"
	@echo "make bench   latency and bandwidth against the raw limits of this machine (3 minutes)"
	@echo "make deps    install the Debian packages that the above need (they do it themselves)"
	@echo "make clean   remove what was built"

deps:
	@tools/install-packages $(BUILD_PACKAGES) $(RUN_PACKAGES)

build:
	@tools/install-packages $(BUILD_PACKAGES)
	@cargo xtask dist

test: deps build
	@$(PYTHON) tests/run $(TESTS)

demo: deps build
	@$(PYTHON) demo/demo.py

bench: deps build
	@$(PYTHON) bench/bench.py $(BENCH)

clean:
	cargo clean
	rm -rf dist
