package kubeapi

import v1 "k8s.io/api/core/v1"

// Endpoints and EndpointsList are types of the API that Kubernetes calls deprecated,
// for EndpointSlices. Volumes of type glusterfs still name their servers by one.
//
//lint:ignore SA1019 there is no other object that such a volume could name
type Endpoints = v1.Endpoints

// EndpointsList is a list of [Endpoints].
type EndpointsList = v1.EndpointsList

// EndpointSubset is a part of [Endpoints].
//
//lint:ignore SA1019 it belongs to Endpoints
type EndpointSubset = v1.EndpointSubset

// ReadyAddresses returns the addresses of all subsets that are ready, in their order, each
// once. The caller owns the slice.
func ReadyAddresses(e *Endpoints) []string {
	var addresses []string
	seen := make(map[string]bool)
	for _, subset := range e.Subsets {
		for _, a := range subset.Addresses {
			if !seen[a.IP] {
				seen[a.IP] = true
				addresses = append(addresses, a.IP)
			}
		}
	}
	return addresses
}
