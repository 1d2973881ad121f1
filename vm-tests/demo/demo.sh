#!/usr/bin/env bash
# A coding agent's programs under the profile `coder`: does its work, tries what it should not, and shows what the kernel
# said. Run by `cargo xtask demo`, as root, beside a running daemon. Leaves nothing behind.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

user=${SUDO_USER:-user}
id "$user" >/dev/null 2>&1 || user=nobody
demo=$(mktemp -d /srv/demo.XXXXXX)
trap 'rm -rf "$demo"' EXIT
chmod 755 "$demo"

# A project to work on, and beside it what no agent should see or touch.
mkdir -p "$demo/project" "$demo/home/.ssh"
cp "$here/project/"* "$demo/project/"
echo 'API_KEY=not-a-real-one' >"$demo/project/.env"
echo 'not a real key' >"$demo/home/.ssh/id_ed25519"
echo '# nothing yet' >"$demo/home/.bashrc"
cp "$here/agent.sh" "$demo/agent.sh"
chown -R "$user": "$demo/project" "$demo/home"

cd "$demo/project"
started=$(date -u +%Y-%m-%dT%H:%M:%SZ)
# The agent reads its orders from standard input: its script is outside its grant, as a person's other files are.
ringfence run --profile coder --user "$user" --workdir "$demo/project" -- \
    bash -s -- "$demo/home" <"$demo/agent.sh" >"$demo/tried"
python3 -I "$here/report.py" "$demo/tried" "$started" "$@"
