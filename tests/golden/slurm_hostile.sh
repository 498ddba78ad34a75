#!/bin/bash
#SBATCH --job-name=demo
#SBATCH --comment=trainworks:demo-1:ed9681a56d77
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:h100:8
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output="/runs/with space/demo-1/logs/supervisor.log"
#SBATCH --chdir="/runs/with space"

asked=
pass_on() { signaled=1; kill "-RTMIN+$1" "$supervisor"; }
trap 'asked=1; pass_on 1' TERM
trap 'asked=1; pass_on 2' INT
trap 'asked=1; pass_on 3' HUP
trap 'pass_on 4' USR1
trap 'pass_on 5' USR2
for start in 1 2 3 4 5; do
  /opt/trainworks/bin/python -P -m trainworks.backends.slurm.batch '/runs/with space/demo-1' &
  supervisor=$!
  signaled=1
  while [ "$signaled" ]; do signaled=; wait $supervisor; code=$?; done
  if [ "$asked" ] || [ $code -le 128 ]; then break; fi
done
exit $code

#!/bin/bash
#SBATCH --job-name=demo
#SBATCH --comment=trainworks:demo-1:632a6b13e863
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:h100:8
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output="/runs/a'; echo foo/demo-1/logs/supervisor.log"
#SBATCH --chdir="/runs/a'; echo foo"

asked=
pass_on() { signaled=1; kill "-RTMIN+$1" "$supervisor"; }
trap 'asked=1; pass_on 1' TERM
trap 'asked=1; pass_on 2' INT
trap 'asked=1; pass_on 3' HUP
trap 'pass_on 4' USR1
trap 'pass_on 5' USR2
for start in 1 2 3 4 5; do
  /opt/trainworks/bin/python -P -m trainworks.backends.slurm.batch '/runs/a'"'"'; echo foo/demo-1' &
  supervisor=$!
  signaled=1
  while [ "$signaled" ]; do signaled=; wait $supervisor; code=$?; done
  if [ "$asked" ] || [ $code -le 128 ]; then break; fi
done
exit $code

#!/bin/bash
#SBATCH --job-name=demo
#SBATCH --comment=trainworks:demo-1:e16fc4727b0c
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:h100:8
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output="/runs/\"$(touch x)\"/demo-1/logs/supervisor.log"
#SBATCH --chdir="/runs/\"$(touch x)\""

asked=
pass_on() { signaled=1; kill "-RTMIN+$1" "$supervisor"; }
trap 'asked=1; pass_on 1' TERM
trap 'asked=1; pass_on 2' INT
trap 'asked=1; pass_on 3' HUP
trap 'pass_on 4' USR1
trap 'pass_on 5' USR2
for start in 1 2 3 4 5; do
  /opt/trainworks/bin/python -P -m trainworks.backends.slurm.batch '/runs/"$(touch x)"/demo-1' &
  supervisor=$!
  signaled=1
  while [ "$signaled" ]; do signaled=; wait $supervisor; code=$?; done
  if [ "$asked" ] || [ $code -le 128 ]; then break; fi
done
exit $code

#!/bin/bash
#SBATCH --job-name=demo
#SBATCH --comment=trainworks:demo-1:8acc8223bf8d
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:h100:8
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output="/runs/`id` #SBATCH --uid=0/demo-1/logs/supervisor.log"
#SBATCH --chdir="/runs/`id` #SBATCH --uid=0"

asked=
pass_on() { signaled=1; kill "-RTMIN+$1" "$supervisor"; }
trap 'asked=1; pass_on 1' TERM
trap 'asked=1; pass_on 2' INT
trap 'asked=1; pass_on 3' HUP
trap 'pass_on 4' USR1
trap 'pass_on 5' USR2
for start in 1 2 3 4 5; do
  /opt/trainworks/bin/python -P -m trainworks.backends.slurm.batch '/runs/`id` #SBATCH --uid=0/demo-1' &
  supervisor=$!
  signaled=1
  while [ "$signaled" ]; do signaled=; wait $supervisor; code=$?; done
  if [ "$asked" ] || [ $code -le 128 ]; then break; fi
done
exit $code

#!/bin/bash
#SBATCH --job-name=demo
#SBATCH --comment=trainworks:demo-1:69136d00736b
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:h100:8
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/runs/100%%j/demo-1/logs/supervisor.log
#SBATCH --chdir=/runs/100%j

asked=
pass_on() { signaled=1; kill "-RTMIN+$1" "$supervisor"; }
trap 'asked=1; pass_on 1' TERM
trap 'asked=1; pass_on 2' INT
trap 'asked=1; pass_on 3' HUP
trap 'pass_on 4' USR1
trap 'pass_on 5' USR2
for start in 1 2 3 4 5; do
  /opt/trainworks/bin/python -P -m trainworks.backends.slurm.batch /runs/100%j/demo-1 &
  supervisor=$!
  signaled=1
  while [ "$signaled" ]; do signaled=; wait $supervisor; code=$?; done
  if [ "$asked" ] || [ $code -le 128 ]; then break; fi
done
exit $code

#!/bin/bash
#SBATCH --job-name=demo
#SBATCH --comment=trainworks:demo-1:872f9f4997a7
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:h100:8
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output="/runs/grün & */demo-1/logs/supervisor.log"
#SBATCH --chdir="/runs/grün & *"

asked=
pass_on() { signaled=1; kill "-RTMIN+$1" "$supervisor"; }
trap 'asked=1; pass_on 1' TERM
trap 'asked=1; pass_on 2' INT
trap 'asked=1; pass_on 3' HUP
trap 'pass_on 4' USR1
trap 'pass_on 5' USR2
for start in 1 2 3 4 5; do
  /opt/trainworks/bin/python -P -m trainworks.backends.slurm.batch '/runs/grün & */demo-1' &
  supervisor=$!
  signaled=1
  while [ "$signaled" ]; do signaled=; wait $supervisor; code=$?; done
  if [ "$asked" ] || [ $code -le 128 ]; then break; fi
done
exit $code

#!/bin/bash
#SBATCH --mail-user="\"; rm -rf / #\\"
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
  /opt/trainworks/bin/python -P -m trainworks.backends.slurm.batch /shared/runs/demo-1 &
  supervisor=$!
  signaled=1
  while [ "$signaled" ]; do signaled=; wait $supervisor; code=$?; done
  if [ "$asked" ] || [ $code -le 128 ]; then break; fi
done
exit $code
