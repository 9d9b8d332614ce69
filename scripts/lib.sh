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

# The programs: the whole one, and the node's.
programs=(longhaul longhaul-node)

# build_programs [CARGO OPTION...]: builds them, as one build of the workspace.
build_programs() {
    local program arguments=()
    for program in "${programs[@]}"; do arguments+=(--bin "$program"); done
    cargo build --locked --workspace "${arguments[@]}" "$@"
}

# Where `make build` leaves them.
build_folder() { printf '%s/x86_64-unknown-linux-gnu/debug\n' "$(target_dir)"; }

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

# place_programs: copies the programs to where the unprivileged account can read them; prints the
# place of the whole one.
place_programs() {
    local place program
    place=$(user_home)/.cache/longhaul/bin
    as_user mkdir -p "$place"
    for program in "${programs[@]}"; do
        # Beside it and renamed: a program that runs keeps its own file.
        install -m 755 "$(build_folder)/$program" "$place/$program.new"
        mv -f "$place/$program.new" "$place/$program"
    done
    printf '%s\n' "$place/longhaul"
}
