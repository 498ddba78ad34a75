#!/usr/bin/env bash
# Builds the API server of the tests from Debian's Go packages, which are unpacked and not installed: three minutes on two
# cores, once. Prints where it is. Needs apt-get, dpkg, and the Python packages of `trainworks[test]`; `build.sh download`
# gets the packages alone, and needs only apt-get.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
version=$(cat "$here/main.go" "$here/build.sh" | sha256sum | cut -c 1-12)
folder=${TRAINWORKS_TEST_CACHE:-$HOME/.cache/trainworks-tests}/apiserver-$version
if [ -x "$folder/apiserver" ]; then echo "$folder/apiserver"; exit; fi

mkdir -p "$folder"
work=$(mktemp -d "$folder/work-XXXXXX")
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
debs=$folder/debs # complete or absent
if [ ! -d "$debs" ]; then
    mkdir -p "$work"/{lists,archives}/partial "$work/debs"
    keys=/usr/share/keyrings/debian-archive-keyring.gpg
    echo "deb [signed-by=$keys] ${DEBIAN_MIRROR:-http://deb.debian.org/debian} ${DEBIAN_SUITE:-sid} main" > "$work/sources"
    : > "$work/status" # as if nothing was installed: the dependencies of the packages are printed completely
    apt() {
        apt-get -qq -o Dir::Etc::sourcelist="$work/sources" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$work/lists" \
            -o Dir::State::status="$work/status" -o Dir::Cache::archives="$work/archives" -o Dir::Cache::pkgcache= \
            -o Dir::Cache::srcpkgcache= -o APT::Install-Recommends=false -o APT::Sandbox::User=root -o Debug::NoLocking=1 "$@"
    }
    apt update >&2
    wanted=(golang-k8s-{apiextensions-apiserver,apiserver,api,client-go}-dev)
    mapfile -t packages < <(apt -s install "${wanted[@]}" | awk '/^Inst golang-.*-dev /{print $2}')
    (cd "$work/debs" && apt download "${packages[@]}" >&2)
    mv "$work/debs" "$debs"
fi
if [ "${1:-}" = download ]; then exit; fi

go=$(dirname "$("${PYTHON:-python3}" -c 'import sys; print(sys.executable)')")/go
mkdir -p "$work"/{go,source}
for package in "$debs"/*.deb; do dpkg -x "$package" "$work/go"; done
release=$(dpkg -f "$debs"/golang-k8s-apiserver-dev_*.deb Version | sed 's/^0\.\([0-9]*\)\.\([0-9]*\).*/1.\1.\2/')

cp "$here/main.go" "$work/source/main.go"
stamp=k8s.io/component-base/version
minor=${release#1.}
cd "$work/source"
GO111MODULE=off CGO_ENABLED=0 GOTOOLCHAIN=local GOFLAGS= GOPATH=$work/go/usr/share/gocode GOCACHE=$work/cache \
    "$go" build -o "$work/apiserver" \
    -ldflags "-s -w -X $stamp.gitVersion=v$release -X $stamp.gitMajor=1 -X $stamp.gitMinor=${minor%%.*}" . >&2
mv "$work/apiserver" "$folder/apiserver"
rm -r "$debs"
echo "$folder/apiserver"
