#!/bin/bash
# cluster.sh up DIR [FSYNC [STORE]] - three nodes on loopback with their data in DIR, mounted at DIR/mnt.
# cluster.sh down DIR               - ends them and removes DIR.
# PORT (24500) is the first of three ports; BUILD (../build beside this script) has the programs.
set -eu
build=$(realpath "${BUILD:-$(dirname "$0")/../build}")
port=${PORT:-24500}

usage() { echo "usage: cluster.sh up DIR [always|everysec|never [rocksdb|memory]] | down DIR" >&2; exit 2; }
[ $# -ge 2 ] || usage
dir=$(realpath -m "$2")

up() {
    local fsync=$1 store=$2 n
    [ ! -e "$dir" ] || { echo "cluster.sh: $dir exists; take it down first" >&2; exit 1; }
    mkdir -p "$dir/mnt"
    printf '{"nodes":[{"id":"node-1","addr":"localhost:%d"},{"id":"node-2","addr":"localhost:%d"},
        {"id":"node-3","addr":"localhost:%d"}],"replication_factor":3,"max_value_size":%d}\n' \
        "$port" $((port + 1)) $((port + 2)) $((256 << 20)) >"$dir/cluster.json"
    for n in 1 2 3; do
        "$build/node/kvnode" --config "$dir/cluster.json" --id node-$n --data "$dir/node-$n" --fsync "$fsync" \
            --store "$store" >"$dir/node-$n.log" 2>&1 </dev/null &
        echo $! >>"$dir/pids"
    done
    # returns once the mount answers and a quorum was reached, or tells why not
    "$build/fs/kvfs" "$dir/cluster.json" "$dir/mnt" -o timeout=20
}

down() {
    local pid
    ! mountpoint -q "$dir/mnt" || umount "$dir/mnt"
    for pid in $(cat "$dir/pids"); do
        kill "$pid" 2>/dev/null || continue
        echo "$pid" >"$dir/stopping"
        timeout 20 pidwait -F "$dir/stopping" || ! kill -KILL "$pid" 2>/dev/null
    done
    rm -rf "$dir"
}

case $1 in
up) up "${3:-always}" "${4:-rocksdb}" ;;
down) down ;;
*) usage ;;
esac
