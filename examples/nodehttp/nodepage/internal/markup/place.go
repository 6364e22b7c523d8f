package markup

import (
	"fmt"
	"reflect"
	"regexp"
	"strings"
)

// place is where in HTML a text stands; the zero place is between tags.
type place struct {
	kind kind
	// name is the attribute's, the element's or the tag's, as far as that is written.
	name string
	// element is the tag's of an attribute.
	element string
}

type kind int

const (
	between kind = iota
	tag          // name is the word that is being written
	attribute
	raw // in an element of which the browser reads no tags
)

func (at place) String() string {
	return [...]string{"between tags", "in a tag", "in the attribute " + at.name, "in " + at.name}[at.kind]
}

// plainAttributes are only read, by people or by the page's script; links are followed.
var (
	plainAttributes = map[string]bool{"id": true, "class": true, "value": true, "datetime": true, "data-version": true}
	links           = map[string]bool{"href": true}
	rawElements     = map[string]bool{"script": true, "style": true}
	// strangeElements are read in ways of their own, that a page does not need.
	strangeElements = map[string]bool{"iframe": true, "noembed": true, "noframes": true, "noscript": true, "plaintext": true, "xmp": true, "svg": true, "math": true, "template": true}
)

// tagName is a whole name with what ends it: a browser goes on with a name that is cut.
var tagName = regexp.MustCompile("^[!/]?[a-z][a-z0-9]*[ >]")

// takes returns the one type that a place takes; nil: any text.
func (at place) takes() (reflect.Type, error) {
	switch {
	case at.kind == between, at.kind == attribute && plainAttributes[at.name]:
		return nil, nil
	case at.kind == attribute && links[at.name]:
		return reflect.TypeFor[Link](), nil
	case at.kind == raw:
		return reflect.TypeFor[Own](), nil
	}
	return nil, fmt.Errorf("nothing can be %s", at)
}

// after returns the place after some HTML that begins at this one.
func (at place) after(html string) (place, error) {
	for html != "" {
		var err error
		if at, html, err = at.step(html); err != nil {
			return at, err
		}
	}
	return at, nil
}

// step goes to the end of the place, or of the HTML.
func (at place) step(html string) (next place, rest string, err error) {
	switch at.kind {
	case between:
		_, rest, found := strings.Cut(html, "<")
		if !found {
			return at, "", nil
		}
		name := tagName.FindString(rest)
		if name == "" || strangeElements[name[:len(name)-1]] {
			return at, "", fmt.Errorf("<%.10s is not allowed", rest)
		}
		return place{kind: tag, element: name[:len(name)-1]}, rest[len(name)-1:], nil
	case tag:
		return at.inTag(html)
	case attribute:
		_, rest, found := strings.Cut(html, `"`)
		if !found {
			return at, "", nil
		}
		return place{kind: tag, element: at.element}, rest, nil
	case raw:
		before, _, found := strings.Cut(html, "</"+at.name+">")
		if !found {
			return at, "", nil
		}
		return place{}, html[len(before):], nil
	}
	panic("no such place")
}

// inTag goes over one character of a tag.
func (at place) inTag(html string) (place, string, error) {
	c, rest := html[0], html[1:]
	switch {
	case c == '>' && rawElements[at.element]:
		return place{kind: raw, name: at.element}, rest, nil
	case c == '>':
		return place{}, rest, nil
	case c == ' ':
		at.name = ""
		return at, rest, nil
	case c == '=' && at.name != "" && strings.HasPrefix(rest, `"`):
		return place{kind: attribute, name: at.name, element: at.element}, rest[1:], nil
	case c >= 'a' && c <= 'z' || c == '-':
		at.name += string(c)
		return at, rest, nil
	}
	return at, "", fmt.Errorf("%q is not allowed in <%s", c, at.element)
}
