#!/bin/bash
#SBATCH --job-name=demo
#SBATCH --comment=trainworks:demo-1:7576fa6d5ec5
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:h100:8
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/shared/runs/demo-1/logs/supervisor.log
#SBATCH --chdir=/home/ada

asked=
pass_on() { signaled=1; kill "-RTMIN+$1" "$supervisor"; }
trap 'asked=1; pass_on 1' TERM
trap 'asked=1; pass_on 2' INT
trap 'asked=1; pass_on 3' HUP
trap 'pass_on 4' USR1
trap 'pass_on 5' USR2
for start in 1 2 3 4 5; do
  /opt/trainworks/bin/python -P -m trainworks.backends.slurm.batch /shared/runs/demo-1 '--container-image=nvcr.io#nvidia/pytorch:26.09-py3' --container-mounts=/shared/runs/demo-1:/shared/runs/demo-1,/home/ada:/home/ada,/data:/data,/scratch:/tmp/scratch -- python3 &
  supervisor=$!
  signaled=1
  while [ "$signaled" ]; do signaled=; wait $supervisor; code=$?; done
  if [ "$asked" ] || [ $code -le 128 ]; then break; fi
done
exit $code

#!/bin/bash
#SBATCH --job-name=demo
#SBATCH --comment=trainworks:demo-1:7576fa6d5ec5
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:h100:8
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/shared/runs/demo-1/logs/supervisor.log
#SBATCH --chdir=/home/ada

asked=
pass_on() { signaled=1; kill "-RTMIN+$1" "$supervisor"; }
trap 'asked=1; pass_on 1' TERM
trap 'asked=1; pass_on 2' INT
trap 'asked=1; pass_on 3' HUP
trap 'pass_on 4' USR1
trap 'pass_on 5' USR2
for start in 1 2 3 4 5; do
  /opt/trainworks/bin/python -P -m trainworks.backends.slurm.batch /shared/runs/demo-1 -- apptainer exec --nv --bind /shared/runs/demo-1:/shared/runs/demo-1 --bind /home/ada:/home/ada --bind /data:/data --bind /scratch:/tmp/scratch docker://nvcr.io/nvidia/pytorch:26.09-py3 python3 &
  supervisor=$!
  signaled=1
  while [ "$signaled" ]; do signaled=; wait $supervisor; code=$?; done
  if [ "$asked" ] || [ $code -le 128 ]; then break; fi
done
exit $code

#!/bin/bash
#SBATCH --job-name=demo
#SBATCH --comment=trainworks:demo-1:7576fa6d5ec5
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:h100:8
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/shared/runs/demo-1/logs/supervisor.log
#SBATCH --chdir=/home/ada

asked=
pass_on() { signaled=1; kill "-RTMIN+$1" "$supervisor"; }
trap 'asked=1; pass_on 1' TERM
trap 'asked=1; pass_on 2' INT
trap 'asked=1; pass_on 3' HUP
trap 'pass_on 4' USR1
trap 'pass_on 5' USR2
for start in 1 2 3 4 5; do
  /opt/trainworks/bin/python -P -m trainworks.backends.slurm.batch /shared/runs/demo-1 --container-mounts=/shared/runs/demo-1:/shared/runs/demo-1,/home/ada:/home/ada --container-name=torch --container-writable -- python3 &
  supervisor=$!
  signaled=1
  while [ "$signaled" ]; do signaled=; wait $supervisor; code=$?; done
  if [ "$asked" ] || [ $code -le 128 ]; then break; fi
done
exit $code
