// Package plaintext writes what people read: without anything that a terminal obeys.
package plaintext

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// writer passes on what people read, and spells out what would tell their
// terminal anything: names in volumes, manifests and errors of servers are anybody's.
// What a line of JSON has, it has afterwards.
type writer struct{ io.Writer }

// Writer makes a writer that is safe to show.
func Writer(w io.Writer) io.Writer {
	if w == nil {
		return nil
	}
	return writer{w}
}

// Unwrap returns the writer that does not know what is safe.
func (t writer) Unwrap() io.Writer { return t.Writer }

// AsGiven is the writer behind a plain one and all others that have Unwrap: for other programs'
// output, and for who must know whether it is a terminal.
func AsGiven(w io.Writer) io.Writer {
	for {
		wrapped, ok := w.(interface{ Unwrap() io.Writer })
		if !ok {
			return w
		}
		w = wrapped.Unwrap()
	}
}

// Write implements io.Writer; n counts bytes of p.
func (t writer) Write(p []byte) (n int, err error) {
	if bytes.IndexFunc(p, tells) < 0 && utf8.Valid(p) {
		return t.Writer.Write(p)
	}
	if _, err := io.WriteString(t.Writer, spelt(string(p), "\n\t")); err != nil {
		return 0, err
	}
	return len(p), nil
}

// tells reports whether a character tells a terminal, or a reader's eye, more than
// itself: controls, C1 ones included, what changes the direction of a text, and
// separators of lines.
func tells(r rune) bool {
	return unicode.IsControl(r) && r != '\n' && r != '\t' ||
		unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp)
}

// short are the short spellings.
var short = map[rune]string{'\n': `\n`, '\t': `\t`, '\r': `\r`}

// spelt spells such characters out as JSON does, and bytes that are no UTF-8; those
// in except stay.
func spelt(text, except string) string {
	var b strings.Builder
	for at := 0; at < len(text); {
		r, size := utf8.DecodeRuneInString(text[at:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, text[at])
		case strings.ContainsRune(except, r):
			b.WriteRune(r)
		case short[r] != "":
			b.WriteString(short[r])
		case tells(r):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteString(text[at : at+size])
		}
		at += size
	}
	return b.String()
}

// Cell keeps a text to its cell of a table, or to its line.
func Cell(text string) string { return spelt(text, "") }

// Line writes one line, whatever the names in it are, such as a command to copy.
func Line(w io.Writer, format string, args ...any) {
	fmt.Fprintln(w, Cell(fmt.Sprintf(format, args...)))
}
