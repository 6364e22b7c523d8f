package selinux_test

import (
	"errors"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/selinux"
)

func TestNodeSELinuxLabels(t *testing.T) {
	node := selinux.NewNodeLabels("system_u", "object_r", "container_file_t", "s0")
	for name, tc := range map[string]struct {
		options *v1.SELinuxOptions
		want    string
	}{
		"level":             {&v1.SELinuxOptions{Level: "s0:c1,c2"}, "system_u:object_r:container_file_t:s0:c1,c2"},
		"the user's too":    {&v1.SELinuxOptions{User: "staff_u", Level: "s0"}, "staff_u:object_r:container_file_t:s0"},
		"not the process's": {&v1.SELinuxOptions{Role: "system_r", Type: "spc_t", Level: "s0"}, "system_u:object_r:container_file_t:s0"},
		"no level":          {&v1.SELinuxOptions{Type: "spc_t"}, ""},
		"nothing":           {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := node.FileLabel(tc.options); got != tc.want || err != nil {
				t.Errorf("FileLabel = %q, %v, want %q", got, err, tc.want)
			}
		})
	}
	_, err := node.FileLabel(&v1.SELinuxOptions{Level: `s0",exec,context="`})
	if _, ok := errors.AsType[*volume.InvalidSpecError](err); !ok {
		t.Errorf("err = %v", err)
	}
}
