#!/bin/sh
# Programs that tests run beside the product, and the Debian package of each. A test skips without
# its program, so those that are missing are installed with apt, as root or by a sudo that asks for
# no password; else the command is printed. None of their daemons starts. Exit 0: no test fails for
# want of them.
# Usage: scripts/test_programs.sh [full]    full: those of the slow tests too

quick='ip iproute2
redis-server redis-server
prometheus prometheus
docker-compose docker-compose
slurmctld slurmctld
sbatch slurm-client
systemd-analyze systemd
faketime faketime
zsh zsh
fish fish
chromium chromium
chromedriver chromium-driver
node nodejs'
slow='buildah buildah
runc runc
mmdebstrap mmdebstrap
iptables iptables
conntrack conntrack
go golang-go'

missing=
while read -r program package; do
    [ -z "$program" ] || command -v "$program" >/dev/null 2>&1 || missing="$missing $package"
done <<END
$quick
$([ "${1:-}" = full ] && echo "$slow")
END
missing=${missing# }
[ -n "$missing" ] || exit 0

say() { echo "tests that need $1 will skip: $2" >&2; }

as_root=
[ "$(id -u 2>/dev/null)" = 0 ] || as_root='sudo -n'

if ! command -v apt-get >/dev/null 2>&1; then
    say "$missing" "these are names of Debian packages, install yours"
elif ! $as_root true 2>/dev/null; then
    say "$missing" "sudo apt-get install --no-install-recommends $missing"
else
    echo "installing $missing"
    # Debian's packages ask this file before they start a daemon. An image may have its own.
    policy=${POLICY_RC_D:-/usr/sbin/policy-rc.d}
    if [ ! -e "$policy" ]; then
        trap '$as_root /bin/rm -f "$policy"' EXIT
        trap 'exit 1' HUP INT TERM
        $as_root /bin/sh -c 'printf "#!/bin/sh\nexit 101\n" >"$0" && /bin/chmod 755 "$0"' "$policy"
    fi
    apt_get() { $as_root /usr/bin/env DEBIAN_FRONTEND=noninteractive apt-get "$@"; }
    apt_get update -qq || true
    # One after the other: not every distribution has all of them.
    for package in $missing; do
        apt_get install -y -qq --no-install-recommends "$package" >/dev/null ||
            say "$package" "apt-get cannot install it"
    done
fi
exit 0
