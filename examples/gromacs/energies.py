"""One table of the energies of GROMACS replicas, as CSV: a line per job of the arrays that it is given.

    python examples/gromacs/energies.py array-kxbwtq [ARRAY...]

Means over the run, from the `energies.txt` that `gmx energy` leaves in each run directory: potential and total energy
in kJ/mol, temperature in K. A replica that has not succeeded has its state alone, and makes the exit code 1.
"""

import csv
import re
import sys

import trainworks

COLUMNS = {"potential_kj_per_mol": "Potential", "total_kj_per_mol": "Total Energy", "temperature_k": "Temperature"}


def row_of(job):
    """Run, state and, of a replica that has succeeded, the mean of each term."""
    row = {"run": job.run_id, "state": job.state}
    if job.state == "SUCCEEDED":
        text = (job.run_dir.path / "energies.txt").read_text()
        row |= {column: re.search(rf"^{term}\s+(\S+)", text, re.MULTILINE)[1] for column, term in COLUMNS.items()}
    return row


if not sys.argv[1:]:
    sys.exit(__doc__)
rows = [row_of(job) for array in sys.argv[1:] for job in reversed(trainworks.jobs(array=array))]  # the oldest first
table = csv.DictWriter(sys.stdout, ["run", "state", *COLUMNS], lineterminator="\n")
table.writeheader()
table.writerows(rows)
sys.exit(0 if rows and all(row["state"] == "SUCCEEDED" for row in rows) else 1)
