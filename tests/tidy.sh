#!/bin/bash
# tidy.sh - style that a machine can check: layering, quarantined libraries, include guards, banned calls, sizes, folder maps.
set -u
cd "$(dirname "$(realpath "$0")")/.."
failures=0

# claim TEXT OFFENDERS: one claim; what stands in OFFENDERS breaks it.
claim() {
    if [ -n "$2" ]; then
        echo "not ok $1:"
        sed 's/^/    /' <<<"$2"
        failures=$((failures + 1))
    else
        echo "ok $1"
    fi
}
sources=$(git ls-files -co --exclude-standard -- '*.c' '*.h')
product=$(grep -E '^(common|node|fs)/' <<<"$sources")
including() { grep -nE "^#include [<\"]$1" $2 /dev/null; } # PATTERN FILES
only_in() { including "$1" "$sources" | grep -vE "^($2):"; } # PATTERN FILES-THAT-MAY

claim "common includes nothing of node or fs" "$(including '(node|fs)/' "$(grep '^common/' <<<"$sources")")"
claim "node includes nothing of fs" "$(including 'fs/' "$(grep '^node/' <<<"$sources")")"
claim "fs includes nothing of node" "$(including 'node/' "$(grep '^fs/' <<<"$sources")")"
pure='common/(hash|ring|ballot|record|message|quorum|keypath|status|sums|base64|nearest|buf|err|list|limits)'
claim "base and pure modules include only each other" \
    "$(including 'common/' "$(grep -E "^$pure\.[ch]$" <<<"$sources")" | grep -vE "\"$pure\.h\"")"

claim "curl stays in transport_http.c, streams.c and curl_loop.[ch]" "$(only_in 'curl/' 'common/curl_loop\.h')"
claim "curl_loop.h and streams.h are for these" \
    "$(only_in 'common/(curl_loop|streams)\.h' 'common/(transport_http\.c|curl_loop\.c|streams\.[ch])')"
claim "jansson stays in config.c, config_ring.c, json.c and json_read.c" "$(only_in 'jansson' 'common/(config|config_ring|json|json_read)\.c|tests/.*')"
claim "xxhash stays in hash.c" "$(only_in 'xxhash' 'common/hash\.c')"
claim "microhttpd stays in server.c and exchange.[ch]" "$(only_in 'microhttpd' 'node/(server\.c|exchange\.[ch])|tests/.*')"
claim "exchange.h is for these two" "$(only_in 'node/exchange' 'node/(server|exchange)\.c')"
claim "hiredis stays in redis_link.c" "$(only_in 'hiredis' 'node/redis_link\.c')"
claim "rocksdb stays in store_rocksdb.c and rocks.c" "$(only_in 'rocksdb/' 'node/(store_rocksdb|rocks)\.c')"
claim "fuse stays in main.c and the handlers" "$(only_in 'fuse' 'fs/(main|ops[a-z_]*)\.[ch]')"

banned='(strcpy|strcat|sprintf|vsprintf|gets|atoi|atol|sleep|usleep|strtok|rand)'
claim "no banned call" "$(grep -nE "(^|[^A-Za-z0-9_>.])$banned\(" $sources | grep -vE ':[0-9]+: *\*|/\*.*'"$banned")"
claim "every header has its guard" "$(for h in $(grep '\.h$' <<<"$sources"); do
    guard=KVFS_$(tr 'a-z/.' 'A-Z__' <<<"$h")
    grep -q "^#ifndef $guard$" "$h" && grep -q "^#define $guard$" "$h" || echo "$h: $guard"
done)"
claim "every file begins with what it is" "$(for f in $sources; do
    head -n 2 "$f" | grep -qE "^(/\*| \*) $(basename "$f") - " || echo "$f"
done)"
claim "no line is longer than 100 columns" "$(for f in $sources; do
    expand "$f" | awk -v f="$f" 'length($0) > 100 {print f ":" NR ": " length($0)}'
done)"
claim "no product file is longer than 700 lines" "$(wc -l $product | awk '$2 != "total" && $1 > 700 {print $2 ": " $1}')"
claim "no product function is longer than 80 lines" "$(for f in $product; do
    awk -v f="$f" '/^\{/ {start = NR} /^\}/ {if (start && NR - start > 80) print f ":" start ": " NR - start; start = 0}' "$f"
done)"
claim "the map of common (docs/architecture.md) names every file" "$(for f in $(grep -E '^common/.*\.c$' <<<"$sources"); do
    grep -q "$(basename "$f" .c)" docs/architecture.md || echo "$f"
done)"
for dir in node fs; do
    claim "the map in $dir/main.c names every file" "$(for f in $(grep -E "^$dir/.*\.c$" <<<"$sources"); do
        grep -q "$(basename "$f" .c)" $dir/main.c || echo "$f"
    done)"
done
claim "no trailing white space" "$(grep -nE '[[:space:]]+$' $sources)"
[ $failures -eq 0 ]
