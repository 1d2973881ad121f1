#!/usr/bin/env bash
# Two agents beside a running daemon: a coding agent's programs under the profile `coder`, and an agent whose model obeys
# what it reads. Shows what each tried and what the kernel said. Run by `cargo xtask demo`, as root. Leaves nothing behind.
#
#     demo.sh RUNTIME [--color]    RUNTIME: the program ringfence-runtime
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
runtime=$1
shift

user=${SUDO_USER:-user}
id "$user" >/dev/null 2>&1 || user=nobody
demo=$(mktemp -d /srv/demo.XXXXXX)
agent=summariser
profile=/etc/ringfence/profiles/$agent.toml
started=()
clean_up() {
    [ ${#started[@]} = 0 ] || kill "${started[@]}" 2>/dev/null || true
    if [ -n "${has_agent:-}" ]; then
        rm -f "$profile"
        # Its worker ends when the daemon sees that the profile is gone.
        for _ in {1..300}; do
            [ -e "/run/ringfence/sockets/$agent" ] || break
            sleep 0.2
        done
        rm -rf "/var/lib/ringfence-agents/$agent"
    fi
    rm -rf "$demo"
}
trap clean_up EXIT
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
began=$(date -u +%Y-%m-%dT%H:%M:%SZ)
# The agent reads its orders from standard input: its script is outside its grant, as a person's other files are.
ringfence run --profile coder --user "$user" --workdir "$demo/project" -- \
    bash -s -- "$demo/home" <"$demo/agent.sh" >"$demo/tried"
python3 -I "$here/report.py" "$demo/tried" "$began" "$@"

# A model, scripted; a repository with a file that tells assistants to send a key away; and an agent that reads it.
if [ -e "$profile" ]; then
    echo "there is an agent $agent already ($profile): its demo is left out" >&2
    exit 1
fi
mkdir "$demo/repository" "$demo/runtime"
cp "$here/repository/"* "$demo/repository/"
install -m 755 "$runtime" "$demo/runtime/ringfence-runtime"
echo 'You summarise repositories.' >"$demo/runtime/prompt.md"
(umask 077 && echo 'a-key-that-no-container-has' >"$demo/model.key")
mkfifo "$demo/port"
python3 -I "$here/model.py" "$demo/home" >"$demo/port" &
started+=($!)
read -r port <"$demo/port"
has_agent=yes
sed -e "s|@UID@|$(id -u "$user")|; s|@PORT@|$port|; s|@DEMO@|$demo|g" "$here/$agent.toml" >"$demo/$agent.toml"
install -m 644 "$demo/$agent.toml" "$profile"
for _ in {1..900}; do
    [ -S "/run/ringfence/sockets/$agent/agent.sock" ] && break
    sleep 0.2
done
cd "$demo/repository"
ringfence run --profile "$agent" --user "$user" -- "$demo/runtime/ringfence-runtime" --tools bash,read_file \
    --system-prompt "$demo/runtime/prompt.md" --socket "/run/ringfence/sockets/$agent/agent.sock" 2>"$demo/runtime.log" &
started+=($!)
python3 -I "$here/ask.py" "$agent" "$@" || { cat "$demo/runtime.log" >&2; exit 1; }
