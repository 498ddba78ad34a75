#!/usr/bin/env bash
# slurm-restore.sh FILE: puts a dump of slurm-backup.sh into slurmdbd's database, and prints the rows of its tables.
# The dump goes into a database of its own first: one that cannot be read changes nothing. Then slurmdbd is stopped, what
# is there is dumped, too, the tables change places, and slurmdbd starts. slurmctld keeps its messages to it meanwhile.
set -euo pipefail
umask 077
file=$1
database=${DATABASE:-slurm_acct_db}
read -ra options <<< "${MARIADB_OPTIONS:-}"
read -ra stop <<< "${STOP_SLURMDBD:-systemctl stop slurmdbd}"
read -ra start <<< "${START_SLURMDBD:-systemctl start slurmdbd}"
sql() { mariadb "${options[@]}" --batch --skip-column-names "$@"; }
tables() { sql -e "SELECT table_name FROM information_schema.tables WHERE table_schema = '$1' ORDER BY 1"; }
rows() { while read -r table; do echo "$table $(sql -e "SELECT COUNT(*) FROM $1.\`$table\`")"; done < <(tables "$1"); }
fail() { echo "slurm-restore.sh: $1" >&2; exit 1; }

gzip --test "$file" || fail "$file is damaged, and nothing was changed"
[ "$(zcat "$file" | tail -n 1)" = "-- Dump completed" ] || fail "$file is not a complete dump, and nothing was changed"
sql -e "DROP DATABASE IF EXISTS slurm_restored; CREATE DATABASE slurm_restored"
zcat "$file" | sql slurm_restored || fail "MariaDB refused $file, and the database was not changed"
wanted=$(rows slurm_restored)
[ -n "$wanted" ] || fail "$file has no tables, and nothing was changed"

"${stop[@]}"
before=before-restore-$(date --utc +%Y%m%dT%H%M%SZ)
if ! STATE_FOLDER=/nowhere bash "$(dirname "$0")/slurm-backup.sh" "$before" > /dev/null; then
    "${start[@]}"
    fail "what is there cannot be dumped, and nothing was changed"
fi
sql -e "DROP DATABASE IF EXISTS $database; CREATE DATABASE $database"
moves=$(tables slurm_restored | sed "s/.*/slurm_restored.\`&\` TO $database.\`&\`/" | paste --serial --delimiters=,)
sql -e "RENAME TABLE $moves; DROP DATABASE slurm_restored"
[ "$(rows "$database")" = "$wanted" ] || fail "the tables have other rows than the dump; slurmdbd is stopped: restore database-$before.sql.gz"
"${start[@]}"
for try in $(seq "${WAIT_S:-600}"); do
    if sacctmgr --noheader list cluster > /dev/null 2>&1; then echo "$wanted"; exit 0; fi
    sleep 1
done
fail "slurmdbd does not answer; what was there is in database-$before.sql.gz"
