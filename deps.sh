#!/bin/bash
# deps.sh [build|test] - installs the Debian packages that building (and testing) needs and that are missing.
# As root, or by sudo; where neither is possible it says what to install, and fails.
set -eu

build=(gcc libc6-dev meson ninja-build pkg-config curl fuse3 libfuse3-dev libcurl4-openssl-dev libhiredis-dev libjansson-dev
       libmicrohttpd-dev librocksdb-dev libxxhash-dev procps util-linux mount)
test=(libcmocka-dev python3 clang libclang-rt-dev git iproute2 ed make patch redis-server rsync sqlite3 vim-tiny)

want=("${build[@]}")
case ${1:-build} in
build) ;;
test) want+=("${test[@]}") ;;
*) echo "usage: deps.sh [build|test]" >&2; exit 2 ;;
esac

missing=()
for package in "${want[@]}"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" = 0 ]; then
    as_root=()
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    as_root=(sudo -n)
elif command -v sudo >/dev/null && [ -t 0 ]; then
    as_root=(sudo)
else
    echo "Please install these packages first: apt-get install ${missing[*]}" >&2
    exit 1
fi
echo "Installing: ${missing[*]}"
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
