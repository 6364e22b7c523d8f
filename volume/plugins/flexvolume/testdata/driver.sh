#!/bin/sh
# A FlexVolume driver for tests. Its name says what it does:
#   plain   mounts the directory of option "dir" for each pod
#   tmpfs   mounts a tmpfs with a file for each pod, and stops amid that if option "hold" names a pipe
#   disk    attaches a volume, and mounts the directory of option "dir" once for the node
#   loop    attaches the device of option "device", and leaves the rest to the node
# What is attached has a file beside the program.
answer() { printf '{"status":"%s","message":"%s"%s}\n' "$1" "$2" "$3"; test "$1" = Success; exit; }
option() { case $1 in *"\"$2\":\""*) set -- "${1#*"\"$2\":\""}" && printf '%s' "${1%%\"*}" ;; esac; }
attached=${0%/*}/attached
bind() { # directory, options
	from=$(option "$2" dir)
	mount --bind "$from" "$1" || answer Failure "mount of $from at $1 failed"
	if test "$(option "$2" kubernetes.io/readwrite)" = ro; then
		mount -o remount,bind,ro "$1" || answer Failure "mount of $1 read-only failed"
	fi
	answer Success
}
name=${0##*/}
case $name-$1 in
disk-init | loop-init) answer Success "" ',"capabilities":{"attach":true,"supportsMetrics":true}' ;;
disk-attach | loop-attach)
	name=$(option "$2" kubernetes.io/pvOrVolumeName)
	{ mkdir -p "$attached" && : >"$attached/$name"; } || answer Failure "cannot attach $name"
	device=$(option "$2" device)
	answer Success "" ",\"device\":\"${device:-/dev/flex/disk}\""
	;;
disk-isattached | loop-isattached)
	if test -e "$attached/$(option "$2" kubernetes.io/pvOrVolumeName)"; then answer Success "" ',"attached":true'; fi
	answer Success "" ',"attached":false'
	;;
disk-waitforattach) answer Success "" ',"device":"/dev/flex/disk"' ;;
disk-detach | loop-detach) rm -f "$attached/$2" && answer Success ;;
disk-mountdevice) bind "$2" "$4" ;;
loop-expandvolume) answer Success "" ",\"volumeNewSize\":$4" ;;
*-init) answer Success "" ',"capabilities":{"attach":false,"supportsMetrics":true}' ;;
plain-mount) bind "$2" "$3" ;;
tmpfs-mount)
	mount -t tmpfs -o mode=0777 flex "$2" || answer Failure "no tmpfs at $2"
	hold=$(option "$3" hold)
	if test -p "$hold"; then exec 3>"$hold" && echo mounted >&3 && exec sleep 600; fi
	echo "by $(option "$3" kubernetes.io/pod.name)" >"$2/file" && answer Success
	answer Failure "no file in $2"
	;;
plain-unmount | tmpfs-unmount | disk-unmountdevice)
	umount "$2" || answer Failure "umount of $2 failed"
	answer Success
	;;
*) answer "Not supported" ;;
esac
