// Package projection makes files of API objects: it is what configMap, secret,
// downwardAPI and projected volumes have in common, which is everything but
// their names.
//
// A [Projection] lists sources. Setting it up first collects every file of
// every source, touching nothing; then makes the directory or tmpfs they go
// into; then publishes all of them at once, so that a pod never sees half of a
// change. The behaviour is the kubelet's (Kubernetes v1.37) where not stated
// otherwise.
package projection
