// Package runtimemounts turns what [volumemanager.Manager.ContainerMounts]
// returns into what container runtimes read: mounts and devices of the OCI
// runtime specification, of the Kubernetes container runtime interface (CRI),
// and arguments of docker run.
//
// The types here are made for encoding/json, so that nobody needs the modules
// that define the originals; each says which version it follows. The functions
// are pure, save [OCIDevices], and may be called concurrently. They neither
// change nor keep their arguments, and keep the order, in which a runtime must
// make the mounts. What a runtime cannot express is an *[InexpressibleError],
// never left out silently, with two exceptions that change no mount: that files
// should be relabelled, for which OCI and docker's --mount have no word, and
// the flags of the source's mount, which docker keeps by itself.
package runtimemounts
