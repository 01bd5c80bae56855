# The menu. Everything works as root on Debian 12 with a Rust toolchain; `make help` lists it.

SHELL := /bin/sh
MAKEFLAGS += --no-print-directory
PYTHON := /usr/bin/python3

# Debian packages, by the target that needs them.
BUILD_PACKAGES := gcc libc6-dev libibverbs-dev librdmacm-dev protobuf-compiler libprotobuf-dev
# Tests of CPython's own, of the release that is installed.
PYTHON_TESTS := $(shell $(PYTHON) -c 'import sys; print("libpython%d.%d-testsuite" % sys.version_info[:2])' 2>/dev/null)
RUN_PACKAGES := $(PYTHON_TESTS) python3 python3-pytest python3-cffi python3-pyverbs python3-cryptography ibverbs-utils infiniband-diags perftest rdmacm-utils crun iproute2 nftables util-linux qperf strace ucx-utils \
	iperf3 systemd valgrind netcat-openbsd socat redis-server redis-tools nginx-light curl openssl haproxy nodejs mandoc man-db \
	etcd-server etcd-client
# For a virtual machine with Linux's own software RNIC, and for a look at packets.
GUEST_PACKAGES := qemu-system-x86 busybox-static kmod ibverbs-providers tshark
# Container platforms, each of which tests start for themselves.
PLATFORM_PACKAGES := docker.io podman netavark slirp4netns uidmap lxc systemd-container busybox-static
# Programs over sockets that only the long versions of tests start, and what builds tests of others.
SOCKET_PACKAGES := sockperf git memcached libmemcached-tools wrk apache2-bin apache2-utils postgresql openssh-server \
	openssh-client dpkg-dev cmake ninja-build autoconf automake pkg-config tcl8.6 python3-pip \
	openjdk-17-jdk-headless
# Programs over sockets that `make bench` loads.
BENCH_PACKAGES := sockperf memcached libmemcached-tools wrk postgresql
# For machines that boot a stock Debian.
STOCK_PACKAGES := debootstrap wget cpio
# For the newest release of rdma-core's own tests.
CONFORMANCE_PACKAGES := cmake ninja-build pkg-config cython3 libpython3-dev libnl-3-dev \
	libnl-route-3-dev libudev-dev curl
# What docs/compatibility.md tries, beside what tests need.
COMPATIBILITY_PACKAGES := libfabric-bin fio openmpi-bin libopenmpi-dev mpich libmpich-dev dapl2-utils \
	tgt libiscsi-dev ceph-mon ceph-osd ceph-common libclang-dev cmake libfabric-dev \
	libpsm2-dev libpsm-infinipath1-dev flex

.PHONY: help deps platforms guest guest-kernel guest-newest socket-suites build package check docs test conformance compatibility demo demo-wire demo-tenants demo-vm bench bench-machines bench-scale clean

help:
	@echo "make build   library, daemon and command line into dist/"
	@echo "make package  Debian packages of it: omniverb for hosts, omniverb-guest for virtual machines"
	@echo "make demo    RDMA between two containers, beside TCP (needs root; about 2 minutes)"
	@echo "make demo-wire  the same between two hosts, over RoCE v2 (needs root; about 2 minutes)"
	@echo "make demo-tenants  two owners on two hosts: refusals, and a rate under load (needs root; a minute)"
	@echo "make demo-vm  a virtual machine, a container and a process, between each two (needs root, QEMU;"
	@echo "             about 2 minutes)"
	@echo "make check   unit and property tests, lints (no root; three minutes once built)"
	@echo "make test    all tests (needs root; about 40 minutes the first time, 28 later)"
	@echo "make conformance  the tests of rdma-core's newest release, fetched and built (needs root;"
	@echo "             some minutes the first time)"
	@echo "make compatibility  programs of others, each as a row of docs/compatibility.md (needs root;"
	@echo "             builds some of them the first time)"
	@echo "make bench   latency and bandwidth against the raw limits of this machine, on one host"
	@echo "             between two, and against rdma_rxe; rate limits and floods (needs root;"
	@echo "             about 15 minutes)"
	@echo "make bench-machines  virtual machines: against rdma_rxe, and what the window adds (needs root, QEMU)"
	@echo "make bench-scale  up to 32 pairs of containers, machines or both at a time (needs root)"
	@echo "make soak    the transport under 10000 simulated networks (SEEDS=n for others), pages that"
	@echo "             move under stores 20000 times (CYCLES=n), and the long versions of tests"
	@echo "             (needs root; some hours)"
	@echo "make docs    the documents as a book, into target/book; its links are checked"
	@echo "make deps    install the Debian packages that the above need (they do it themselves)"
	@echo "make clean   remove what was built"

deps:
	@tools/install-packages $(BUILD_PACKAGES) $(RUN_PACKAGES)

# No service of these is started, as that of Docker, which changes the machine's packet filter.
platforms:
	@SYSTEMD_OFFLINE=1 RUNLEVEL=1 tools/install-packages $(PLATFORM_PACKAGES) || \
		echo "the cases that need these are skipped"

