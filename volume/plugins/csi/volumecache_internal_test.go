package csi

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// A forgotten device takes all names of its volume with it, whatever they stood for before, and
// no others: as a plain map does, all of which is looked through.
func TestAForgottenDeviceTakesTheNamesOfItsVolume(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var k volumeCache
	plain := map[knownKey]identity{}
	for range 2000 {
		key := knownKey{name: fmt.Sprint("name", random.IntN(8))}
		s := &source{Driver: "d", Handle: fmt.Sprint("h", random.IntN(4))}
		switch random.IntN(4) {
		case 0:
			k.forget(key)
			delete(plain, key)
		case 1:
			k.forgetDevice(key.name)
			if gone, ok := plain[key]; ok {
				for other, is := range plain {
					if is == gone {
						delete(plain, other)
					}
				}
			}
		default:
			k.put(s, key)
			plain[key] = identity{s.Driver, s.Handle, false}
		}
		kept := 0
		for is, keys := range k.keys {
			kept += len(keys)
			if len(keys) == 0 || slices.ContainsFunc(keys, func(key knownKey) bool { return plain[key] != is }) {
				t.Fatalf("%v has the names %v", is, keys)
			}
		}
		if kept != len(plain) || len(k.sources) != len(plain) {
			t.Fatalf("%d names of volumes and %d volumes of names, want %d", kept, len(k.sources), len(plain))
		}
		for key, want := range plain {
			if is, ok := k.find(key); !ok || is != want {
				t.Fatalf("%v is %v, want %v", key, is, want)
			}
		}
	}
}
