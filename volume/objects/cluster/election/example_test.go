package election_test

import (
	"context"
	"fmt"

	"k8s.io/client-go/kubernetes/fake"

	"github.com/podvol/podvol/volume/objects/cluster/election"
)

// A job that only one replica may do at a time.
func ExampleRun() {
	clientset := fake.NewClientset() // or the cluster's
	health := new(election.Health)
	err := election.Run(context.Background(), election.Config{
		Client: clientset.CoordinationV1(), Namespace: "kube-system", Name: "my-controller", Health: health,
	}, func(ctx context.Context) error {
		fmt.Println("leads:", health.State().Leading)
		return nil // done; a controller would work until ctx ends
	})
	fmt.Println(err, health.Check(0))
	// Output:
	// leads: true
	// <nil> <nil>
}
