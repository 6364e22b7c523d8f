package mount_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/podvol/podvol/mount"
)

// A volume whose files belong to root, for a pod whose user namespace begins at
// id 100000: nothing is chowned.
func ExampleHostMounter_BindIDMapped() {
	m := mount.New(mount.Config{})
	ids := []mount.IDMapping{{ContainerID: 0, HostID: 100000, Size: 65536}}
	err := m.BindIDMapped(context.Background(),
		mount.Request{Source: "/srv/volume", Target: "/run/pod/volume", Options: []string{"bind", "ro"}},
		mount.IDMap{UIDs: ids, GIDs: ids})
	if e, ok := errors.AsType[*mount.IDMapError](err); ok {
		fmt.Printf("%s cannot, since Linux %s it could: %s\n", e.FSType, e.Since, e.Reason)
	}
}
