#!/bin/sh
# Runs every fuzz target for SECONDS (default 10). With cargo-fuzz and a nightly toolchain under
# libFuzzer and AddressSanitizer, else with seeded random inputs. Fails if a target finds something.
set -eu
cd "$(dirname "$0")"
seconds=${1:-10}
case $seconds in ''|*[!0-9]*) echo "usage: fuzz/run.sh [SECONDS]" >&2; exit 2 ;; esac
cargo build --quiet --release --locked --bin driver
driver=${CARGO_TARGET_DIR:-target}/release/driver
if [ -z "${FUZZ_DRIVER:-}" ] && cargo fuzz --version >/dev/null 2>&1 &&
    cargo +nightly --version >/dev/null 2>&1; then
    "$driver" corpus corpus
    for target in ring_consumer link_records session_decode broker wire_packet \
        transport_connection engine_link engine_trace cm_message; do
        echo "$target: libFuzzer, $seconds s"
        cargo +nightly fuzz run --fuzz-dir . --features libfuzzer "$target" -- \
            -max_total_time="$seconds" -max_len=4096 -timeout=20 -verbosity=0 -print_final_stats=0
    done
else
    echo "fuzz: no cargo-fuzz or no nightly toolchain: random inputs instead"
    "$driver" "$seconds" "${FUZZ_SEED:-1}"
fi
