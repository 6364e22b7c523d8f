package mount

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"testing"

	"github.com/podvol/podvol/mount/internal/fstypes"
)

// causes returns all constants of type Cause by name.
func causes(t *testing.T) map[string]Cause {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "cause.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]Cause{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if kind, ok := spec.Type.(*ast.Ident); !ok || kind.Name != "Cause" {
			return true
		}
		text, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		if spec.Doc == nil {
			t.Errorf("%s says nowhere what it means", spec.Names[0].Name)
		}
		all[spec.Names[0].Name] = Cause(text)
		return true
	})
	if len(all) < 25 {
		t.Fatalf("only %d causes found", len(all))
	}
	return all
}

func TestEveryCauseHasAdvice(t *testing.T) {
	for name, cause := range causes(t) {
		e := &Error{Op: OpMount, Source: "10.0.0.1:/e", Target: "/t", FSType: "nfs", Cause: cause}
		if quiet := slices.Contains(silent(), cause); quiet != (e.Advice() == "") {
			t.Errorf("%s: the advice is %q, and it is among those without: %v", name, e.Advice(), quiet)
		}
	}
}

func TestRungLoss(t *testing.T) {
	for _, tc := range []struct {
		rung   Rung
		fstype string
		loses  bool
	}{
		{RungNone, "nfs", false},
		{RungNormal, "nfs", false},
		{RungForce, "nfs4", true},
		{RungForce, "fuse.sshfs", true},
		{RungForce, "fuseblk", true},
		{RungForce, "smb3", true},
		{RungForce, "", true},
		{RungForce, "tmpfs", false},
		{RungLazy, "tmpfs", true},
		{RungLazy, "nfs", true},
	} {
		if loss := tc.rung.Loss(tc.fstype); (loss != "") != tc.loses {
			t.Errorf("%v of %q: %q", tc.rung, tc.fstype, loss)
		}
	}
	for fstype, want := range map[string]bool{"nfs": true, "nfs4": true, "cifs": true, "smb3": true, "9p": true, "ceph": true, "fuse": true, "fuse.glusterfs": true, "fuseblk": true, "virtiofs": false, "tmpfs": false, "ext4": false, "overlay": false} {
		if got := fstypes.HasForce(fstype); got != want {
			t.Errorf("%s has force: %v", fstype, got)
		}
		if fstypes.HasForce(fstype) && RungForce.Loss(fstype) == "" {
			t.Errorf("nobody knows what forcing %s may lose", fstype)
		}
	}
}
