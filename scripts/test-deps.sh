#!/usr/bin/env bash
# Installs what `make test` needs beyond Go, make and git: a C compiler for the race detector.
# (The spine's tests start no service of Debian's; Postgres joins with the Postgres store.)
set -euo pipefail

missing=()
command -v gcc >/dev/null || missing+=(gcc libc6-dev)
[ ${#missing[@]} -gt 0 ] || exit 0

sudo=()
[ "$(id -u)" = 0 ] || sudo=(sudo)
"${sudo[@]}" apt-get update -qq
DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}"
