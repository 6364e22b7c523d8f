package kubeapi_test

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/kubeapi"
)

func TestReadyAddresses(t *testing.T) {
	if got := kubeapi.ReadyAddresses(&kubeapi.Endpoints{}); len(got) != 0 {
		t.Errorf("of no subsets: %v", got)
	}
	of := func(ips ...string) (all []v1.EndpointAddress) {
		for _, ip := range ips {
			all = append(all, v1.EndpointAddress{IP: ip})
		}
		return all
	}
	e := &kubeapi.Endpoints{Subsets: []kubeapi.EndpointSubset{
		{Addresses: of("192.0.2.2", "192.0.2.1"), NotReadyAddresses: of("192.0.2.9")},
		{Addresses: of("192.0.2.1", "2001:db8::1")},
	}}
	if got := kubeapi.ReadyAddresses(e); !slices.Equal(got, []string{"192.0.2.2", "192.0.2.1", "2001:db8::1"}) {
		t.Errorf("got %v", got)
	}
}
