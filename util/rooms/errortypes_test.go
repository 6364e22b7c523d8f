package rooms

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// maxErrorTypes caps the exported error types of all packages that promise something.
// A type is for an error with fields that a program asks for; another error is a
// volume.Failure with a cause of its own.
const maxErrorTypes = 50

func TestErrorTypesAreFew(t *testing.T) {
	const top = "../.."
	var found []string
	err := filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := entry.Name(); entry.IsDir() && path != top && (strings.HasPrefix(name, ".") || slices.Contains([]string{"internal", "testdata", "util"}, name)) {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, declared := range file.Decls {
			f, ok := declared.(*ast.FuncDecl)
			if ok && f.Recv != nil && f.Name.Name == "Error" && f.Type.Params.NumFields() == 0 && ast.IsExported(receiver(f)) {
				found = append(found, strings.TrimPrefix(filepath.ToSlash(filepath.Dir(path)), top+"/")+"."+receiver(f))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) > maxErrorTypes {
		t.Errorf("there are %d exported error types, more than %d: is the new one a volume.Failure with a cause?\n%s", len(found), maxErrorTypes, strings.Join(found, "\n"))
	}
	if len(found) < 20 {
		t.Errorf("only %d error types are found; the test sees the wrong tree: %v", len(found), found)
	}
}
