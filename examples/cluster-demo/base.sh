#!/usr/bin/env bash
# base.sh [SUITE]: a Debian root for the nodes, and a mirror of the packages that the roles install; both once, in the
# cache. Prints the folder, with `root` and `mirror` in it. Needs root and debootstrap.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
suite=${1:-bookworm}
version=$suite-$(cat "$here/base.sh" "$here/packages" | sha256sum | cut -c 1-12)
cache=${TRAINWORKS_DEMO_CACHE:-$HOME/.cache/trainworks-cluster}
folder=$cache/$version
if [ -d "$folder" ]; then echo "$folder"; exit; fi

# a folder below root's home: the users of the nodes have to be able to read their own root
mkdir -p "$cache"
exec 9> "$cache/lock" && flock 9
if [ -d "$folder" ]; then echo "$folder"; exit; fi
find "$cache" -mindepth 1 -maxdepth 1 -name '*.partial' -exec rm -rf {} +
work=$folder.partial
root=$work/root
mkdir -p "$work/mirror"
# what an image of Debian has that Ansible and systemd need, and minbase has not
image=systemd,systemd-sysv,dbus,openssh-server,sudo,python3,python3-apt,iproute2,procps,kmod,ca-certificates,apt-utils,iputils-ping,bubblewrap
debootstrap --variant=minbase --include="$image" "$suite" "$root" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" >&2

# the mirror: every package with what it needs, as a folder that apt reads
mapfile -t packages < <(grep -v '^#' "$here/packages")
chroot "$root" apt-get update -qq >&2
chroot "$root" apt-get install -qq -y --download-only --no-install-recommends "${packages[@]}" >&2
mv "$root"/var/cache/apt/archives/*.deb "$work/mirror/"
cp -a "$work/mirror" "$root/mirror"
chroot "$root" sh -c 'cd /mirror && apt-ftparchive packages . > Packages' >&2
mv "$root/mirror/Packages" "$work/mirror/" && rm -rf "$root/mirror"
echo 'deb [trusted=yes] file:/mirror ./' > "$root/etc/apt/sources.list"
rm -rf "$root"/var/lib/apt/lists/*
# on throw-away machines nothing has to reach a disk
echo force-unsafe-io > "$root/etc/dpkg/dpkg.cfg.d/throw-away"
# no kernel here has NFS: the helper of `mount` is a stand-in (files/usr/sbin/mount.nfs4), and that of the package stays beside it
for place in /sbin /usr/sbin; do # the one of Debian 12, and that of Debian 13
    chroot "$root" dpkg-divert --quiet --local --rename --divert "$place/mount.nfs4.package" --add "$place/mount.nfs4"
done
# the name comes with the role `base`; a first boot asks nothing
echo localhost > "$root/etc/hostname"
chroot "$root" systemctl --quiet mask systemd-firstboot.service systemd-networkd-wait-online.service run-rpc_pipefs.mount sys-kernel-debug.mount sys-kernel-tracing.mount
# keys and numbers that every machine draws for itself
rm -f "$root"/etc/ssh/ssh_host_* "$root/etc/machine-id" "$root/var/lib/dbus/machine-id"
chmod 755 "$root"
mv "$work" "$folder"
find "$cache" -mindepth 1 -maxdepth 1 -type d -name "$suite-*" ! -name "$version" -exec rm -rf {} +
echo "$folder"
