package nfs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Users of this package cannot import the rooms that the errors of provisioning
// and recycling are made in, so each needs a name here.
func TestErrorsHaveNamesForUsers(t *testing.T) {
	const rooms = "../../internal/"
	var named []string
	file, err := parser.ParseFile(token.NewFileSet(), "errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if of, ok := s.X.(*ast.Ident); ok {
				named = append(named, of.Name+"."+s.Sel.Name)
			}
		}
		return true
	})
	for _, room := range []string{"sharedirs", "wipe"} {
		errs := exportedErrors(t, filepath.Join(rooms, room))
		if len(errs) == 0 {
			t.Errorf("package %s has no errors; was it moved?", room)
		}
		for _, name := range errs {
			if !slices.Contains(named, room+"."+name) {
				t.Errorf("users of package nfs have no name for %s.%s; give it one in errors.go", room, name)
			}
		}
	}
}

// exportedErrors returns the names of a package's error types and sentinels.
func exportedErrors(t *testing.T, dir string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			for _, name := range declared(d) {
				if name.IsExported() && (strings.HasSuffix(name.Name, "Error") || strings.HasPrefix(name.Name, "Err")) {
					names = append(names, name.Name)
				}
			}
		}
	}
	return names
}

func declared(d ast.Decl) (names []*ast.Ident) {
	general, ok := d.(*ast.GenDecl)
	if !ok {
		return nil
	}
	for _, spec := range general.Specs {
		switch spec := spec.(type) {
		case *ast.TypeSpec:
			names = append(names, spec.Name)
		case *ast.ValueSpec:
			names = append(names, spec.Names...)
		}
	}
	return names
}
