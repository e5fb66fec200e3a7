#!/usr/bin/env bash
# Disturbs the containers while they work: kills, pauses, or cuts off one node at a time, and kills workers.
#
#   ./disturb.sh [rounds]       default: until Ctrl-C; in the end everything runs again
#
# One node at a time leaves a majority. A node that was killed votes again only after 30 s, so rounds are REST=40 seconds
# apart. With REST=5 a second node goes before the first one votes: then there is no quorum for a while, and messages wait.
set -euo pipefail
cd "$(dirname "$0")"

rounds=${1:-0}
rest=${REST:-40}
network=dramatiq-idem
undo=()

if docker compose version >/dev/null 2>&1; then compose=(docker compose); else compose=(docker-compose); fi

say() { printf '%s  %s\n' "$(date +%T)" "$*"; }

id_of() { "${compose[@]}" ps -q "$1"; }

mend() {
    [ "${#undo[@]}" -eq 0 ] || "${undo[@]}" >/dev/null
    undo=()
}

trap 'mend; say "undisturbed again"' EXIT
trap 'exit 0' INT TERM

disturb() { # service, how, seconds
    local service=$1 how=$2 seconds=$3 id
    id=$(id_of "$service")
    if [ -z "$id" ]; then
        say "$service does not run: start it with ${compose[*]} up" >&2
        exit 1
    fi
    case $how in
        kill)
            undo=(docker start "$id")
            docker kill "$id" >/dev/null
            ;;
        pause)
            undo=(docker unpause "$id")
            docker pause "$id" >/dev/null
            ;;
        cut)
            undo=(docker network connect --alias "$service" "$network" "$id")
            docker network disconnect "$network" "$id"
            ;;
    esac
    say "$service: $how for $seconds s"
    sleep "$seconds"
    mend
    say "$service: back"
}

nodes=(node-a node-b node-c)
workers=(worker-a worker-b)
ways=(kill pause cut)

for ((round = 1; rounds == 0 || round <= rounds; round++)); do
    if ((round % 3 == 0)); then
        disturb "${workers[RANDOM % 2]}" kill $((RANDOM % 10 + 2))
    else
        disturb "${nodes[RANDOM % 3]}" "${ways[RANDOM % 3]}" $((RANDOM % 20 + 5))
    fi
    sleep "$rest"
done
