package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
)

// document is one document of a file. Its text is JSON or YAML.
type document struct {
	place
	text []byte
}

// split cuts a file into its documents. Documents without content, such as one
// of comments alone, are not counted.
func split(f file) (documents []document) {
	data := bytes.TrimPrefix(f.data, []byte("\ufeff"))
	for _, part := range splitYAML(data) {
		for _, value := range splitJSON(part) {
			if skipBlank(&value); len(value.text) > 0 {
				value.file, value.document = f.name, len(documents)+1
				documents = append(documents, value)
			}
		}
	}
	return documents
}

// splitYAML cuts at the markers "---" and "...". In the line of a marker, the
// marker itself is replaced by blanks.
func splitYAML(data []byte) (parts []document) {
	var part document
	part.line = 1
	line := 0
	for text := range bytes.Lines(data) {
		line++
		if rest, ok := marker(text); ok {
			parts = append(parts, part)
			part = document{place: place{line: line}}
			text = rest
		}
		part.text = append(part.text, text...)
	}
	return append(parts, part)
}

// marker returns the rest of a document marker's line.
func marker(line []byte) (rest []byte, ok bool) {
	for _, m := range []string{"---", "..."} {
		after, found := bytes.CutPrefix(line, []byte(m))
		if found && (len(after) == 0 || bytes.ContainsRune([]byte(" \t\r\n"), rune(after[0]))) {
			return after, true
		}
	}
	return nil, false
}

// splitJSON cuts a sequence of JSON values. Text that is no JSON stays whole.
func splitJSON(part document) []document {
	text := bytes.TrimSpace(part.text)
	if len(text) == 0 || (text[0] != '{' && text[0] != '[') {
		return []document{part}
	}
	var values []document
	decoder := json.NewDecoder(bytes.NewReader(part.text))
	for {
		var value json.RawMessage
		err := decoder.Decode(&value)
		if errors.Is(err, io.EOF) {
			return values
		}
		if err != nil {
			return []document{part}
		}
		before := part.text[:decoder.InputOffset()-int64(len(value))]
		line := part.line + bytes.Count(before, []byte("\n"))
		values = append(values, document{place: place{line: line}, text: value})
	}
}

// skipBlank drops the blank lines, comments and directives at the beginning. A
// document of nothing else becomes empty.
func skipBlank(d *document) {
	for line := range bytes.Lines(d.text) {
		trimmed := bytes.TrimSpace(line)
		if len(trimmed) > 0 && trimmed[0] != '#' && line[0] != '%' {
			return
		}
		d.text = d.text[len(line):]
		d.line++
	}
}
