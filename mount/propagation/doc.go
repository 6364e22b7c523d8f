// Package propagation tells whether mounts that this process makes can be seen on the
// host. The mounts of an agent in a container stay hidden there if its root directory is a
// volume without mount propagation.
//
// [Check] judges a directory by the mount that holds it:
//
//   - A shared mount passes new mounts on to its peers, so it is good, unless process 1 can
//     be seen and has none of them.
//   - A mount that is not shared is good on a host that shares nothing: process 1 and this
//     process are in one mount namespace, and in the first PID namespace.
//   - It hides mounts in a container: process 1 has another root directory, or the mount
//     is a slave ("master:" in mountinfo) of one elsewhere, or this process has a PID
//     namespace of its own and the mount is a volume, or the container's own overlay.
//   - It hides mounts in a service that systemd gave a mount namespace (PrivateTmp= and
//     others): the root directory is the same, and the mount is a slave.
//
// A namespace that someone has made to keep mounts in it, by unshare(1) or with a user
// namespace, is no container: the root directory is the same, and nothing is a slave, or
// nothing could be passed on. Where /proc/1/ns/mnt cannot be read, only slaves and volumes count.
//
// A container that starts containers of its own, as kind's nodes do, says so by
// "mount --make-rshared /".
package propagation
