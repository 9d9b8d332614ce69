# Shared by the scripts beside it; to be sourced by bash.
# shellcheck shell=bash

# The account that containers run as when the caller is root: a cluster's users are not
# root either, and root here may lack what rootless containers need.
LONGHAUL_USER=${LONGHAUL_USER:-longhaul}

say() { printf '%s\n' "$*" >&2; }
fail() { say "error: $*"; exit 1; }

is_root() { [ "$(id -u)" -eq 0 ]; }

# stage NAME COMMAND...: runs a stage and prints how many minutes it took.
stage() {
    local name=$1 began=$SECONDS code=0
    shift
    say "==> $name"
    "$@" || code=$?
    local took=$((SECONDS - began))
    say "$(printf '<== %s: %d.%02d min%s' "$name" $((took / 60)) $((took % 60 * 100 / 60)) \
        "$([ "$code" -eq 0 ] || printf ', failed with %d' "$code")")"
    return "$code"
}

# The folder that cargo builds in: outside the clone, shared by build, tests and benches,
# so that RocksDB is compiled once.
target_dir() { printf '%s\n' "${CARGO_TARGET_DIR:-$HOME/.cache/longhaul/target}"; }

# The program as `make build` leaves it.
built_program() { printf '%s/x86_64-unknown-linux-gnu/debug/longhaul\n' "$(target_dir)"; }

# Where the account's own files go: its home, or ours when we are not root.
user_home() {
    if is_root; then getent passwd "$LONGHAUL_USER" | cut -d: -f6; else printf '%s\n' "$HOME"; fi
}

# as_user COMMAND...: runs it as the unprivileged account, in its home, with its own HOME.
# Proxy settings pass; nothing else of the caller's environment does.
as_user() {
    local keep=() name
    for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY TERM COLUMNS LANG CI \
        LONGHAUL_LOG LONGHAUL_TEST_DIR; do
        if [ -n "${!name:-}" ]; then keep+=("$name=${!name}"); fi
    done
    if is_root; then
        local home
        home=$(user_home)
        (cd "$home" && exec setpriv --reuid "$LONGHAUL_USER" --regid "$LONGHAUL_USER" --init-groups -- \
            env -i HOME="$home" USER="$LONGHAUL_USER" LOGNAME="$LONGHAUL_USER" \
            PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "${keep[@]}" "$@")
    else
        "$@"
    fi
}

# place_program: copies the program to where the unprivileged account can read it; prints the place.
place_program() {
    local place
    place=$(user_home)/.cache/longhaul/bin/longhaul
    as_user mkdir -p "${place%/*}"
    # Beside it and renamed: a program that runs keeps its own file.
    install -m 755 "$(built_program)" "$place.new"
    mv -f "$place.new" "$place"
    printf '%s\n' "$place"
}
