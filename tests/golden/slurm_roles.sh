#!/bin/bash
#SBATCH --mail-type=END
#SBATCH --job-name=demo
#SBATCH --comment=trainworks:demo-1:7576fa6d5ec5
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --gres=gpu:h100:4
#SBATCH --time=0-01:00:00
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/shared/runs/demo-1/logs/supervisor.log
#SBATCH --chdir=/home/ada
#SBATCH --partition=train
#SBATCH --exclude=node7
#SBATCH --dependency=afterok:17
#SBATCH --kill-on-invalid-dep=yes
#SBATCH hetjob
#SBATCH --mail-type=END
#SBATCH --job-name=demo
#SBATCH --comment=trainworks:demo-1:7576fa6d5ec5
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --time=0-01:00:00
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/shared/runs/demo-1/logs/supervisor.log
#SBATCH --chdir=/home/ada
#SBATCH --partition=train
#SBATCH --exclude=node7
#SBATCH --dependency=afterok:17
#SBATCH --kill-on-invalid-dep=yes

asked=
pass_on() { signaled=1; kill "-RTMIN+$1" "$supervisor"; }
trap 'asked=1; pass_on 1' TERM
trap 'asked=1; pass_on 2' INT
trap 'asked=1; pass_on 3' HUP
trap 'pass_on 4' USR1
trap 'pass_on 5' USR2
for start in 1 2 3 4 5; do
  /opt/bin/python -P -m trainworks.backends.slurm.batch /shared/runs/demo-1 &
  supervisor=$!
  signaled=1
  while [ "$signaled" ]; do signaled=; wait $supervisor; code=$?; done
  if [ "$asked" ] || [ $code -le 128 ]; then break; fi
done
exit $code
