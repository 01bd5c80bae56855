#!/bin/sh
# Fuzzing, with a table of what was done at the end.
#   fuzz/run.sh [SECONDS [TARGET...]]  every target for so long (10), under libFuzzer and
#                                      AddressSanitizer with a nightly toolchain, else (or with
#                                      FUZZ_DRIVER=1) with seeded random inputs
#   fuzz/run.sh check [RUNS]           the kept inputs, and so many others of each target (300)
#   fuzz/run.sh keep                   chooses anew what is kept, from what libFuzzer has found
# Fails if a target finds something; the input is then in artifacts/.
set -eu
cd "$(dirname "$0")"
seconds=${1:-10}
[ $# = 0 ] || shift
target_folder=${CARGO_TARGET_DIR:-target}
driver=$target_folder/release/driver
host=$(rustc -vV | sed -n 's/^host: //p')

build_driver() { cargo build --quiet --release --locked --bin driver; }
# For some hundred inputs, which take no time worth a release build.
build_check() { cargo build --quiet --locked --bin driver; }
# What `cargo fuzz` does: coverage counters, comparisons traced, AddressSanitizer.
build_fuzzer() {
    cargo +nightly --version >/dev/null 2>&1 || return 1
    flags="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4"
    flags="$flags -Cllvm-args=-sanitizer-coverage-inline-8bit-counters"
    flags="$flags -Cllvm-args=-sanitizer-coverage-pc-table"
    flags="$flags -Cllvm-args=-sanitizer-coverage-trace-compares"
    RUSTFLAGS="$flags --cfg fuzzing -Zsanitizer=address -Ccodegen-units=1" \
        cargo +nightly build --quiet --release --locked --features libfuzzer --target "$host" \
        --bin fuzzer
}
fuzzer=$target_folder/$host/release/fuzzer
found=$target_folder/corpus
# A target's process outlives its inputs: threads and shared memory are no leaks.
export ASAN_OPTIONS=detect_leaks=0

case $seconds in
check)
    build_check
    exec "$target_folder/debug/driver" check "${1:-300}" ;;
keep)
    build_driver
    build_fuzzer
    for target in $("$driver" targets); do
        rm -rf "$found/small"
        mkdir -p "$found/small" "$found/$target" "corpus/$target"
        FUZZ_TARGET=$target "$fuzzer" -merge=1 -max_len=1024 "$found/small" "$found/$target" \
            "corpus/$target" >/dev/null 2>&1
        rm -rf "corpus/$target"
        mkdir -p "corpus/$target"
        # The smallest, of which there are the most ways to go on from.
        (cd "$found/small" && ls -Sr | head -n 60) | while read -r name; do
            cp "$found/small/$name" "corpus/$target/"
        done
    done
    exit ;;
''|*[!0-9]*)
    sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
    exit 2 ;;
esac

build_driver
if [ -n "${FUZZ_DRIVER:-}" ] || ! build_fuzzer; then
    echo "fuzz: no nightly toolchain, or not wanted: random inputs without guidance"
    exec "$driver" "$seconds" "${FUZZ_SEED:-1}" "$@"
fi
"$driver" seeds "$found"
mkdir -p artifacts
[ $# != 0 ] || set -- $("$driver" targets)
table=$(printf '%-22s %12s %9s %8s %9s' target executions a-second coverage features)
failed=0
for target in "$@"; do
    mkdir -p "$found/$target" "corpus/$target"
    log=$found/$target.log
    result=
    FUZZ_TARGET=$target "$fuzzer" "$found/$target" "corpus/$target" -max_total_time="$seconds" \
        -max_len=4096 -timeout=20 -print_final_stats=1 -artifact_prefix="artifacts/$target-" \
        >"$log" 2>&1 || { result=FOUND; failed=1; tail -n 40 "$log"; }
    stat() { sed -n "s/^stat::$1: *//p" "$log"; }
    last() { sed -n "s/.* $1: \([0-9]*\) .*/\1/p" "$log" | tail -n 1; }
    line=$(printf '%-22s %12s %9s %8s %9s %s' "$target" "$(stat number_of_executed_units)" \
        "$(stat average_exec_per_sec)" "$(last cov)" "$(last ft)" "$result")
    echo "$line"
    table="$table
$line"
done
echo
echo "$table"
exit $failed
