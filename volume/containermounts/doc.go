// Package containermounts says what a container runtime must show to a container of
// its pod's volumes, and says it in the runtimes' own words.
//
// [Binder.Mounts] returns mounts and devices; the volume manager has a binder and
// calls it in its ContainerMounts. A whole volume is bound from its own directory. A
// part of it (subPath, subPathExpr) is bound first, by descriptor, to
//
//	pods/<pod's UID>/volume-subpaths/<spec's name>/<container>/<index of the volumeMount>
//
// since containers can exchange files inside their volumes: the file found
// beneath the volume (see package util/subpath) is bound, whatever its name leads
// to by then. That bind has the flags of the volume's mount.
//
// Another call leaves binds as they are, but binds a name anew that leads to
// something else by now: the file of a ConfigMap that was updated, for example. A
// container that runs goes on seeing what it was started with; only one that is
// started after the new call sees the other. Between the unmount of the old and
// the bind of the new the place is empty, so do not start a container with an
// earlier answer while another call runs. A missing sub-path is made, unless the
// volume is read-only: then it is an error, also for a ConfigMap, whose misspelt
// key would become an empty directory otherwise. Unlike the kubelet, an
// expression that expands to nothing is refused and not taken for the whole
// volume.
//
// Mount points of volumes inside other volumes are made beforehand, where the
// outer one is writable on the host, even if read-only in the container.
//
// [Binder.Unbind] unmounts whatever the mount table shows below a volume's
// volume-subpaths, deepest first; the tear-down of a volume begins with it. So
// there is no record of sub-paths, and the end of the process that bound them
// does not matter.
//
// An agent that mounts nothing calls [Resolve] with directories of its own: the rules are the
// same, and nothing is bound.
//
// The types, the rules and the words of runtimes are the same on every system, and Resolve
// works on Linux, macOS,
// FreeBSD, NetBSD and OpenBSD. [Binder] and [OCIDevices] need Linux: elsewhere their errors match
// [errors.ErrUnsupported], and a Binder has no methods but Mounts.
//
// # In the words of runtimes
//
// [OCIMounts], [CRIMounts], [DockerMountArgs] and their fellows for devices turn the
// answer into what runtimes read: the OCI runtime specification, the Kubernetes
// container runtime interface (CRI), and arguments of docker run.
// [DockerInspectMounts] shows it as docker inspect would.
//
// Their types are made for encoding/json, so that no program needs the modules
// that define the originals; each says which version it follows. The functions
// are pure, save [OCIDevices], and may be called concurrently. They neither
// change nor keep their arguments, and keep the order, in which a runtime must
// make the mounts. What a runtime cannot express is an *[InexpressibleError],
// never left out silently. Two exceptions change no mount: OCI and docker's
// --mount have no word for relabelling files, and docker keeps the flags of the
// source's mount by itself.
package containermounts
