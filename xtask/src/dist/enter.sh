#!/bin/sh
# Runs check.sh in namespaces without a network, in a copy of the system of this host. The copy has
# neither the files of its users nor this checkout, and lasts as long as the script.
# usage: enter.sh CHECKOUT FILES KIND VERSION
set -eu
checkout=$1 files=$2 kind=$3 version=$4
# The mount namespace hides these mounts from the host.
space=/mnt root=/mnt/root
mount -t tmpfs tmpfs $space
mkdir $space/changes $space/work $root
mount -t overlay -o "lowerdir=/,upperdir=$space/changes,workdir=$space/work" overlay $root
mount -t proc proc $root/proc
mount --rbind /sys $root/sys
mount --rbind /dev $root/dev
for hidden in /tmp /run /root /home "$checkout"; do
    [ ! -d "$root$hidden" ] || mount -t tmpfs tmpfs "$root$hidden"
done
mkdir $root/given
cp "$files"/* $root/given
exec chroot $root /usr/bin/env -i HOME=/root LC_ALL=C.UTF-8 TERM=dumb \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    sh -eu /given/check.sh "$kind" "$version"
