package rows

import (
	"testing"
	"time"

	"github.com/podvol/podvol/examples/podvol/internal/nodeserver"
)

func TestRowsOfANode(t *testing.T) {
	now := time.Unix(100, 0)
	all := AllOf([]nodeserver.Volume{
		{Namespace: "shop", Pod: "web", PodUID: "u2", Node: "n2", Volume: "v", State: "mounted", Source: "s", Server: &nodeserver.Health{Name: "nas1"}},
		{Namespace: "shop", Pod: "web", PodUID: "u1", Volume: "v", State: "pending", Source: "s", Operation: "set-up", Began: now.Add(-12 * time.Second), Progress: &nodeserver.Progress{Doing: "unpacking", Done: 3, Total: 10}},
		{Namespace: "shop", Pod: "api", PodUID: "u3", Volume: "w", State: "not used"},
		{Namespace: "shop", Pod: "api", PodUID: "u3", Volume: "v", State: "pending", Claim: "shop/data", Error: "no"},
	}, now)
	want := []Row{
		{Pod: "shop/api", Volume: "v", State: "pending", Error: "no", Detail: "claim shop/data"},
		{Pod: "shop/api", Volume: "w", State: "not used", Detail: "no container mounts it"},
		{Pod: "shop/web", PodUID: "u1", Volume: "v", State: "pending", Source: "s", Detail: "under way: set-up for 12s, unpacking: 3 of 10"},
		{Pod: "shop/web", PodUID: "u2", Node: "n2", Volume: "v", State: "mounted", Source: "s", Server: "nas1 does not answer"},
	}
	if len(all) != len(want) {
		t.Fatalf("%+v", all)
	}
	for i := range want {
		if all[i] != want[i] {
			t.Errorf("%+v, want %+v", all[i], want[i])
		}
	}
}
