#!/usr/bin/env bash
# Builds the guest's disk in two steps, each cached by `cargo xtask setup`, which calls this as root:
#   image.sh rootfs OUT.tar MAIN_URI SECURITY_URI            a small Debian, from the machine's own mirror
#   image.sh disk OUT.ext4 ROOTFS.tar INIT MODULES...        that, the guest's init, and each kernel's modules
set -euo pipefail

# What a person and the tests use; nothing that compiles.
PACKAGES=bash,git,python3,python3-minimal,ca-certificates,iproute2,procps,util-linux,mount,strace,kmod,libcap2-bin
PACKAGES+=,apparmor,bubblewrap,crun,systemd,systemd-sysv,dbus
# Clients of hosts by name: 5 MB together.
PACKAGES+=,busybox-static,curl,python3-pip-whl,wget

rootfs() {
    local out=$1 main=$2 security=$3 proxy=''
    local keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    eval "$(apt-config shell proxy Acquire::http::Proxy)"
    mmdebstrap --mode=root --variant=minbase --format=tar \
        --aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Languages "none"' \
        ${proxy:+--aptopt="Acquire::http::Proxy \"$proxy\""} \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/info/*' \
        --dpkgopt='force-unsafe-io' --include="$PACKAGES" \
        --customize-hook='chroot "$1" useradd --create-home --shell /bin/bash user' \
        --customize-hook='echo guest >"$1/etc/hostname"; echo "127.0.0.1 localhost guest" >"$1/etc/hosts"' \
        --customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*.bin "$1/etc/apt/sources.list"' \
        bookworm "$out" \
        "deb [signed-by=$keyring] $main bookworm main" \
        "deb [signed-by=$keyring] $security bookworm-security main"
}

disk() {
    local out=$1 tar=$2 init=$3 modules
    shift 3
    # Not local: the trap runs after the function.
    root=$(mktemp -d)
    trap 'rm -rf "$root"' EXIT
    tar --extract --file "$tar" --directory "$root" --numeric-owner --same-permissions --xattrs --xattrs-include='*'
    install -m 0755 "$init" "$root/sbin/ringfence-guest-init"
    for modules in "$@"; do
        mkdir -p "$root/lib/modules"
        cp -r "$modules" "$root/lib/modules/"
        depmod -b "$root" "${modules##*/}"
    done
    chown -R 0:0 "$root/lib/modules"
    # Sparse. An hour of `bench doors` has filled 2 GiB.
    truncate -s 8G "$out"
    mke2fs -q -F -t ext4 -O '^has_journal,^metadata_csum,uninit_bg' -E lazy_itable_init=1 -m 0 -d "$root" "$out"
}

case ${1:-} in
rootfs | disk) "$@" ;;
*) echo "usage: image.sh rootfs OUT.tar MAIN_URI SECURITY_URI | disk OUT.ext4 ROOTFS.tar INIT MODULES..." >&2; exit 2 ;;
esac
