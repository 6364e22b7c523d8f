package main

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"slices"
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

// built are the packages that the command is built with: the path of each, and those of its
// imports.
func built(t *testing.T) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-tags=grpcnotrace", "-f", "{{.ImportPath}} {{join .Imports \" \"}}", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	packages := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(packages) < 100 {
		t.Fatalf("only %d packages: %s", len(packages), out)
	}
	return packages
}

// The command works on a node's records and manifests. A client of the API server, whose packages
// register hundreds of types at each start, is what only cluster nodes need.
func TestTheCommandLinksNoAPIClient(t *testing.T) {
	for _, path := range built(t) {
		for _, unwanted := range []string{"k8s.io/client-go/", "k8s.io/apiserver/", "k8s.io/kubelet/"} {
			if strings.HasPrefix(path, unwanted) {
				t.Errorf("it is built with %s", path)
			}
		}
	}
}

// Some packages call methods by their names. With one of them the linker keeps all exported
// methods of all types, which makes the command a sixth larger. gRPC has one, unless it is built
// with the tag grpcnotrace.
func TestTheCommandCallsNoMethodByItsName(t *testing.T) {
	byName := []string{"encoding/gob", "html/template", "net/rpc", "text/template"}
	for _, p := range built(t) {
		path, imports, _ := strings.Cut(p, " ")
		for _, imported := range strings.Fields(imports) {
			if slices.Contains(byName, imported) && path != "github.com/spf13/cobra" { // which links it only for templates of a program's own
				t.Errorf("%s imports %s", path, imported)
			}
		}
	}
}
