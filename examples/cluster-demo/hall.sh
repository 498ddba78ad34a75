#!/usr/bin/env bash
# hall.sh COMMAND...: runs a command in a network namespace with a bridge, from which the machines of the demo are reached.
#
# Everything of the hall lives in namespaces below one process, and the files of its machines in memory: when that process
# ends, by itself or by `kill -9`, the kernel ends every machine, and unmounts and removes what belonged to them. Only
# folders of cgroups would stay; a process outside waits for the end to remove them.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
if [ "${IN_HALL:-}" != yes ]; then
    export CGROUP=trainworks-demo-$$
    controllers=
    for folder in /sys/fs/cgroup/*/; do
        controller=$(basename "$folder")
        if [ -e "$folder/cgroup.procs" ] && [ ! -L "${folder%/}" ]; then controllers+="$controller "; fi
    done
    export CONTROLLERS=$controllers
    # shellcheck disable=SC2016  # $1 to $3 are of the inner shell
    setsid bash -c 'while kill -0 "$1" 2> /dev/null; do sleep 0.2; done
        for try in $(seq 50); do
            for each in $3; do find "/sys/fs/cgroup/$each/$2" -depth -type d -exec rmdir {} + ; done
            ls -d /sys/fs/cgroup/*/"$2" > /dev/null || exit 0
            sleep 0.2
        done' janitor "$$" "$CGROUP" "$controllers" < /dev/null > /dev/null 2>&1 &
    # connections that Ansible keeps are of this hall: machines of another one may have the same addresses
    export IN_HALL=yes HALL=/run/hall ANSIBLE_SSH_CONTROL_PATH_DIR=/run/hall/connections
    exec setpriv --pdeathsig KILL unshare --net --mount --pid --fork --kill-child "$0" "$@"
fi
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/netns /run/lock "$HALL/disks" "$HALL/ssh"
# the keys of the machines, and who logs in to them, are of the hall alone
ssh-keygen -q -t ed25519 -N '' -C demo -f "$HALL/key"
printf '%s\n' "IdentityFile $HALL/key" "UserKnownHostsFile $HALL/known_hosts" "StrictHostKeyChecking accept-new" \
    > "$HALL/ssh/demo.conf"
mount --bind "$HALL/ssh" /etc/ssh/ssh_config.d
ip link set lo up
ip link add hall type bridge
ip address add "$GATEWAY" dev hall
ip link set hall up
"$@"
