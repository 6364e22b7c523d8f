// Package projection puts files of API objects ([payload]) into a pod's directory: it
// is what configMap, secret, downwardAPI and projected volumes have in common, which
// is everything but their names.
//
// Setting a volume up first collects every file of every source, touching nothing;
// then makes the directory or tmpfs they go into; then publishes all of them at once,
// so that a pod never sees half of a change. The behaviour is the kubelet's
// (Kubernetes v1.37) where not stated otherwise.
package projection
