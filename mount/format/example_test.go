package format_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/format"
	"github.com/podvol/podvol/mount/host"
)

// A disk that was just attached is formatted if it is new, and mounted.
func Example() {
	f := format.New(format.Config{Mounter: host.New(host.Config{}), MaxFormats: 2})
	result, err := f.FormatAndMount(context.Background(), format.Request{
		Request: mount.Request{Source: "/dev/disk/by-id/data", Target: "/var/lib/agent/data", FSType: "ext4"},
	})
	if refused, ok := errors.AsType[*format.Error](err); ok && errors.Is(err, format.ErrNotBlank) {
		log.Fatalf("left as it is, with %s: %s", refused.Found, refused.Advice())
	}
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("formatted:", result.Formatted)
	if grown, err := f.Resize(context.Background(), "/dev/disk/by-id/data", "/var/lib/agent/data"); err == nil {
		fmt.Println("grown:", grown)
	}
}
