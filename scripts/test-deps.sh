#!/usr/bin/env bash
# Installs what `make test` needs beyond Go, make and git: a C compiler for the race detector, Postgres
# for the Postgres store (its binaries only: Debian's own cluster is neither made nor started), and a
# pooler in front of it. Further packages are those that bear the name of the program that is missed:
# `make bench-peers` asks for redis-server.
set -euo pipefail

missing=()
command -v gcc >/dev/null || missing+=(gcc libc6-dev)
compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || missing+=(postgresql)
command -v pgbouncer >/dev/null || [ -x /usr/sbin/pgbouncer ] || missing+=(pgbouncer)
for program in "$@"; do
	command -v "$program" >/dev/null || missing+=("$program")
done
[ ${#missing[@]} -gt 0 ] || exit 0

sudo=()
[ "$(id -u)" = 0 ] || sudo=(sudo)

# Services of fresh packages don't start: a policy for this run, and no cluster is made.
conf=/etc/postgresql-common/createcluster.conf
if [ ! -e $conf ]; then
	"${sudo[@]}" mkdir -p "$(dirname $conf)"
	echo 'create_main_cluster = false' | "${sudo[@]}" tee $conf >/dev/null
fi
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
	printf '#!/bin/sh\nexit 101\n' | "${sudo[@]}" tee $policy >/dev/null
	"${sudo[@]}" chmod +x $policy
	trap '"${sudo[@]}" rm -f $policy' EXIT
fi

"${sudo[@]}" apt-get update -qq
# An answered-before configuration file is kept: ours above counts as one.
DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -qq --no-install-recommends \
	-o Dpkg::Options::=--force-confold "${missing[@]}"
