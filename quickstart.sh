#!/bin/bash
# quickstart.sh - builds kvfs, starts the nodes of cluster.json with their data in ./data, and mounts ./mnt.
# quickstart.sh stop - unmounts and stops all of it; the data stays.
set -eu
cd "$(dirname "$(realpath "$0")")"
top=$PWD
limit=30 # seconds that starting or stopping one process may take

# The ids of cluster.json. (The file is checked by kvnode itself; this only has to find the names.)
node_ids() {
    grep -o '"id"[[:space:]]*:[[:space:]]*"[^"]*"' cluster.json | sed 's/.*"\([^"]*\)"$/\1/'
}

# The pid of a program of ours with exactly these arguments at its end; nothing when it does not run.
pid_of() {
    pgrep -f "^$top/build/$1( |$)" | while read -r pid; do
        if tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -qF -- "$2"; then
            echo "$pid"
            break
        fi
    done
}
node_pid() { pid_of node/kvnode "--id $1 "; }
mount_pid() { pid_of fs/kvfs "$top/mnt"; }

# Waits until this process has ended (pidwait takes its pid from a file).
wait_end() {
    local status=0
    echo "$1" >data/stopping.pid
    timeout $limit pidwait -F data/stopping.pid || status=$?
    rm -f data/stopping.pid
    [ $status -ne 124 ] || { echo "process $1 does not end" >&2; return 1; } # 1: it was gone already
}

start_node() {
    local id=$1 log=data/$1.log pid
    pid=$(node_pid "$id")
    if [ -n "$pid" ]; then
        echo "$id already runs (pid $pid)"
        return
    fi
    : >"$log"
    setsid "$top/build/node/kvnode" --config cluster.json --id "$id" --data "data/$id" >>"$log" 2>&1 </dev/null &
    pid=$!
    # Ready is a line of the log. Should the process end first, so does tail.
    exec 3< <(exec tail -n +1 --pid=$pid -s 0.1 -f "$log")
    local follower=$!
    if ! timeout $limit grep -q -m1 ' listening ' <&3; then
        echo "$id did not start:" >&2
        tail -n 5 "$log" >&2
        exit 1
    fi
    kill $follower 2>/dev/null || true
    exec 3<&-
    echo "$id runs (pid $pid, log $log)"
}

# A mount whose process was killed stays behind, and answers nothing but that.
drop_dead_mount() {
    if LC_ALL=C stat mnt 2>&1 | grep -q "not connected"; then
        fusermount3 -u -z mnt
        echo "mnt was left behind by a process that was killed; it is unmounted"
    fi
}

start() {
    bash deps.sh build
    drop_dead_mount
    [ -f build/build.ninja ] || meson setup build -Dtests=false >data-meson.log 2>&1 || { cat data-meson.log >&2; exit 1; }
    rm -f data-meson.log
    ninja -C build --quiet
    mkdir -p data mnt
    for id in $(node_ids); do
        start_node "$id"
    done
    if mountpoint -q mnt; then
        echo "mnt is already mounted"
    else
        "$top/build/fs/kvfs" "$top/cluster.json" "$top/mnt"
        echo "mnt is mounted"
    fi
    cat <<END

Try:
    echo hello > mnt/greeting; cat mnt/greeting; ls -la mnt
    curl localhost:8082/kv/greeting
    curl -T README.md localhost:8083/kv/readme; ls -l mnt
    curl localhost:8081/replicas/greeting
    ./quickstart.sh stop
END
}

stop() {
    local pid
    pid=$(mount_pid)
    drop_dead_mount
    if mountpoint -q mnt 2>/dev/null; then
        umount mnt 2>/dev/null || fusermount3 -u mnt
        echo "mnt is unmounted"
    fi
    [ -z "$pid" ] || wait_end "$pid"
    for id in $(node_ids); do
        pid=$(node_pid "$id")
        [ -n "$pid" ] || continue
        kill "$pid"
        wait_end "$pid"
        echo "$id has stopped"
    done
}

case ${1:-start} in
start) start ;;
stop) stop ;;
*) echo "usage: quickstart.sh [stop]" >&2; exit 2 ;;
esac
