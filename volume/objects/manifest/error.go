package manifest

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"

	"github.com/podvol/podvol/volume"
)

// Error is one fault of a manifest. It never contains a value from a document,
// which may be a secret; only names and fields. Its text is one line.
type Error struct {
	// File is the file's path; "-" is standard input.
	File string
	// Document counts the file's documents from 1; 0 means the file as a whole.
	// Line is the document's first line, from 1.
	Document, Line int
	// Object is the kind, namespace and name, as far as known.
	Object string
	// Field is the path of the wrong field, if there is one.
	Field string
	// Err is the reason.
	Err error
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Document > 0 {
		fmt.Fprintf(&b, ": document %d (line %d)", e.Document, e.Line)
	}
	if e.Object != "" {
		b.WriteString(": " + brief(e.Object))
	}
	if _, named := errors.AsType[*volume.InvalidSpecError](e.Err); e.Field != "" && !named {
		b.WriteString(": " + brief(e.Field))
	}
	b.WriteString(": " + brief(fmt.Sprint(e.Err)))
	return oneLine(b.String())
}

// oneLine spells control characters out: names are anybody's, and a manifest must not begin a line
// of a log, or tell a terminal anything.
func oneLine(text string) string {
	var b strings.Builder
	for _, r := range text {
		if unicode.IsControl(r) {
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// maxWord is how much of a word a message shows, in characters. The longest valid name has 253.
const maxWord = 300

// brief leaves out the middle of words that are longer: names in a wrong manifest have any length.
// The last characters stay, such as a quotation mark.
func brief(text string) string {
	if len(text) <= maxWord {
		return text
	}
	words := strings.Split(text, " ")
	for i, word := range words {
		if runes := []rune(word); len(runes) > maxWord {
			words[i] = string(runes[:maxWord]) + "…" + string(runes[len(runes)-2:])
		}
	}
	return strings.Join(words, " ")
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

var (
	// ErrEmpty says that a file, a directory or the whole input holds no
	// document.
	ErrEmpty = errors.New("there is no manifest in it")
	// ErrNotText says that a file is not UTF-8 text.
	ErrNotText = errors.New("it is not a manifest: not UTF-8 text")
	// ErrTooLarge says that a file is larger than [MaxFileBytes].
	ErrTooLarge = fmt.Errorf("it is larger than the %d MiB that a manifest may have", MaxFileBytes>>20)
	// ErrDuplicate says that two documents describe the same object.
	ErrDuplicate = errors.New("the object is there twice")
)

// place is the origin of an object.
type place struct {
	file           string
	document, line int
}

func (p place) String() string {
	return fmt.Sprintf("%s, document %d (line %d)", p.file, p.document, p.line)
}

func (p place) fault(object, field string, err error) *Error {
	return &Error{File: p.file, Document: p.document, Line: p.line, Object: object, Field: field, Err: err}
}

// faults returns an *[Error] for every *[volume.InvalidSpecError] joined in
// err. The prefix is put before the fields below "spec.".
func (p place) faults(object, prefix string, err error) (faults []error) {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			faults = append(faults, p.faults(object, prefix, e)...)
		}
		return faults
	}
	invalid, ok := errors.AsType[*volume.InvalidSpecError](err)
	if !ok {
		return []error{p.fault(object, "", err)}
	}
	field := invalid.Field
	if strings.HasPrefix(field, "spec.") {
		field = prefix + field
	}
	// The pod is the object, or its template.
	return []error{p.fault(object, field, volume.NothingDone(&volume.InvalidSpecError{Field: field, Volume: invalid.Volume, Reason: invalid.Reason}))}
}
