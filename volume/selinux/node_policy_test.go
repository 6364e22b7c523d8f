package selinux

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// node writes a node's files, by their paths.
func node(t *testing.T, files map[string]string) policyFiles {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return policyFiles{SysFS: filepath.Join(dir, "selinuxfs"), Config: filepath.Join(dir, "config"), Policies: dir, Containers: filepath.Join(dir, "contexts")}
}

// fedora is what a Fedora node has, without container-selinux' own file.
func fedora() map[string]string {
	return map[string]string{
		"selinuxfs/enforce": "1",
		"config":            "# This file controls the state of SELinux on the system.\nSELINUX=enforcing\n\nSELINUXTYPE=targeted\n",
		"targeted/contexts/lxc_contexts": `process = "system_u:system_r:container_t:s0"
content = "system_u:object_r:virt_var_lib_t:s0"
file = "system_u:object_r:container_file_t:s0"
ro_file="system_u:object_r:container_ro_file_t:s0"
`,
	}
}

func TestPolicyEnabled(t *testing.T) {
	if on, err := node(t, fedora()).enabled(); !on || err != nil {
		t.Errorf("enabled = %v, %v", on, err)
	}
	if on, err := node(t, nil).enabled(); on || err != nil {
		t.Errorf("of a node without it: %v, %v", on, err)
	}
}

func TestPolicyFileLabel(t *testing.T) {
	with := func(more map[string]string) map[string]string {
		files := fedora()
		maps.Copy(files, more)
		return files
	}
	for name, tc := range map[string]struct {
		files map[string]string
		want  string
		says  string // in the error
	}{
		"the policy's":                {fedora(), "system_u:object_r:container_file_t:s0", ""},
		"container-selinux's":         {with(map[string]string{"contexts": "; ours\nfile=system_u:object_r:svirt_sandbox_file_t:s0:c1,c2\n"}), "system_u:object_r:svirt_sandbox_file_t:s0:c1,c2", ""},
		"nothing":                     {nil, "", "container-selinux"},
		"no file label":               {with(map[string]string{"contexts": "process = \"a:b:c:d\"\n"}), "", "container-selinux"},
		"no label":                    {with(map[string]string{"contexts": "file = \"container_file_t\"\n"}), "", "user:role:type:level"},
		"no policy":                   {with(map[string]string{"config": "SELINUX=disabled\n"}), "", "SELINUXTYPE"},
		"policy that leads elsewhere": {with(map[string]string{"config": "SELINUXTYPE=../../tmp\n"}), "", "SELINUXTYPE"},
	} {
		t.Run(name, func(t *testing.T) {
			label, err := node(t, tc.files).fileLabel()
			if tc.says == "" {
				if err != nil || label.String() != tc.want {
					t.Errorf("fileLabel = %s, %v, want %s", label, err, tc.want)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("err = %v, want it to say %q", err, tc.says)
			}
			if missing := errors.Is(err, errNoFileLabel); missing != (tc.says == "container-selinux") {
				t.Errorf("%v matches errNoFileLabel: %v", err, missing)
			}
		})
	}
}

// This machine says something, whatever it is.
func TestPolicyOfThisHost(t *testing.T) {
	on, err := hostFiles().enabled()
	if err != nil {
		t.Fatal(err)
	}
	if label, err := hostFiles().fileLabel(); on && err != nil && !errors.Is(err, errNoFileLabel) {
		t.Errorf("fileLabel = %v, %v", label, err)
	}
}
