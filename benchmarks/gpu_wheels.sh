#!/bin/sh
# Wheels of Trainworks and of what it needs, for a machine that has torch and numpy and no network.
#
#   benchmarks/gpu_wheels.sh [PYTHON [FOLDER]]      by default 3.12 and dist/gpu, which git ignores
#
# Versions are those of constraints.txt, for Linux on x86-64 with glibc 2.28 or later. The folder is made anew; more than
# 64 MiB are an error.
set -eu

python=${1:-3.12}
cd "$(dirname "$0")/.."
folder=${2:-dist/gpu}
largest_mib=64

rm -rf "$folder"
mkdir -p "$folder"
python3 -m pip wheel --quiet --no-deps --wheel-dir "$folder" .
platforms=$(seq 28 -1 17 | sed 's/.*/--platform manylinux_2_&_x86_64/')
# shellcheck disable=SC2086  # two words each
python3 -m pip download --quiet --only-binary=:all: --implementation cp --python-version "$python" $platforms \
    --platform manylinux2014_x86_64 --platform manylinux1_x86_64 --constraint constraints.txt --dest "$folder" \
    "$folder"/trainworks-*.whl transformers tokenizers safetensors torchao
rm -f "$folder"/numpy-*.whl
mib=$(du -sm "$folder" | cut -f1)
echo "$(find "$folder" -name '*.whl' | wc -l) wheels, $mib MiB, in $folder"
if [ "$mib" -gt "$largest_mib" ]; then
    echo "more than $largest_mib MiB" >&2
    exit 1
fi
