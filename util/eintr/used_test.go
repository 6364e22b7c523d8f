package eintr_test

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

// Whatever a signal can interrupt is repeated: what waits also in tests, which fail
// where it is not, once in a thousand runs on a busy machine.
func TestWhatASignalInterruptsIsRepeated(t *testing.T) {
	waiting := []string{"EpollWait", "FcntlFlock", "Flock", "Poll", "Ppoll", "Wait4", "Waitid"}
	opening := []string{"Fallocate", "Open", "Openat", "Openat2", "Read", "Pread", "Write", "Pwrite"}
	calls := 0
	err := filepath.WalkDir("../..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" {
			return err
		}
		interrupted := waiting
		if !strings.HasSuffix(path, "_test.go") {
			interrupted = append(slices.Clip(waiting), opening...)
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, 0)
		if err != nil {
			return err
		}
		handled := func(n ast.Node) bool { // here, by a loop of its own
			return refersTo(n, "EINTR")
		}
		for _, d := range file.Decls {
			if handled(d) {
				continue
			}
			ast.Inspect(d, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				of, name := selected(call.Fun)
				if of == "eintr" {
					calls++
					return false
				}
				if of == "unix" && slices.Contains(interrupted, name) {
					t.Errorf("%v: unix.%s is not repeated after EINTR", files.Position(call.Pos()), name)
				}
				return true
			})
		}
		return nil
	})
	if err != nil || calls == 0 {
		t.Errorf("%d calls are repeated, %v", calls, err)
	}
}

func refersTo(n ast.Node, name string) (found bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		e, ok := n.(ast.Expr)
		if ok {
			_, selects := selected(e)
			found = found || selects == name
		}
		return !found
	})
	return found
}

// selected returns what e names of which package, as unix and Poll.
func selected(e ast.Expr) (of, name string) {
	s, ok := e.(*ast.SelectorExpr)
	if !ok {
		return "", ""
	}
	if x, ok := s.X.(*ast.Ident); ok {
		of = x.Name
	}
	return of, s.Sel.Name
}
