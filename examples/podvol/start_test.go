package main

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// maxOwnInit is what the start of any command may allocate in all packages of the library
// together, in bytes: they prepare nothing that most commands do not use. Under the race detector
// that is a tenth larger than without.
const maxOwnInit = 8 << 10

// initialized is a line of GODEBUG=inittrace=1.
var initialized = regexp.MustCompile(`(?m)^init (\S+) @.*, (\d+) bytes, (\d+) allocs$`)

func TestStartPreparesNothing(t *testing.T) {
	c := exec.CommandContext(t.Context(), "/proc/self/exe", "status", "--root-dir", t.TempDir())
	c.Env = append(os.Environ(), mainVar+"=1", "GODEBUG=inittrace=1")
	var errOut bytes.Buffer
	c.Stderr = &errOut
	if err := c.Run(); err != nil {
		t.Fatalf("%v\n%s", err, &errOut)
	}
	own, all := 0, 0
	for _, line := range initialized.FindAllStringSubmatch(errOut.String(), -1) {
		size, err := strconv.Atoi(line[2])
		if err != nil {
			t.Fatal(err)
		}
		all += size
		// The command's own package has the variables of these tests, too.
		if strings.HasPrefix(line[1], "github.com/podvol/podvol/") && !strings.HasPrefix(line[1], "github.com/podvol/podvol/examples/") {
			own += size
			t.Logf("%6d bytes, %4s allocations by %s", size, line[3], line[1])
		}
	}
	t.Logf("%d bytes in the library's packages, %d in all", own, all)
	if own == 0 || all == 0 {
		t.Errorf("no package says what it prepares:\n%s", &errOut)
	}
	if own > maxOwnInit {
		t.Errorf("the library's packages allocate %d bytes before the command begins, more than %d; prepare it at its first use", own, maxOwnInit)
	}
}

// The command works on a node's records and manifests. A client of the API server, whose packages
// register hundreds of types at each start, is what only cluster nodes need.
func TestTheCommandLinksNoAPIClient(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	packages := strings.Fields(string(out))
	if len(packages) < 100 {
		t.Fatalf("only %d packages: %s", len(packages), out)
	}
	for _, path := range packages {
		for _, unwanted := range []string{"k8s.io/client-go/", "k8s.io/apiserver/", "k8s.io/kubelet/"} {
			if strings.HasPrefix(path, unwanted) {
				t.Errorf("it is built with %s", path)
			}
		}
	}
}
