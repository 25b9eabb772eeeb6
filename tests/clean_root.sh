#!/bin/bash
# Proves that the README's commands need nothing but what it says: runs them in an empty Debian root, on a clean clone
# of HEAD. Needs root and 6 GB of disk; leaves nothing behind, whatever happens.
#
#   tests/clean_root.sh                  make demo
#   tests/clean_root.sh "make test"      another command
#   ROOT=/var/tmp/bare tests/clean_root.sh    keep the root (and what it fetched) there, for the next time
set -euo pipefail
COMMAND="${1:-make demo}"
PACKAGES=python3,python3-venv,make,git,ca-certificates
SOURCE="$(cd "$(dirname "$0")/.." && pwd)"

# Mounts and processes live in namespaces of their own, so the kernel takes them away when this ends, by kill -9 too.
if [ -z "${CLEAN_ROOT_INSIDE:-}" ]; then
    [ "$(id -u)" = 0 ] || { echo "clean_root: must be root, for debootstrap and chroot" >&2; exit 77; }
    command -v debootstrap >/dev/null || { apt-get update -qq && apt-get install -y -qq debootstrap >/dev/null; }
    kept="${ROOT:-}"
    ROOT="${kept:-$(mktemp -d -p "${TMPDIR:-/var/tmp}" clean_root.XXXXXX)}"
    [ -n "$kept" ] || trap 'rm -rf --one-file-system "$ROOT"' EXIT
    CLEAN_ROOT_INSIDE=1 ROOT="$ROOT" unshare --mount --pid --fork --kill-child --propagation private "$0" "$COMMAND"
    exit
fi

mirror() {  # the one that this machine's apt is set to, else debootstrap's own default
    apt-get indextargets --format '$(REPO_URI) $(RELEASE)' "Created-By: Packages" 2>/dev/null |
        sed -n 's/ bookworm$//p' | sed -n 1p
}

make_root() {
    [ -e "$ROOT/usr/bin/make" ] && return
    debootstrap --variant=minbase --include="$PACKAGES" bookworm "$ROOT" $(mirror) >"$ROOT.log" 2>&1 ||
        { tail -5 "$ROOT.log" >&2; exit 1; }
    rm -f "$ROOT.log"
}

# What this machine says about where packages come from; none of it is in the repository.
copy_settings() {
    local path
    for path in /etc/resolv.conf /etc/pip.conf /etc/uv /etc/ssl/certs ~/.config/pip ~/.config/uv ~/.pip "${PIP_FIND_LINKS:-}"; do
        [ -e "$path" ] && mkdir -p "$ROOT$(dirname "$path")" && cp -rL --remove-destination "$path" "$ROOT$(dirname "$path")/"
    done
    env | grep -E '^(PIP|UV|SSL_CERT)_|^[a-zA-Z]+_(proxy|PROXY)=' | grep -vE '^(PIP|UV)_CACHE' >"$ROOT/settings" || true
}

mount_root() {
    mount -t proc proc "$ROOT/proc"
    mount --rbind /sys "$ROOT/sys"
    mount --rbind /dev "$ROOT/dev"
    mount -t tmpfs tmpfs "$ROOT/dev/shm"
}

make_root
copy_settings
mount_root
rm -rf "$ROOT/work"
git clone --quiet --no-local "$SOURCE" "$ROOT/work"
mapfile -t settings <"$ROOT/settings"
echo "clean_root: $COMMAND, in Debian $(cat "$ROOT/etc/debian_version") with $PACKAGES"
chroot "$ROOT" /usr/bin/env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    "${settings[@]}" /bin/bash -c "cd /work && time { $COMMAND; }"
