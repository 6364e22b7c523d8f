// Package payload makes files of API objects: the contents of configMap, secret,
// downwardAPI and projected volumes, with their paths, modes and owners. It touches no
// file system and builds for every system; package projection publishes the files.
//
// A [Projection] lists sources. Collect asks the host's roles for all of them, and
// returns all files or an error that names each thing that is missing. The behaviour
// is the kubelet's (Kubernetes v1.37) where not stated otherwise.
package payload
