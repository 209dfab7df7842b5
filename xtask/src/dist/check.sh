#!/bin/sh
# Installs a package in the root that enter.sh has made, and uses each part of the package.
# usage: check.sh archive|debian VERSION
set -eu
kind=$1 version=$2
cd /given
failed() {
    echo "$kind: $*" >&2
    exit 1
}
# Whether a tool is installed. A part is not checked without its tool.
have() {
    command -v "$1" >/dev/null || {
        echo "    skipped: there is no $1 (apt-get install $2, as root)"
        return 1
    }
}
! command -v corebeat >/dev/null || failed "this host has a corebeat in $PATH; remove it"

case $kind in
archive)
    prefix=/usr/local
    tar -xf corebeat-*.tar.gz -C /opt
    # The commands of the note that the archive contains.
    (cd /opt/corebeat-* && sed -n '/^```sh$/,/^```$/{/^```/d;p}' INSTALL.md | sh -eux) 2>&1
    ;;
debian)
    prefix=/usr
    dpkg -i corebeat_*.deb
    ;;
esac

echo "$kind: the program"
corebeat --version | tee version
grep -qx "corebeat $version" version || failed "corebeat --version prints another version"
grep -q '^commit: [0-9a-f]' version || failed "corebeat --version prints no commit"
corebeat run -- /bin/true 2>report
grep -q 'true: .* exit 0' report || failed "corebeat run: $(cat report)"
corebeat doctor >doctor
grep -q Linux doctor || failed "corebeat doctor does not print the system"

echo "$kind: the library"
have cc gcc && have pkg-config pkgconf && {
    [ "$(pkg-config --modversion corebeat)" = "$version" ] || failed "pkg-config: another version"
    cc -Wall -Werror heartbeat.c $(pkg-config --cflags --libs corebeat) -pthread -o heartbeat
    ./heartbeat
}
have cc gcc && have cmake cmake && {
    cat >CMakeLists.txt <<END
cmake_minimum_required(VERSION 3.16)
project(user C)
find_package(corebeat $version REQUIRED)
find_package(Threads REQUIRED)
add_executable(user heartbeat.c)
target_link_libraries(user corebeat::corebeat Threads::Threads)
END
    cmake -B built . >log && cmake --build built >log || failed "CMake: $(cat log)"
    ./built/user
}

echo "$kind: the daemon"
# A regular file holds the daemon's output, and the daemon ends with this namespace.
COREBEAT_STATE_DIR=/run/state corebeat daemon --socket /run/socket >daemon 2>&1 &
daemon=$!
tries=100
until [ -S /run/socket ]; do
    tries=$((tries - 1))
    [ $tries -gt 0 ] && kill -0 $daemon || failed "the daemon does not serve: $(cat daemon)"
    sleep 0.1
done
export COREBEAT_SOCKET=/run/socket
corebeat daemon status
[ ! -e heartbeat ] || ./heartbeat
kill $daemon
wait $daemon || failed "the daemon failed: $(cat daemon)"
unset COREBEAT_SOCKET

echo "$kind: man pages"
have man man-db && {
    for page in $prefix/share/man/man1/corebeat*.1.gz; do
        man --warnings -l "$page" >text 2>warnings
        [ -s text ] && [ ! -s warnings ] || failed "$page: $(cat warnings)"
    done
    man -w corebeat-run >/dev/null
}

echo "$kind: completions"
bash -eu -c '
    . '$prefix'/share/bash-completion/completions/corebeat.bash
    COMP_WORDS=(corebeat doc) COMP_CWORD=1 COMPREPLY=()
    _corebeat corebeat doc corebeat
    [ "${COMPREPLY[*]}" = doctor ]' || failed "bash does not complete 'corebeat doc'"
have zsh zsh && zsh -f -c '
    fpath=('$prefix'/share/zsh/*(/) $fpath)
    autoload -U compinit && compinit -u -D && [[ $_comps[corebeat] == _corebeat ]]' ||
    ! command -v zsh >/dev/null || failed "zsh does not load the completions"
have fish fish && {
    fish -c 'complete -C "corebeat doc"' >completed
    grep -q ^doctor completed || failed "fish does not complete 'corebeat doc'"
}

echo "$kind: units"
have systemd-analyze systemd && {
    [ $kind = debian ] || systemd-sysusers corebeat.conf
    grep -q ^corebeat: /etc/passwd || failed "the user of the service is missing"
    for scope in system user; do
        unit=$prefix/lib/systemd/$scope/corebeat.service
        XDG_RUNTIME_DIR=/run systemd-analyze --$scope verify $unit >warnings 2>&1 &&
            ! grep -q corebeat warnings || failed "$unit: $(cat warnings)"
    done
}

if [ $kind = debian ]; then
    echo "$kind: removal"
    dpkg --purge corebeat
    left=$(find /usr -xdev -name '*corebeat*')
    [ -z "$left" ] || failed "the removed package leaves $left"
fi
echo "$kind: passed"
