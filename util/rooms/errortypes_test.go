package rooms

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// maxErrorTypes caps the exported error types of all packages that promise something.
// A type is for an error with fields that a program asks for; another error is a
// volume.Failure with a cause of its own.
const maxErrorTypes = 50

func TestErrorTypesAreFew(t *testing.T) {
	var found []string
	eachFile(t, func(dir, name, path string) {
		promises := !slices.ContainsFunc(strings.Split(dir, "/"), func(part string) bool { return part == "internal" || part == "util" })
		if !promises || strings.HasSuffix(name, "_test.go") {
			return
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, declared := range file.Decls {
			f, ok := declared.(*ast.FuncDecl)
			if ok && f.Recv != nil && f.Name.Name == "Error" && f.Type.Params.NumFields() == 0 && ast.IsExported(receiver(f)) {
				found = append(found, dir+"."+receiver(f))
			}
		}
	})
	if len(found) > maxErrorTypes {
		t.Errorf("there are %d exported error types, more than %d: is the new one a volume.Failure with a cause?\n%s", len(found), maxErrorTypes, strings.Join(found, "\n"))
	}
	if len(found) < 20 {
		t.Errorf("only %d error types are found; the test sees the wrong tree: %v", len(found), found)
	}
}
