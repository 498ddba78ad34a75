#!/usr/bin/env bash
# What a container runtime does for one pod, in namespaces of its own: the machine's files under a layer that vanishes,
# volumes, a /dev, and a process that has number 1.
#   pod.sh SCRATCH HOSTNAME HOSTS LAST_MESSAGE [FROM TO]... -- COMMAND...
set -euo pipefail
scratch=$1 name=$2 hosts=$3 last_message=$4
shift 4
mount -t tmpfs tmpfs "$scratch"
mkdir "$scratch"/{upper,work,root}
root=$scratch/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$scratch/upper,workdir=$scratch/work" "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/dev"
mkdir "$root/dev/shm"
for device in null zero full random urandom; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
ln -s /proc/self/fd "$root/dev/fd"
touch "$root/dev/termination-log"
mount --bind "$last_message" "$root/dev/termination-log"
while [ "$1" != -- ]; do
    mkdir -p "$root$2"
    mount --bind "$1" "$root$2"
    shift 2
done
shift
mount --bind "$hosts" "$root/etc/hosts" # what stands there changes with the pods of the job
hostname "$name"
exec chroot "$root" "$@"
