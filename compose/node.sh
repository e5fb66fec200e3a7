#!/bin/sh
# Starts a node, or the broker: Valkey or Redis, whichever the image has. Data is on disk before a reply is sent; keys are
# never evicted. The password goes in by standard input, so that no process list shows it.
set -eu
server=valkey-server
command -v "$server" >/dev/null || server=redis-server
entrypoint=$(command -v docker-entrypoint.sh || true) # the images' own: it drops root

exec $entrypoint "$server" - --appendonly yes --appendfsync always --save '' --maxmemory-policy noeviction \
    --maxmemory "${NODE_MEMORY:-256mb}" "$@" <<END
requirepass "${NODE_PASSWORD:-}"
protected-mode no
END