guest-kernel:
	@tools/install-packages $(GUEST_PACKAGES)
	@tests/guest/fetch-kernel target/tests/kernel

# Tests do without: those that need it say that they are skipped. What measures does not.
guest:
	@$(MAKE) guest-kernel || echo "the cases that need these are skipped"
	@for suite in bookworm trixie; do \
		[ -e target/tests/debian-$$suite ] || { tools/install-packages $(STOCK_PACKAGES) && \
		tests/guest/fetch-debian $$suite target/tests/debian-$$suite; } || \
		echo "the cases that need $$suite are skipped"; done

# What only the long versions of tests boot, and boot with.
guest-newest:
	@tests/guest/fetch-kernel target/tests/kernel-trixie trixie || echo "the cases that need this are skipped"
	@tests/guest/fetch-qemu target/tests/qemu sid || echo "the cases that need this are skipped"
	@tests/guest/fetch-libvirt target/tests/libvirt || echo "the cases that need this are skipped"

# Programs, and test suites of others, that the long versions of the sockets' tests run.
socket-suites:
	@tools/install-packages $(SOCKET_PACKAGES) || echo "the cases that need these are skipped"
	@tests/programs/sockets/fetch-suites target/tests/suites || echo "the cases that need this are skipped"

build:
	@tools/install-packages $(BUILD_PACKAGES)
	@cargo xtask dist

package: build
	@deploy/debian/build

check: build
	@cargo fmt --all --check
	@cargo clippy --quiet --workspace --all-targets --locked -- -D warnings
	@cargo xtask layers
	@cargo xtask tidy
	@OMNIVERB_ADOPT_CYCLES=100 cargo test --quiet --workspace --locked

# The guests are fetched while the build runs.
test: deps platforms
	@$(MAKE) --no-print-directory -j2 guest build
	@$(PYTHON) tests/run $(TESTS)

# The pages' links are checked by `cargo xtask tidy`, which needs no mdbook.
MDBOOK := target/mdbook/bin/mdbook
$(MDBOOK):
	@cargo install --quiet --root target/mdbook --locked mdbook --version 0.5.4

docs: $(MDBOOK)
	@cargo xtask tidy
	@$(MDBOOK) build docs
	@echo "target/book/index.html"

conformance: deps build
	@tools/install-packages $(CONFORMANCE_PACKAGES)
	@tests/conformance/fetch-rdma-core target/tests/conformance
	@$(PYTHON) tests/run --slow conformance

compatibility: deps build
	@tools/install-packages $(COMPATIBILITY_PACKAGES)
	@tests/compatibility/build_programs target/compatibility
	@tests/compatibility/run

demo: deps build
	@$(PYTHON) demo/demo.py

demo-wire: deps build
	@$(PYTHON) demo/wire.py

demo-tenants: deps build
	@$(PYTHON) demo/tenants.py

demo-vm: deps guest build
	@$(PYTHON) demo/vm.py

bench: deps guest-kernel build
	@tools/install-packages $(BENCH_PACKAGES) || echo "what needs these is left out"
	@failed=0; $(PYTHON) bench/bench.py $(BENCH) || failed=1; \
	$(PYTHON) bench/two_hosts.py $(BENCH_WIRE) || failed=1; \
	$(PYTHON) bench/two_hosts.py --mtu 9000 --out target/bench/wire-9000.json $(BENCH_WIRE) || failed=1; \
	$(PYTHON) bench/rdma_rxe_in_vm.py || failed=1; \
	$(PYTHON) bench/rate_limits.py $(BENCH_LIMITS) || failed=1; \
	$(PYTHON) bench/dma_api.py $(BENCH_DMA) || failed=1; \
	$(PYTHON) bench/tcp_applications.py $(BENCH_APPLICATIONS) || failed=1; \
	$(PYTHON) bench/tcp_native_and_carried.py $(BENCH_CONNECTIONS) || failed=1; \
	$(PYTHON) bench/object_costs.py $(BENCH_OBJECTS) || failed=1; \
	cargo build --release --package omniverb_pacer --example packet_cost || failed=1; \
	$(PYTHON) bench/tenant_cost_and_rates.py $(BENCH_TENANTS) || failed=1; \
	exit $$failed

bench-machines: deps guest build
	@$(PYTHON) bench/virtual_machines.py $(BENCH_MACHINES)

bench-scale: deps guest build
	@$(PYTHON) bench/many_pairs.py $(BENCH_SCALE)

SEEDS ?= 10000
CYCLES ?= 20000
soak: deps platforms guest guest-newest socket-suites build
	OMNIVERB_SEEDS=$(SEEDS) cargo test --release --locked -p omniverb_transport --test simulator -- --nocapture
	OMNIVERB_ADOPT_CYCLES=$(CYCLES) cargo test --release --locked -p omniverb_adopt --test adoption
	@$(PYTHON) tests/run --slow

clean:
	cargo clean
	rm -rf dist
