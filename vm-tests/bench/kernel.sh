#!/bin/bash
# What `cargo xtask bench kernel` runs in a guest without a daemon: the same workload bare, under AppArmor, under
# Landlock, then with the daemon: ungoverned, governed with 10 and with 1000 rules. One boot, so the figures compare.
# Prints `condition workload ns`; everything else goes to stderr.
set -euo pipefail
here=$(dirname "$0")

mkdir -p /bench/1/2/3/4/5/6 /etc/ringfence/profiles
echo x | tee /bench/f > /bench/1/2/3/4/5/6/f
cp /bin/true /bench/true
cp "$here/workload" /bench/workload
cp "$(realpath /usr/bin/python3)" /bench/python
cp "$here/messages.py" /bench/messages.py
chmod 755 /bench/workload /bench/python

measure() { # condition command...
    local condition=$1
    shift
    { "$@" /bench/workload; "$@" /bench/python -IS /bench/messages.py; } | sed "s/^/$condition /"
}

profile() { # file rules landlock
    {
        echo 'description = "benchmark"'
        echo '[grant]'
        echo 'fs_read = { only = ["/bench",'
        for ((i = 0; i < $2; i++)); do echo "  \"/opt/app$((i % 7))/data/r$i\","; done
        echo '] }'
        echo 'fs_write = { only = [] }'
        echo 'exec = { only = ["/bench"] }'
        echo 'net = { only = ["127.0.0.1:9"] }'
        echo 'max_calls = "unlimited"'
        echo 'valid_for_generation = "all"'
        echo '[kernel]'
        echo 'seccomp = "off"'
        echo "landlock = \"$3\""
    } > "$1"
}

apparmor() { # rules
    echo 'abi <abi/3.0>,'
    echo 'profile ringfence_bench {'
    echo '  /bench/** r,'
    echo '  /bench/** ix,'
    echo '  /usr/lib/** mr,'
    echo '  /etc/ld.so.* r,'
    echo '  /dev/null rw,'
    echo '  /proc/** r,'
    echo '  network inet dgram,'
    for ((i = 0; i < $1; i++)); do echo "  /opt/app$((i % 7))/data/r$i r,"; done
    echo '}'
}

profile /etc/ringfence/profiles/bench-10.toml 10 off
profile /etc/ringfence/profiles/bench-1000.toml 1000 off
profile /etc/ringfence/profiles/bench-landlock.toml 10 always

measure bare env
apparmor 10 | apparmor_parser --replace --skip-cache > /dev/stderr
measure apparmor-10 aa-exec -p ringfence_bench --
measure landlock-10 ringfence run --profile bench-landlock --accept-partial fs_read,fs_write,exec,net,unix --

ringfence daemon >&2 &
for ((i = 0; i < 600; i++)); do ringfence status > /dev/null 2>&1 && break; sleep 0.1; done
ringfence status >&2
# What the daemon and the kernel still have to do after the start is no part of an operation.
sleep 5
measure ungoverned env
measure governed-10 ringfence run --profile bench-10 --
measure governed-1000 ringfence run --profile bench-1000 --
