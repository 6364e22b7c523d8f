package projection_test

import (
	"fmt"
	"testing"
)

// BenchmarkUnchanged is what a SetUp costs that has nothing to do, which is
// what most of them are.
func BenchmarkUnchanged(b *testing.B) {
	for _, keys := range []int{1, 1000} {
		b.Run(fmt.Sprint(keys, "-keys"), func(b *testing.B) {
			data := map[string]string{}
			for i := range keys {
				data[fmt.Sprint("key-", i)] = "value"
			}
			bench := newBench(b, fromConfigMap("app"))
			bench.host.Add(configMap("app", data))
			bench.setUp()
			for b.Loop() {
				bench.setUp()
			}
		})
	}
}
