package rooms

import (
	"go/ast"
	"go/token"
	"path"
	"strconv"
	"strings"
	"testing"
)

// typeName names a type of the module: its package's path below the top, and its own name.
type typeName struct{ dir, name string }

// methodSets are the methods of the module's types. Those that an embedded type lends count
// too: a reader of the outer type can meet them all.
type methodSets map[typeName]*methodSet

type methodSet struct {
	own   map[string]bool
	lends []typeName // embedded types of the module, and what an alias stands for
}

func (m methodSets) at(name typeName) *methodSet {
	if m[name] == nil {
		m[name] = &methodSet{own: make(map[string]bool)}
	}
	return m[name]
}

// add reads the declarations of one file.
func (m methodSets) add(dir string, file *ast.File) {
	packages := make(map[string]string) // by their names in this file
	for _, spec := range file.Imports {
		imported, _ := strconv.Unquote(spec.Path.Value)
		target, ours := inModule(imported)
		if !ours {
			continue
		}
		name := path.Base(target)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		packages[name] = target
	}
	for _, declared := range file.Decls {
		switch d := declared.(type) {
		case *ast.FuncDecl:
			if d.Recv != nil {
				m.at(typeName{dir, receiver(d)}).own[d.Name.Name] = true
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if t, ok := spec.(*ast.TypeSpec); ok && d.Tok == token.TYPE {
					m.addType(dir, packages, t)
				}
			}
		}
	}
}

func (m methodSets) addType(dir string, packages map[string]string, t *ast.TypeSpec) {
	set := m.at(typeName{dir, t.Name.Name})
	lend := func(expr ast.Expr) {
		if name, ok := typeOf(dir, packages, expr); ok {
			set.lends = append(set.lends, name)
		}
	}
	var fields *ast.FieldList
	switch e := t.Type.(type) {
	case *ast.StructType:
		fields = e.Fields
	case *ast.InterfaceType:
		fields = e.Methods
	default:
		if t.Assign.IsValid() {
			lend(t.Type)
		}
		return
	}
	for _, field := range fields.List {
		if len(field.Names) == 0 {
			lend(field.Type)
		}
		if _, method := field.Type.(*ast.FuncType); method {
			set.own[field.Names[0].Name] = true
		}
	}
}

// typeOf says which type of the module is meant.
func typeOf(dir string, packages map[string]string, expr ast.Expr) (typeName, bool) {
	for {
		switch e := expr.(type) {
		case *ast.StarExpr:
			expr = e.X
		case *ast.IndexExpr:
			expr = e.X
		case *ast.IndexListExpr:
			expr = e.X
		case *ast.Ident:
			return typeName{dir, e.Name}, true
		case *ast.SelectorExpr:
			in, ok := e.X.(*ast.Ident)
			if !ok {
				return typeName{}, false
			}
			target, ours := packages[in.Name]
			return typeName{target, e.Sel.Name}, ours
		default:
			return typeName{}, false
		}
	}
}

// all are the names of a type's methods, its own and the lent ones.
func (m methodSets) all(name typeName) map[string]bool {
	methods := make(map[string]bool)
	m.collect(name, methods, make(map[typeName]bool))
	return methods
}

func (m methodSets) collect(name typeName, methods map[string]bool, seen map[typeName]bool) {
	set := m[name]
	if set == nil || seen[name] {
		return
	}
	seen[name] = true
	for method := range set.own {
		methods[method] = true
	}
	for _, lender := range set.lends {
		m.collect(lender, methods, seen)
	}
}

func TestLentMethodsCount(t *testing.T) {
	m, file := make(methodSets), parse(t, `package p
import "`+module+`/q"
type Door struct { *engine; q.Lock; count int }
type engine struct { gears }
type gears interface { Turn(); Stop() }
func (d *Door) Open() {}
func (e *engine) Stop() {}
func (e engine) start() {}
`)
	m.add("p", file)
	m.add("q", parse(t, `package q
type Lock = latch[int]
type latch[T any] struct{}
func (l *latch[T]) Close() {}
`))
	got := m.all(typeName{"p", "Door"})
	for _, method := range strings.Fields("Open Stop start Turn Close") {
		if !got[method] {
			t.Errorf("%s does not count", method)
		}
	}
	if len(got) != 5 {
		t.Errorf("counted: %v", got)
	}
}
