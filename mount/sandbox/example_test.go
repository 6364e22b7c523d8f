package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/mount/sandbox"
)

// A program that sees one directory of the machine as /data. Its own main must
// call sandbox.Main first; this one's is TestMain.
func Example() {
	dir, err := os.MkdirTemp("", "example-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(dir+"/greeting", []byte("hello\n"), 0o644); err != nil {
		fmt.Println(err)
		return
	}
	code, err := sandbox.Run(context.Background(), sandbox.Config{
		Args:          []string{"cat", "/data/greeting"},
		Env:           []string{"PATH=/usr/bin:/bin"},
		Mounts:        []sandbox.Mount{{Volume: "greetings", Source: dir, Destination: "/data", ReadOnly: true}},
		UserNamespace: onlyMe(),
		Stdout:        os.Stdout,
	})
	fmt.Println(code, err)
}

// onlyMe is a user namespace that every user may make, in which it is root.
func onlyMe() *sandbox.UserNamespace {
	return &sandbox.UserNamespace{
		UIDMappings: []host.IDMapping{{ContainerID: 0, HostID: uint32(os.Getuid()), Size: 1}},
		GIDMappings: []host.IDMapping{{ContainerID: 0, HostID: uint32(os.Getgid()), Size: 1}},
	}
}

// An error names the volume and says what to do.
func ExampleError() {
	_, err := sandbox.Run(context.Background(), sandbox.Config{
		Args:   []string{"true"},
		Mounts: []sandbox.Mount{{Volume: "data", Source: "/", Destination: "/data", Propagation: mount.PropagationShared}},
		// Bidirectional and a user namespace exclude each other.
		UserNamespace: onlyMe(),
	})
	if e, ok := errors.AsType[*sandbox.Error](err); ok {
		fmt.Println(e.Volume, e.Destination)
		fmt.Println(e.Advice)
		fmt.Println(errors.Is(err, sandbox.ErrNotShared), e.ExitCode())
	}
	// Output:
	// data /data
	// run it without a user namespace, or ask for HostToContainer (rslave)
	// true 125
}
