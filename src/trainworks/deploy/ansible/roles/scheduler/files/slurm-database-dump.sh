#!/bin/bash
# One dump of the accounting database for each night, complete or absent; those of the last two weeks are kept
set -euo pipefail
folder=/var/backups/slurm-database
install -d -m 0700 "$folder"
file=$folder/$(date +%F).sql.gz
# one transaction: slurmdbd goes on writing meanwhile
mariadb-dump --single-transaction --routines slurm_acct_db | gzip > "$file.part"
sync "$file.part"
mv "$file.part" "$file"
find "$folder" -name '*.sql.gz' -mtime +14 -delete
