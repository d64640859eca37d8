#!/bin/bash
# compare.sh [REPEATS [FILES]] - kvfs beside a local FUSE file system, in one run; markdown on stdout.
#
# Measures, in turns and in another order each time, REPEATS (3) times: libfuse's example passthrough_ll (a
# directory of the same disk behind FUSE, one copy, nothing synced: the floor for any FUSE file system), kvfs
# with --fsync everysec, and kvfs with --fsync always. The table gives medians, and the medians of the ratios
# within each turn, which say more than the rates where a machine is not alone.
#
# FSBENCH, KVBENCH name the measuring programs (see README.md; without KVBENCH there is no table of HTTP).
# BUILD (../build beside this script) has ours. DIR (/var/tmp) is on the disk to be measured. PORT (24500) is the
# first of six ports. LOAD ("100:1 100:8 4096:1 4096:8") lists SIZE:THREADS. Everything it starts it also ends.
set -eu
here=$(dirname "$(realpath "$0")")
repeats=${1:-3} files=${2:-300}
fsbench=$(realpath "${FSBENCH:?path of the fsbench program}")
kvbench=${KVBENCH:+$(realpath "$KVBENCH")}
port=${PORT:-24500}
load=${LOAD:-100:1 100:8 4096:1 4096:8}
examples=/usr/share/doc/libfuse3-dev/examples
work=$(mktemp -d "${DIR:-/var/tmp}/kvfs-compare.XXXXXX")
results=$work/results.jsonl
arms=(passthrough everysec always)
peer_pid=

finish() {
    local arm
    for arm in everysec always; do
        [ ! -e "$work/$arm" ] || "$here/cluster.sh" down "$work/$arm" || true
    done
    ! mountpoint -q "$work/passthrough/mnt" || umount "$work/passthrough/mnt" || true
    [ -z "$peer_pid" ] || kill "$peer_pid" 2>/dev/null || true
    wait
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 1' INT TERM

up_passthrough() {
    local dir=$work/passthrough source=$examples/passthrough_ll.c
    mkdir -p "$dir/data" "$dir/mnt"
    if [ -e "$source" ]; then cat "$source"; else zcat "$source.gz"; fi >"$dir/passthrough_ll.c"
    cp "$examples/passthrough_helpers.h" "$dir"
    # shellcheck disable=SC2046 # several words are wanted
    cc -O2 -w -o "$dir/passthrough_ll" "$dir/passthrough_ll.c" $(pkg-config --cflags --libs fuse3)
    "$dir/passthrough_ll" -f -o "source=$dir/data" "$dir/mnt" >"$dir/log" 2>&1 </dev/null &
    peer_pid=$!
    # shellcheck disable=SC2016 # the inner shell expands it
    timeout 20 bash -c 'until mountpoint -q "$0"; do sleep 0.05; done' "$dir/mnt"
}

# fs ARM SIZE THREADS: one run of fsbench, as one line of JSON. The stream is measured once a turn.
fs() {
    local mib=0 line
    [ "$2:$3" != "${load%% *}" ] || mib=128
    line=$("$fsbench" "$work/$1/mnt" --files "$files" --size "$2" --threads "$3" --stream-mib $mib --json | tr -d '\n') ||
        echo "compare.sh: $1, size $2, threads $3: a phase failed" >&2
    [ -z "$line" ] || echo "{\"arm\":\"$1\",\"turn\":$turn,${line#\{}" >>"$results"
}

# kv ARM PORT: puts and gets at one node, 100 bytes.
kv() {
    local threads op
    for threads in 1 8; do
        for op in put get; do
            echo "$1 $turn $threads $op $("$kvbench" kvnode "$2" $op --threads $threads --count 2000)" >>"$work/kv"
        done
    done
}

turn_of() {
    local arm=$1 each
    for each in $load; do
        fs "$arm" "${each%:*}" "${each#*:}"
    done
    [ -n "$kvbench" ] || return 0
    case $arm in
    everysec) kv "$arm" "$port" ;;
    always) kv "$arm" $((port + 3)) ;;
    esac
}

up_passthrough
PORT=$port "$here/cluster.sh" up "$work/everysec" everysec
PORT=$((port + 3)) "$here/cluster.sh" up "$work/always" always
for turn in $(seq 0 $((repeats - 1))); do
    for n in 0 1 2; do
        turn_of "${arms[$(((turn + n) % 3))]}"
    done
done
echo "$(nproc) processors, $files files, $repeats turns, load average at the end $(cut -d' ' -f1 /proc/loadavg)"
echo
touch "$work/kv"
python3 "$here/compare.py" "$results" "$work/kv"
