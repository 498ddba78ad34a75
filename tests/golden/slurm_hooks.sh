#!/bin/bash
# Prolog: fail on a bad node, which Slurm then drains
export PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
node=${SLURMD_NODENAME:-$(hostname -s)}
check() {
    mountpoint -q /shared || { echo '/shared is not mounted'; exit 1; }
    [ "$(df --output=avail --block-size=1G /tmp | tail -n 1)" -ge 1 ] || { echo '/tmp has less than 1 GiB free'; exit 1; }
    [ "$(df --output=avail --block-size=1G '/scratch disk' | tail -n 1)" -ge 20 ] || { echo '/scratch disk has less than 20 GiB free'; exit 1; }
    [ "$(nvidia-smi --query-gpu=uuid --format=csv,noheader 2> /dev/null | wc -l)" -eq 8 ] || { echo 'not 8 accelerators'; exit 1; }
    true
}
export -f check
reason=$(timeout --kill-after=2 20 bash -c check 2>&1) && exit 0
reason=${reason:-no answer within 20 s}
echo "$reason"
logger --tag trainworks-prolog -- "$node: $reason"
exit 1

#!/bin/bash
# HealthCheckProgram: drain nodes that fail their check
export PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
node=${SLURMD_NODENAME:-$(hostname -s)}
check() {
    mountpoint -q /shared || { echo '/shared is not mounted'; exit 1; }
    [ "$(df --output=avail --block-size=1G /tmp | tail -n 1)" -ge 1 ] || { echo '/tmp has less than 1 GiB free'; exit 1; }
    [ "$(df --output=avail --block-size=1G '/scratch disk' | tail -n 1)" -ge 20 ] || { echo '/scratch disk has less than 20 GiB free'; exit 1; }
    [ "$(nvidia-smi --query-gpu=uuid --format=csv,noheader 2> /dev/null | wc -l)" -eq 8 ] || { echo 'not 8 accelerators'; exit 1; }
    true
}
export -f check
reason=$(timeout --kill-after=2 20 bash -c check 2>&1) && exit 0
reason=${reason:-no answer within 20 s}
scontrol update NodeName="$node" State=DRAIN Reason="trainworks: ${reason//$'\n'/ }"
exit 0

Prolog=/etc/slurm/hooks/prolog.sh
PrologFlags=Alloc
HealthCheckProgram=/etc/slurm/hooks/health_check.sh
HealthCheckInterval=300
HealthCheckNodeState=IDLE
