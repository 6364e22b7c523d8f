// Package imagearchive writes container images into an archive that a runtime imports,
// without a registry: in docker's form, which containerd reads, too.
//
//	ctr -n k8s.io images import images.tar
package imagearchive
