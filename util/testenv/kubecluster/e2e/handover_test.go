package main

import (
	"strings"
	"testing"
)

// A difference in what runs or is mounted is an error that says which.
func TestViewsDiffer(t *testing.T) {
	before := view{mounts: []string{"1 /a", "2 /b"}, tasks: []string{"x 10 RUNNING"}, inside: map[string]string{"x": "7 /a\n"}}
	for name, tc := range map[string]struct {
		after view
		want  string // empty: no difference
	}{
		"the same":                {before, ""},
		"a container is another":  {view{before.mounts, []string{"y 11 RUNNING"}, before.inside}, "containers: gone are\nx 10 RUNNING\nand new are\ny 11 RUNNING"},
		"unmounted":               {view{before.mounts[:1], before.tasks, before.inside}, "mounts: gone are\n2 /b\nand new are\n"},
		"mounted twice":           {view{append(before.mounts[:2:2], "3 /b"), before.tasks, before.inside}, "and new are\n3 /b"},
		"unmounted in containers": {view{before.mounts, before.tasks, nil}, "in container x"},
	} {
		err := before.same(tc.after)
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
