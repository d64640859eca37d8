#!/bin/bash
# run.sh [--quick] [FILTER] - installs what is missing, builds, runs every test; the last line is "N passed, N failed".
#   --quick   without the sanitizer build
#   FILTER    only tests whose name contains this
# A test is one of: tests/tidy.sh; a cmocka program (unit, sim); a script in tests/node or tests/mount, which prints
# a line "ok CLAIM" or "not ok CLAIM ..." for each claim, as does tests/fuzz/run for each fuzz target. Everything is run from
# the top, with its own ports and directories. docs/testing.md tells more, and how to run longer (FUZZ_SECONDS and others).
set -u
cd "$(dirname "$(realpath "$0")")/.."
top=$PWD
quick= filter=
for arg in "$@"; do
    case $arg in
    --quick) quick=1 ;;
    *) filter=$arg ;;
    esac
done

bash deps.sh test || { echo "0 passed, 1 failed"; exit 1; }

passed=0 failed=0
# What of ours runs or is mounted: it must be the same afterwards.
ours() {
    pgrep -af "^$top/build(-asan)?/(node/kvnode|fs/kvfs)" || true
    findmnt -rn -t fuse.kvfs -o TARGET || true
}
before=$(ours | sort)
logs=$(mktemp -d)
# A test that is ended ends what it started.
trap 'kill $(jobs -p) 2>/dev/null; wait; rm -rf "$logs"' EXIT
trap 'exit 143' INT TERM

# count WORD TAG LOG: claims that a script reported with WORD, and what cmocka summed up behind [ TAG ].
count() {
    awk -v word="$1 " -v tag="$2" '
        index($0, word) == 1 { n++ }
        $1 == "[" && $2 == tag && $4 ~ /^[0-9]+$/ && $5 ~ /^test/ { n += $4 }
        END { print n + 0 }' "$3"
}

# note NAME STATUS LOG TOOK: adds up what one test printed.
note() {
    local name=$1 status=$2 log=$3 good bad
    good=$(count ok PASSED "$log")
    bad=$(count "not ok" FAILED "$log")
    # A test that crashed, ran into its limit, or printed no result at all has failed, whatever it
    # counted before.
    if { [ "$status" -ne 0 ] && [ "$bad" -eq 0 ]; } || [ $((good + bad)) -eq 0 ]; then
        bad=$((bad + 1))
        echo "not ok $name ended with status $status"
    fi
    passed=$((passed + good)) failed=$((failed + bad))
    if [ "$bad" -gt 0 ]; then
        echo "--- $name failed:"
        tail -n 60 "$log"
    else
        echo "$name: $good ok ($4 s, at $SECONDS)"
    fi
}

# Three tests at a time, on two processors: most of them wait for processes a good part of the time. Each has ports and
# directories of its own. One of the three is the fault run, as long as that lasts.
declare -A running=() # pid: number, begin and name
started=0
long_run=mount/test_nemesis.py
export NEMESIS_SECONDS=${NEMESIS_SECONDS:-150}

reap() {
    local pid status number began name
    wait -n -p pid "${!running[@]}"
    status=$?
    read -r number began name <<<"${running[$pid]}"
    unset "running[$pid]"
    note "$name" "$status" "$logs/$number" $((SECONDS - began))
}
finish() { while [ ${#running[@]} -gt 0 ]; do reap; done; }

# run NAME LIMIT COMMAND...: starts it as soon as there is room.
run() {
    local name=$1 limit=$2
    shift 2
    [[ -z $filter || $name == *"$filter"* ]] || return 0
    [ ${#running[@]} -lt 3 ] || reap
    started=$((started + 1))
    timeout -k 10 "$limit" "$@" >"$logs/$started" 2>&1 </dev/null &
    running[$!]="$started $SECONDS $name"
}

# build DIR TARGETS OPTION...: what was printed is in $logs/DIR. It leaves the tests beside it their time.
build() {
    local dir=$1 targets=$2 how=configure
    shift 2
    [ -d "$dir" ] || how=setup
    # shellcheck disable=SC2086 # no target, or several
    meson $how "$dir" -Dwerror=true "$@" >"$logs/$dir" 2>&1 && nice -n 10 ninja -C "$dir" $targets >>"$logs/$dir" 2>&1
}

# built DIR PID: waits for that build; false, and why, when it failed.
built() {
    wait "$2" && return
    grep -E 'error|warning|FAILED' -A5 "$logs/$1" | head -n 60
    echo "not ok $1"
    failed=$((failed + 1))
    return 1
}

# suite LABEL BUILDDIR: begins all programs and scripts against one build; those that take long first, so that in the
# end nothing waits for one of them alone.
suite() {
    local label=$1 dir=$2 test limit
    local -A begun=()
    for test in "tests/$long_run" tests/mount/test_interrupt.py tests/node/test_* tests/mount/test_*; do
        [ -f "$test" ] && [ -z "${begun[$test]:-}" ] || continue
        begun[$test]=yes limit=240
        [ "$test" != "tests/$long_run" ] || limit=$((NEMESIS_SECONDS + 450))
        script "$label" "$dir" "$test" $limit
    done
    for test in "$dir"/tests/sim_* "$dir"/tests/test_*; do
        [ -f "$test" ] && [ -x "$test" ] && run "$label/$(basename "$test")" 300 "$test"
    done
}

# script LABEL BUILDDIR FILE LIMIT: one of node/ or mount/.
script() {
    KVNODE=$top/$2/node/kvnode KVFS=$top/$2/fs/kvfs KVFS_TEST_SANITIZED=$([ "$1" = asan ] && echo 1) \
        run "$1/$(basename "$(dirname "$3")")/$(basename "$3")" "$4" "$([[ $3 == *.py ]] && echo python3 || echo bash)" "$3"
}

# Each is built while the tests of the one before run, which leave processors some time. libFuzzer's is apart: it wants
# its coverage in all of the code.
run tidy 60 bash tests/tidy.sh
build build "" -Dtests=true &
built build $! && runs_plain=1
if [ -z "$quick" ]; then
    sanitize=(-Db_sanitize=address,undefined -Db_lundef=false)
    CC=clang build build-asan "" -Dtests=true -Dbuildtype=debugoptimized "${sanitize[@]}" &
    asan_build=$!
fi
[ -z "${runs_plain:-}" ] || suite plain build
if [ -z "$quick" ] && built build-asan $asan_build; then
    CC=clang build build-fuzz fuzz -Dtests=false -Dfuzz=true "${sanitize[@]}" &
    fuzz_build=$!
    export ASAN_OPTIONS=abort_on_error=1:detect_leaks=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
    suite asan build-asan
    if built build-fuzz $fuzz_build && [[ -z $filter || fuzz == *"$filter"* ]]; then
        run fuzz $((${FUZZ_SECONDS:-5} * 12 + 240)) bash tests/fuzz/run build-fuzz
    fi
fi
finish

left=$(comm -13 <(echo "$before") <(ours | sort))
if [ -n "$left" ]; then
    echo "not ok nothing is left running or mounted: $left"
    failed=$((failed + 1))
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
