#!/usr/bin/env bash
# slurm-restore-state.sh FILE: puts a copy of slurm-backup.sh into slurmctld's state, and prints what slurmctld knows then.
# The copy is read to its end first: one that is damaged, or of another cluster, changes nothing. Then slurmctld is stopped,
# what is there is copied, too, and replaced, and slurmctld starts; where it does not answer, what was there comes back.
set -euo pipefail
umask 077
file=$1
conf() { sed -n "s/^$1=//p" "${SLURM_CONF:-/etc/slurm/slurm.conf}"; }
state=$(conf StateSaveLocation)
cluster=$(conf ClusterName)
# as its user: of a folder that controllers share, the file server takes root for nobody
read -ra user <<< "${AS_SLURM:-runuser -u slurm --}"
read -ra stop <<< "${STOP_SLURMCTLD:-systemctl stop slurmctld}"
read -ra start <<< "${START_SLURMCTLD:-systemctl start slurmctld}"
fail() { echo "slurm-restore-state.sh: $1" >&2; exit 1; }
put() {
    "${user[@]}" find "$state" -mindepth 1 -delete
    "${user[@]}" tar --extract --gzip --no-same-owner --directory "$state" < "$1"
}
answers() {
    "${start[@]}" || return 1
    for try in $(seq "${WAIT_S:-120}"); do
        if scontrol ping 2> /dev/null | grep -q '(primary).* is UP'; then return 0; fi
        sleep 1
    done
    return 1
}

gzip --test "$file" || fail "$file is damaged, and nothing was changed"
names=$(tar --list --gzip --file "$file") || fail "$file is no tar file, and nothing was changed"
grep -qx ./clustername <<< "$names" || fail "$file is no state of slurmctld, and nothing was changed"
of=$(tar --extract --gzip --to-stdout --file "$file" ./clustername | head -n 1)
[ "$of" = "$cluster" ] || fail "$file is of the cluster '$of', and this one is '$cluster': nothing was changed"

"${stop[@]}"
before=before-restore-$(date --utc +%Y%m%dT%H%M%SZ)
if ! kept=$(SLURMDBD_CONF=/nowhere STATE_FOLDER=$state bash "$(dirname "$0")/slurm-backup.sh" "$before"); then
    "${start[@]}"
    fail "what is there cannot be copied, and nothing was changed"
fi
if put "$file" && answers; then
    echo "jobs $(squeue --noheader --states=all | wc -l)"
    echo "reservations $(scontrol --oneliner show reservation | grep -c ^ReservationName= || true)"
    exit 0
fi
[ -n "$kept" ] || fail "slurmctld does not answer, and there was no state before"
"${stop[@]}" || true
put "$kept" && answers || fail "slurmctld does not answer; what was there is in $kept"
fail "slurmctld did not start with $file; what was there is back"
