#!/usr/bin/env bash
# slurm-backup.sh [NAME]: copies what Slurm cannot be installed again with, the database of slurmdbd and slurmctld's state.
# A file is complete or absent, and prints its name. Without NAME, it is the time, and files of over KEEP_DAYS go.
set -euo pipefail
umask 077
folder=${BACKUP_FOLDER:-/var/backups/slurm}
state=${STATE_FOLDER:-/var/spool/slurmctld}
database=${DATABASE:-slurm_acct_db}
name=${1:-$(date --utc +%Y%m%dT%H%M%SZ)}
[[ $name =~ ^[A-Za-z0-9._-]+$ ]] || { echo "slurm-backup.sh: '$name' is no name of a file" >&2; exit 2; }
mkdir -p "$folder"
chmod 0700 "$folder"
read -ra options <<< "${MARIADB_OPTIONS:-}"

# keep PART FILE: a copy under its name, once it is on the disk
keep() {
    gzip --test "$1"
    sync "$1"
    mv "$1" "$2"
    sync "$folder"
    echo "$2"
}

if [ -e "${SLURMDBD_CONF:-/etc/slurm/slurmdbd.conf}" ]; then
    part=$folder/.database-$name.part
    # one transaction: the tables are of one moment, and slurmdbd goes on meanwhile
    mariadb-dump "${options[@]}" --single-transaction --routines --skip-dump-date "$database" | gzip > "$part"
    # a dump that was cut off has no last line
    [ "$(zcat "$part" | tail -n 1)" = "-- Dump completed" ] || { echo "slurm-backup.sh: the dump is not complete" >&2; exit 1; }
    keep "$part" "$folder/database-$name.sql.gz"
fi
if [ -e "$state/clustername" ]; then
    part=$folder/.state-$name.part
    # slurmctld replaces its files by new ones: one that goes while tar reads the folder is there anew in the next try
    for try in 1 2 3; do
        if tar --create --gzip --file "$part" --directory "$state" .; then break; fi
        [ "$try" != 3 ] || { echo "slurm-backup.sh: $state changed while it was copied" >&2; exit 1; }
    done
    keep "$part" "$folder/state-$name.tar.gz"
fi
if [ $# = 0 ]; then
    find "$folder" -maxdepth 1 -type f -regextype posix-extended -regex '.*/(database|state)-[0-9]{8}T[0-9]{6}Z\..*' \
        -mtime "+${KEEP_DAYS:-14}" -delete
fi
