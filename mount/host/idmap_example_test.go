package host_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
)

// A volume whose files belong to root, for a pod whose user namespace begins at
// id 100000: nothing is chowned.
func ExampleMounter_BindIDMapped() {
	m := host.New(host.Config{})
	ids := []host.IDMapping{{ContainerID: 0, HostID: 100000, Size: 65536}}
	err := m.BindIDMapped(context.Background(),
		mount.Request{Source: "/srv/volume", Target: "/run/pod/volume", Options: []string{"bind", "ro"}},
		host.IDMap{UIDs: ids, GIDs: ids})
	if e, ok := errors.AsType[*host.IDMapError](err); ok {
		fmt.Printf("%s cannot, since Linux %s it could: %s\n", e.FSType, e.Since, e.Reason)
	}
}
