package index

import (
	"maps"
	"testing"

	"pgregory.net/rapid"
)

func TestFewIsAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var f few[int, string]
		model := make(map[int]string)
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			key := rapid.IntRange(0, 3).Draw(t, "key")
			if rapid.Bool().Draw(t, "put") {
				value := rapid.String().Draw(t, "value")
				f, model[key] = f.put(key, value), value
			} else {
				f = f.without(key)
				delete(model, key)
			}
			if got := maps.Collect(f.all()); !maps.Equal(got, model) || f.count != len(model) {
				t.Fatalf("it has %v, %d, want %v", got, f.count, model)
			}
			if got := f.get(key); got != model[key] {
				t.Fatalf("%d is %q, want %q", key, got, model[key])
			}
		}
	})
}
