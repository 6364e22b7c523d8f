package sandbox

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podvol/podvol/mount/host"
)

// fakeHelpers puts a newuidmap and a newgidmap into PATH that write down what
// they are told.
func fakeHelpers(t *testing.T, script string) (told string) {
	t.Helper()
	dir := t.TempDir()
	told = filepath.Join(dir, "told")
	for _, name := range []string{"newuidmap", "newgidmap"} {
		content := "#!/bin/sh\necho " + name + " \"$@\" >> " + told + "\n" + script + "\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return told
}

func TestIDsAreMappedByTheHelpers(t *testing.T) {
	told := fakeHelpers(t, "")
	ids := []host.IDMapping{{ContainerID: 0, HostID: 1000, Size: 1}, {ContainerID: 1, HostID: 100000, Size: 65536}}
	for _, helper := range []string{"newuidmap", "newgidmap"} {
		if err := mapByHelper(t.Context(), helper, "/etc/subuid", 4242, ids); err != nil {
			t.Fatal(err)
		}
	}
	content, err := os.ReadFile(told)
	const want = "newuidmap 4242 0 1000 1 1 100000 65536\nnewgidmap 4242 0 1000 1 1 100000 65536\n"
	if err != nil || string(content) != want {
		t.Errorf("the helpers were told %q, want %q", content, want)
	}
}

func TestWhatAHelperRefusesIsSaid(t *testing.T) {
	fakeHelpers(t, "echo 'newuidmap: uid range [0-1) -> [5-6) not allowed' >&2; exit 1")
	err := mapByHelper(t.Context(), "newuidmap", "/etc/subuid", 4242, []host.IDMapping{{HostID: 5, Size: 2}})
	if err == nil || !errors.Is(err, ErrNoIDs) {
		t.Fatalf("%v; want ErrNoIDs", err)
	}
	for _, part := range []string{"not allowed", "5-6", "/etc/subuid"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
}
