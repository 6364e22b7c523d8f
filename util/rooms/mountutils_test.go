package rooms

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Who comes from mount-utils finds each of its functions in the documentation of
// package mount.
func TestMountNamesAllFunctionsOfMountUtils(t *testing.T) {
	files, err := exec.Command("go", "list", "-f", "{{range .GoFiles}}{{$.Dir}}/{{.}}\n{{end}}", "k8s.io/mount-utils").Output()
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.ReadFile(filepath.FromSlash("../../mount/doc.go"))
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, name := range strings.Fields(string(files)) {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Recv != nil || !f.Name.IsExported() {
				continue
			}
			count++
			if !regexp.MustCompile(`\b` + f.Name.Name + `\b`).Match(own) {
				t.Errorf("mount/doc.go does not name %s of mount-utils; say there how it goes with this package", f.Name)
			}
		}
	}
	if count == 0 {
		t.Error("mount-utils has no functions")
	}
}
