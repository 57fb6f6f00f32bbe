#!/usr/bin/env bash
# Compare a profile with the default and with round robin on modelled replicas, in virtual time.
# usage: compare.sh [PROFILE [TRACE]]; TRACE is a file of `penstock bench trace`, or made up
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
profile=${1:-$here/profile.yaml}
trace=${2:-tenants}

numbers=$(mktemp)
trap 'rm "$numbers"' EXIT

penstock route replay "$trace" --duration 120 --rate 0.5 --replicas 4 --output "$numbers" \
    --profile default --profile round-robin --profile "$profile"

# Most of these prompts repeat, so the profile must hit the cache more often than round robin.
python3 - "$numbers" <<'PYTHON'
import json
import sys

with open(sys.argv[1]) as file:
    default, round_robin, profile = (result["cached"] for result in json.load(file)["results"])
print(f"cached: {profile:.0%} with the profile, {round_robin:.0%} with round robin")
if profile <= round_robin:
    sys.exit("the profile finds no more cached prompts than round robin")
PYTHON
