package nodepage

import (
	"bytes"
	"fmt"
	"html"
)

// markup is HTML of this package. Go turns constants into it, but no variable: what comes from
// elsewhere gets into a page only as a value of put or line, which escape it.
//
// It is not a template of html/template, since that calls methods by their names. The linker of a
// program that has it can leave out no exported method of any type: 5 MB in podvol's command.
type markup string

// document is HTML that is being written.
type document struct{ text bytes.Buffer }

// put writes markup with the values in the places of its %s, [clean] and escaped. A place is between two
// tags or between the double quotes of an attribute, which is neither a handler (onclick) nor
// a style, and no address unless a function of this package has made it.
func (d *document) put(m markup, values ...any) {
	escaped := make([]any, len(values))
	for i, value := range values {
		escaped[i] = html.EscapeString(clean(fmt.Sprint(value)))
	}
	fmt.Fprintf(&d.text, string(m), escaped...)
}

// line writes markup as put does, and ends the line.
func (d *document) line(m markup, values ...any) {
	d.put(m+"\n", values...)
}

// section begins a section with a title.
func (d *document) section(id, title string) {
	d.line(`<section id="%s" aria-labelledby="h-%s">`, id, id)
	d.line(`<h2 id="h-%s">%s</h2>`, id, title)
}

// columns is the head of a table.
func (d *document) columns(names ...string) {
	d.put(`<thead role="rowgroup"><tr role="row">`)
	for _, name := range names {
		d.put(`<th role="columnheader" scope="col">%s</th>`, name)
	}
	d.line(`</tr></thead>`)
}

func (d *document) state(class, state string) {
	d.put(`<td role="cell" class="state"><span class="badge %s">%s</span></td>`, class, state)
}

func (d *document) since(m moment) {
	d.put(`<td role="cell" class="since">`)
	if m.Clock != "" {
		d.put(`<time datetime="%s">%s</time> <span class="quiet">%s</span>`, m.Machine, m.Clock, m.Ago)
	}
	d.put(`</td>`)
}

// startWhy begins the row that explains the one before it.
func (d *document) startWhy(class, id string) {
	d.put(`<tr role="row" class="why %s" id="why-%s"><td role="cell" colspan="4">`, class, id)
}

func (d *document) endWhy() { d.line(`</td></tr>`) }

// paragraph is a text, unless it is empty.
func (d *document) paragraph(class, text string) {
	if text != "" {
		d.put(`<p class="%s">%s</p>`, class, text)
	}
}
