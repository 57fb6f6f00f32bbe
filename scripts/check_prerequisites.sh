#!/bin/sh
# Say which programs that the build needs are missing, and the command that installs each. Exit 1
# when one is.
# PYTHON names the interpreter to look at (default python3).
PYTHON=${PYTHON:-python3}
NEED_RUST=1.89
missing=0

system() {
    if [ "$(uname -s)" = Darwin ]; then
        echo macos
    elif command -v apt-get >/dev/null 2>&1; then
        echo debian
    elif command -v dnf >/dev/null 2>&1; then
        echo fedora
    else
        echo other
    fi
}

# report WHAT DEBIAN FEDORA MACOS
report() {
    missing=1
    echo "missing: $1" >&2
    case $(system) in
        debian) echo "    install it with:  $2" >&2 ;;
        fedora) echo "    install it with:  $3" >&2 ;;
        macos) echo "    install it with:  $4" >&2 ;;
        *) printf '    Debian, Ubuntu:  %s\n    Fedora:          %s\n    macOS:           %s\n' \
            "$2" "$3" "$4" >&2 ;;
    esac
}

# True when version $1 (a.b.c) is at least $2 (a.b).
at_least() {
    [ "$(printf '%s\n' "$1" "$2" | awk -F. '{ printf "%d %d\n", $1, $2 }' |
        sort -n -k1,1 -k2,2 | head -1)" = \
        "$(echo "$2" | awk -F. '{ printf "%d %d\n", $1, $2 }')" ]
}

if ! "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    found=$("$PYTHON" --version 2>&1 | head -1)
    report "Python 3.11 or newer ($PYTHON is $found; PYTHON=... names another one)" \
        "sudo apt-get install python3 python3-venv" "sudo dnf install python3" \
        "brew install python@3.13"
elif ! "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null; then
    report "the venv module of $PYTHON" \
        "sudo apt-get install python3-venv" "sudo dnf install python3-pip" \
        "brew install python@3.13"
fi

rustup='curl --proto =https --tlsv1.2 -sSf https://sh.rustup.rs | sh'
if ! command -v cargo >/dev/null 2>&1 || ! command -v rustc >/dev/null 2>&1; then
    report "Rust (cargo and rustc, $NEED_RUST or newer)" "$rustup" "$rustup" "$rustup"
elif ! at_least "$(rustc --version | awk '{ print $2 }')" "$NEED_RUST"; then
    update="rustup update stable"
    report "Rust $NEED_RUST or newer ($(rustc --version))" "$update" "$update" "$update"
fi

if ! command -v make >/dev/null 2>&1; then
    report "make" "sudo apt-get install make" "sudo dnf install make" "xcode-select --install"
fi
if ! command -v cc >/dev/null 2>&1; then
    report "a C compiler (cc)" "sudo apt-get install gcc libc6-dev" "sudo dnf install gcc" \
        "xcode-select --install"
fi
exit $missing
