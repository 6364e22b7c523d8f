// Package markup fills the slots of a page, with every text escaped for its place.
//
// It is a small part of html/template, and [Template.Execute] writes the same bytes. That one
// calls methods by names of its data, so that a program with it keeps every exported method
// of every type: podvol would have 34 MB in place of 29.
//
// A page has these actions. FIELD is a name, or names such as .Since.Clock; a dot alone is the
// value itself.
//
//	{{FIELD}}                                a text, a number, a [Link] or an [Own]
//	{{if FIELD}} … {{else}} … {{end}}        whether a field is true, is not empty, or is not 0
//	{{range FIELD}} … {{end}}                each value of a slice; the dot is that value
//
// What [Parse] accepts is safe for all data:
//
//   - A text stands between tags, or in a quoted attribute that is only read. There the five
//     characters of markup are all that could end it.
//   - An attribute that is followed takes a [Link] only.
//   - A script or a style takes an [Own] only, and nothing else does.
//   - The branches of an if and a range end in the place where they began, so each action has
//     one place, whatever the data is.
package markup

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

type (
	// Link is an address of the page's own, that its maker has made a safe one.
	Link string
	// Own is a script or a style of the page's own. It is written as it is, so it must not have
	// "</" and the name of its element, nor "<!--".
	Own string
)

// Template is a page for data of type T. Its methods may be called by several goroutines.
type Template[T any] struct{ page piece }

// piece writes a part of the page.
type piece func(w *bytes.Buffer, dot reflect.Value)

// Parse reads a page. An error says which action or tag is not allowed.
func Parse[T any](source string) (*Template[T], error) {
	p := &parser{rest: source}
	page, end, err := p.pieces(reflect.TypeFor[T]())
	switch {
	case err != nil:
		return nil, err
	case end != "":
		return nil, fmt.Errorf("{{%s}} ends nothing", end)
	case p.at != (place{}):
		return nil, fmt.Errorf("the page ends %s", p.at)
	}
	return &Template[T]{page}, nil
}

// Execute returns the page with data.
func (t *Template[T]) Execute(data T) []byte {
	var w bytes.Buffer
	t.page(&w, reflect.ValueOf(data))
	return w.Bytes()
}

type parser struct {
	rest string
	at   place
}

// pieces reads up to the action that ends them, or to the end of the page.
func (p *parser) pieces(dot reflect.Type) (all piece, end string, err error) {
	var parts []piece
	all = func(w *bytes.Buffer, dot reflect.Value) {
		for _, part := range parts {
			part(w, dot)
		}
	}
	for {
		literal, rest, found := strings.Cut(p.rest, "{{")
		if p.at, err = p.at.after(literal); err != nil {
			return nil, "", err
		}
		parts = append(parts, func(w *bytes.Buffer, _ reflect.Value) { w.WriteString(literal) })
		if !found {
			return all, "", nil
		}
		action, rest, found := strings.Cut(rest, "}}")
		if !found {
			return nil, "", fmt.Errorf("{{%s has no end", action)
		}
		p.rest = rest
		if action == "else" || action == "end" {
			return all, action, nil
		}
		part, err := p.action(action, dot)
		if err != nil {
			return nil, "", fmt.Errorf("{{%s}}: %w", action, err)
		}
		parts = append(parts, part)
	}
}

func (p *parser) action(action string, dot reflect.Type) (piece, error) {
	word, path, found := strings.Cut(action, " ")
	if !found {
		word, path = "", action
	}
	value, of, err := field(path, dot)
	if err != nil {
		return nil, err
	}
	switch word {
	case "":
		return p.at.slot(value, of)
	case "if":
		return p.condition(value, dot)
	case "range":
		if of.Kind() != reflect.Slice {
			return nil, fmt.Errorf("%v has no values", of)
		}
		each, err := p.block(of.Elem())
		return func(w *bytes.Buffer, dot reflect.Value) {
			all := value(dot)
			for i := range all.Len() {
				each(w, all.Index(i))
			}
		}, err
	}
	return nil, fmt.Errorf("%s is no action", word)
}

func (p *parser) condition(value func(reflect.Value) reflect.Value, dot reflect.Type) (piece, error) {
	begun := p.at
	yes, end, err := p.pieces(dot)
	no := func(*bytes.Buffer, reflect.Value) {}
	if err == nil && p.at != begun {
		return nil, fmt.Errorf("it begins %s and ends %s", begun, p.at)
	}
	if err == nil && end == "else" {
		no, err = p.block(dot)
	} else if err == nil && end != "end" {
		err = errors.New("it has no {{end}}")
	}
	return func(w *bytes.Buffer, dot reflect.Value) {
		if v := value(dot); v.IsZero() || v.Kind() == reflect.Slice && v.Len() == 0 {
			no(w, dot)
		} else {
			yes(w, dot)
		}
	}, err
}

// block reads pieces that end in the place where they begin.
func (p *parser) block(dot reflect.Type) (piece, error) {
	begun := p.at
	block, end, err := p.pieces(dot)
	switch {
	case err != nil:
		return nil, err
	case end != "end":
		return nil, errors.New("it has no {{end}}")
	case p.at != begun:
		return nil, fmt.Errorf("it begins %s and ends %s", begun, p.at)
	}
	return block, nil
}

// field finds what a path names in a type.
func field(path string, of reflect.Type) (value func(reflect.Value) reflect.Value, _ reflect.Type, err error) {
	var index []int
	names, found := strings.CutPrefix(path, ".")
	if !found {
		return nil, nil, fmt.Errorf("%q is no field", path)
	}
	if names == "" {
		return func(dot reflect.Value) reflect.Value { return dot }, of, nil
	}
	for name := range strings.SplitSeq(names, ".") {
		if of.Kind() != reflect.Struct {
			return nil, nil, fmt.Errorf("%v has no fields", of)
		}
		f, ok := of.FieldByName(name)
		if !ok || !f.IsExported() {
			return nil, nil, fmt.Errorf("%v has no field %s", of, name)
		}
		index, of = append(index, f.Index...), f.Type
	}
	return func(dot reflect.Value) reflect.Value { return dot.FieldByIndex(index) }, of, nil
}

// escaper makes a text that ends neither what stands between tags nor a quoted attribute.
var escaper = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&#34;", "'", "&#39;", "+", "&#43;", "\x00", "\uFFFD")

// slot writes a value at a place.
func (at place) slot(value func(reflect.Value) reflect.Value, of reflect.Type) (piece, error) {
	takes, err := at.takes()
	switch {
	case err != nil:
		return nil, err
	case takes != nil && of != takes || takes == nil && (of == reflect.TypeFor[Link]() || of == reflect.TypeFor[Own]()):
		return nil, fmt.Errorf("a %v cannot be %s", of, at)
	case of == reflect.TypeFor[Own]():
		return func(w *bytes.Buffer, dot reflect.Value) { w.WriteString(value(dot).String()) }, nil
	case of.Kind() == reflect.String:
		return func(w *bytes.Buffer, dot reflect.Value) { _, _ = escaper.WriteString(w, value(dot).String()) }, nil
	case of.Kind() == reflect.Int:
		return func(w *bytes.Buffer, dot reflect.Value) { w.WriteString(strconv.FormatInt(value(dot).Int(), 10)) }, nil
	}
	return nil, fmt.Errorf("a %v is no text", of)
}
