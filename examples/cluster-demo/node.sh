#!/usr/bin/env bash
# node.sh NAME ADDRESS GPUS: boots one machine of the demo, in the namespaces of the hall (`hall.sh`), and becomes its init.
#
# The machine has its own root, network, processes, host name, cgroups and devices, and systemd as its first process. What it
# shares with this one is the kernel and the clock. A machine that was stopped boots with the files and the network that it had.
set -euo pipefail
name=$1 address=$2 gpus=$3
: "${HALL:?folder of the hall}" "${BASE:?folder of base.sh}" "${CONTROLLERS:=}"

if [ "${INSIDE:-}" != yes ]; then
    mkdir -p "$HALL/$name"/{upper,work,root}
    if [ ! -e "/run/netns/$name" ]; then
        ip netns add "$name"
        ip link add "${name:0:13}-h" type veth peer name eth0 netns "$name"
        ip link set "${name:0:13}-h" master hall up
        ip -n "$name" link set lo up
        ip -n "$name" link set eth0 up
        ip -n "$name" address add "$address" dev eth0
    fi
    for controller in $CONTROLLERS; do
        group=/sys/fs/cgroup/$controller/$CGROUP/$name
        mkdir -p "$group"
        if [ "$controller" = cpuset ]; then
            for file in cpuset.cpus cpuset.mems; do
                for each in "${group%/*}" "$group"; do cat "/sys/fs/cgroup/cpuset/$file" > "$each/$file"; done
            done
        fi
        echo $$ > "$group/cgroup.procs"
    done
    export INSIDE=yes
    # its own time since boot, in whole seconds: Slurm waits until a node that it starts has booted after it asked for that
    [ ! -e "$HALL/$name/upper/etc/machine-id" ] || sleep 2
    started=$(cut -d . -f 1 /proc/uptime)
    exec ip netns exec "$name" unshare --mount --pid --uts --ipc --cgroup --time --boottime "-$started" --fork --kill-child "$0" "$@"
fi

mount --make-rprivate /
root=$HALL/$name/root
mount -t overlay "$name" -o "lowerdir=$BASE/root,upperdir=$HALL/$name/upper,workdir=$HALL/$name/work" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
mkdir -p "$root"/dev/{pts,shm} "$root/run/lock"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
for device in "null 1 3" "zero 1 5" "full 1 7" "random 1 8" "urandom 1 9" "tty 5 0"; do
    read -r file major minor <<< "$device"
    mknod -m 666 "$root/dev/$file" c "$major" "$minor"
done
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
# device files of NVIDIA's number, and no driver behind them: Slurm counts, grants and hides files
for ((gpu = 0; gpu < gpus; gpu++)); do mknod -m 666 "$root/dev/nvidia$gpu" c 195 "$gpu"; done
# adapters of RDMA as the kernel's files show them, without hardware behind them, and configfs where rdma_cm has their ports
if [ -n "${RDMA_DEVICES:-}" ]; then
    for device in $RDMA_DEVICES; do
        port=$HALL/$name/sys/class/upper/infiniband/$device/ports/1
        mkdir -p "$port"/{gid_attrs/types,gids} "$HALL/$name/sys/kernel/upper/config/rdma_cm/$device/ports/1"
        echo 'RoCE v2' > "$port/gid_attrs/types/3"
        echo 0000:0000:0000:0000:0000:ffff:0a00:0001 > "$port/gids/3"
        echo '4: ACTIVE' > "$port/state"
        echo '5: LinkUp' > "$port/phys_state"
        echo '400 Gb/sec (4X NDR)' > "$port/rate"
        echo Ethernet > "$port/link_layer"
    done
    for part in class kernel; do
        over=$HALL/$name/sys/$part
        mkdir -p "$over/work"
        mount -t overlay "$name" -o "lowerdir=$root/sys/$part,upperdir=$over/upper,workdir=$over/work" "$root/sys/$part"
    done
fi
mount -t tmpfs -o mode=755 tmpfs "$root/sys/fs/cgroup"
for controller in $CONTROLLERS; do
    [ "$controller" != unified ] || continue # systemd mounts it
    mkdir "$root/sys/fs/cgroup/$controller"
    kind=$controller
    [ "$controller" != systemd ] || kind=none,name=systemd
    mount -t cgroup -o "$kind" cgroup "$root/sys/fs/cgroup/$controller"
done
mkdir -p "$root/hall" "$root/export"
# the machine sees a folder of this one, and what it writes there stays its own
see() {
    local mine=$HALL/$name/seen${1//\//-}
    mkdir -p "$mine"/{upper,work} "$root$2"
    mount -t overlay "$name" -o "lowerdir=$1,upperdir=$mine/upper,workdir=$mine/work" "$root$2"
}
see "$BASE/mirror" /mirror
mount --bind "$HALL/disks" "$root/hall"
mount --bind "$HALL/disks/$name/export" "$root/export"
for folder in ${SHARED_SOFTWARE:-}; do see "$folder" "$folder"; done
chmod 755 "$root/root" # software below it is for all users
[ -z "${TRAINWORKS:-}" ] || ln -sf "$TRAINWORKS" "$root/usr/local/bin/trainworks"
if [ ! -e "$root/etc/sudoers.d/90-administrator" ]; then
    cp -a "$(dirname "$0")/files/." "$root/"
    # as the installer of Debian leaves it
    printf '127.0.0.1\tlocalhost\n127.0.1.1\t%s\n' "$name" > "$root/etc/hosts"
    # what cloud-init does on a first boot, from `cloud-init/user-data.yaml`: the administrator, with the keys
    chroot "$root" ssh-keygen -q -A
    chroot "$root" useradd --create-home --home-dir "/var/lib/$ADMIN" --shell /bin/bash "$ADMIN"
    echo "$ADMIN ALL=(ALL) NOPASSWD:ALL" > "$root/etc/sudoers.d/90-administrator"
    install -d -m 700 "$root/var/lib/$ADMIN/.ssh"
    cp "$HALL/key.pub" "$root/var/lib/$ADMIN/.ssh/authorized_keys"
    chroot "$root" chown -R "$ADMIN:$ADMIN" "/var/lib/$ADMIN/.ssh"
fi
mkdir -p "$root/.old"
cd "$root"
pivot_root . .old
umount -l /.old && rmdir /.old
exec env -i container=trainworks-demo PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --log-target=console \
    --log-level=notice < /dev/null
