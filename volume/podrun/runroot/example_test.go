package runroot_test

import (
	"context"
	"fmt"
	"os"

	"github.com/podvol/podvol/volume/podrun/runroot"
)

// A run removes its root directory; one that was killed leaves it, unlocked.
func Example() {
	base, err := os.MkdirTemp("", "runroot")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(base)
	runs := runroot.Runs{Base: base}
	root, err := runs.New("shop_web")
	if err != nil {
		panic(err)
	}
	dead, done, err := runs.Dead()
	fmt.Println("while it lives:", len(dead), err)
	done()
	root.Unlock() // as the end of the process does
	root.Close()
	dead, done, err = runs.Dead()
	fmt.Println("once it is dead:", len(dead), err)
	for _, r := range dead {
		fmt.Println("removed:", r.Remove(context.Background()))
	}
	done()
	// Output:
	// while it lives: 0 <nil>
	// once it is dead: 1 <nil>
	// removed: <nil>
}
