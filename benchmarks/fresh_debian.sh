#!/bin/bash
# Run make targets of this checkout's HEAD on a fresh Debian 12 with only Python 3.11, git and make (no python3-venv).
#
#   benchmarks/fresh_debian.sh demo demo test
#
# The machine is a folder made by debootstrap, with apt and pip set up as they are here; it is removed afterwards.
# Needs root.
set -euo pipefail
[ "$(id -u)" = 0 ] || { echo "fresh_debian: needs root, for debootstrap and chroot" >&2; exit 2; }
[ $# -gt 0 ] || { echo "usage: fresh_debian.sh MAKE-TARGET..." >&2; exit 2; }
source_tree=$(cd "$(dirname "$0")/.." && pwd)
if ! command -v debootstrap >/dev/null; then
    apt-get -qq update
    apt-get -qq install -y --no-install-recommends debootstrap >/dev/null
fi
work=$(mktemp -d)
machine=$work/machine
trap 'rm -rf --one-file-system "$work"' EXIT
debootstrap --variant=minbase --include=python3,git,make,ca-certificates bookworm "$machine" >"$work/log" 2>&1 ||
    { tail -20 "$work/log" >&2; exit 1; }

# Packages come from where they come from here.
for name in sources.list sources.list.d auth.conf.d keyrings trusted.gpg.d; do
    [ ! -e "/etc/apt/$name" ] || cp -a "/etc/apt/$name" "$machine/etc/apt/"
done
grep -lsi -e proxy -e https /etc/apt/apt.conf.d/* | while read -r file; do cp "$file" "$machine/etc/apt/apt.conf.d/"; done
[ ! -e /etc/pip.conf ] || cp /etc/pip.conf "$machine/etc/"
cp -L --remove-destination /etc/ssl/certs/ca-certificates.crt "$machine/etc/ssl/certs/ca-certificates.crt"

home=/srv
git clone -q --no-hardlinks "$source_tree" "$machine$home/clone"
chroot "$machine" python3 -c 'import ensurepip' 2>/dev/null && { echo "fresh_debian: python3-venv is there" >&2; exit 1; }
for target in "$@"; do
    echo "fresh Debian: make $target"
    SECONDS=0
    unshare --mount --pid --fork bash -c '
        set -e
        mount --make-rprivate /
        mount -t proc proc "$1/proc"
        mount --rbind /dev "$1/dev"
        cp /etc/resolv.conf "$1/etc/resolv.conf"
        exec chroot "$1" /usr/bin/env -i HOME="$3" LANG=C.UTF-8 TERM=dumb CI=true \
            PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin make -C "$3/clone" "$2"
    ' fresh-debian "$machine" "$target" "$home" </dev/null >"$work/log" 2>&1 || { tail -60 "$work/log" >&2; exit 1; }
    grep -E '^make: |passed|agree' "$work/log" || tail -5 "$work/log"
    echo "fresh Debian: make $target took $SECONDS s"
done
