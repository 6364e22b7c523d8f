package rooms

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// Caps for what a reader can still hold: a package with more files, or a type with more
// methods, is several that have not been told apart.
const (
	maxFiles   = 25
	maxLines   = 4800
	maxMethods = 60
	// maxFunction is in lines.
	maxFunction = 60
)

// tooLarge are the packages and types above the caps, each with a cap of its own. They
// are to shrink: nothing is added here, and an entry that is not needed any more fails.
func tooLarge() map[string]size {
	return map[string]size{}
}

// size counts what there is of a package outside its tests.
type size struct {
	files, lines int
	methods      map[string]int // by type, with those that embedded types lend
	functions    map[string]int // the lines of each
}

func TestFunctionsAreShort(t *testing.T) {
	for path, has := range sizes(t) {
		for name, lines := range has.functions {
			compare(t, path+"."+name, "lines", lines, maxFunction, tooLarge()[path].functions[name])
		}
	}
}

func TestRoomsAreSmall(t *testing.T) {
	for path, has := range sizes(t) {
		may := tooLarge()[path]
		compare(t, path, "files", has.files, maxFiles, may.files)
		compare(t, path, "lines", has.lines, maxLines, may.lines)
		for name, methods := range has.methods {
			compare(t, path+"."+name, "methods", methods, maxMethods, may.methods[name])
		}
	}
}

func compare(t *testing.T, name, what string, has, usual, listed int) {
	t.Helper()
	switch limit := max(usual, listed); {
	case has > limit:
		t.Errorf("%s has %d %s, more than %d: what in it is a thing of its own?", name, has, what, limit)
	case listed > 0 && has <= usual:
		t.Errorf("%s has %d %s by now, as every other one may: take its entry away", name, has, what)
	}
}

// sizes reads all packages, by their paths below the module.
func sizes(t *testing.T) map[string]size {
	t.Helper()
	all, methods, fset := make(map[string]size), make(methodSets), token.NewFileSet()
	eachFile(t, func(dir, name, path string) {
		if strings.HasSuffix(name, "_test.go") {
			return
		}
		file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		s := all[dir]
		if s.methods == nil {
			s.methods, s.functions = make(map[string]int), make(map[string]int)
		}
		methods.add(dir, file)
		s.files++
		s.lines += fset.File(file.Pos()).LineCount()
		for _, declared := range file.Decls {
			f, ok := declared.(*ast.FuncDecl)
			if !ok {
				continue
			}
			name := f.Name.Name
			if f.Recv != nil {
				name = receiver(f) + "." + name
			}
			s.functions[name] = fset.Position(f.End()).Line - fset.Position(f.Pos()).Line + 1
		}
		all[dir] = s
	})
	for name := range methods {
		all[name.dir].methods[name.name] = len(methods.all(name))
	}
	return all
}

func parse(t *testing.T, source string) *ast.File {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "", source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// eachFile calls f with each Go file of the repository: its package's path below the top, its
// name, and its path from here.
func eachFile(t *testing.T, f func(dir, name, path string)) {
	t.Helper()
	const top = "../.."
	packages := make(map[string]bool)
	err := filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() && (name == "testdata" || path != top && strings.HasPrefix(name, ".")) {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		dir, err := filepath.Rel(top, filepath.Dir(path))
		if err != nil {
			return err
		}
		dir = filepath.ToSlash(dir)
		packages[dir] = true
		f(dir, name, path)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(packages) < 20 {
		t.Fatalf("only %d packages are read; the test sees the wrong tree", len(packages))
	}
}

// receiver returns the name of a method's type.
func receiver(method *ast.FuncDecl) string {
	for expr := method.Recv.List[0].Type; ; {
		switch e := expr.(type) {
		case *ast.StarExpr:
			expr = e.X
		case *ast.IndexExpr:
			expr = e.X
		case *ast.IndexListExpr:
			expr = e.X
		case *ast.Ident:
			return e.Name
		default:
			return ""
		}
	}
}
