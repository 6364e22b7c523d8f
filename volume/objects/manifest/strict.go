package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	goyaml "go.yaml.in/yaml/v2"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/podvol/podvol/util/nearest"
)

// fieldError is a fault of one field.
type fieldError struct {
	field string
	err   error
}

// toJSON converts a document, and names the keys that are there twice.
func toJSON(doc document) (data []byte, duplicates []fieldError, err error) {
	text := doc.text
	if json.Valid(text) {
		return text, nil, nil // the decoder finds duplicates itself
	}
	data, err = yaml.YAMLToJSON(text)
	if err != nil {
		return nil, nil, redactYAML(err, doc.line)
	}
	var tree []goyaml.MapSlice
	if err := goyaml.Unmarshal(text, &tree); err == nil {
		for i, m := range tree {
			duplicates = append(duplicates, duplicateKeys(fmt.Sprintf("[%d]", i), m)...)
		}
		return data, duplicates, nil
	}
	var top goyaml.MapSlice
	if err := goyaml.Unmarshal(text, &top); err == nil {
		duplicates = duplicateKeys("", top)
	}
	return data, duplicates, nil
}

// redactYAML keeps the messages that cannot contain values, and counts lines
// from the file's first instead of the document's.
func redactYAML(err error, firstLine int) error {
	text, isYAML := strings.CutPrefix(err.Error(), "yaml: ")
	switch {
	case !isYAML || strings.Contains(text, "unmarshal") || strings.Contains(text, "`"):
		return errors.New("it is no valid YAML, or has something that JSON cannot express, such as a mapping as a key")
	case strings.Contains(text, "unknown anchor"):
		return errors.New("it is no valid YAML: it refers to an anchor that is not there; a value that begins with * needs quotes")
	}
	var line int
	if n, _ := fmt.Sscanf(text, "line %d:", &line); n == 1 {
		_, rest, _ := strings.Cut(text, ": ")
		text = fmt.Sprintf("near line %d: %s", line+firstLine-1, rest)
	}
	return fmt.Errorf("it is no valid YAML: %s", text)
}

func duplicateKeys(path string, value any) (found []fieldError) {
	switch value := value.(type) {
	case goyaml.MapSlice:
		seen := make(map[string]bool, len(value))
		for _, item := range value {
			key := fmt.Sprint(item.Key)
			field := join(path, key)
			if seen[key] {
				found = append(found, fieldError{field, errDuplicateField})
			}
			seen[key] = true
			found = append(found, duplicateKeys(field, item.Value)...)
		}
	case []any:
		for i, v := range value {
			found = append(found, duplicateKeys(fmt.Sprintf("%s[%d]", path, i), v)...)
		}
	}
	return found
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

var (
	errDuplicateField = errors.New("the field is there twice")
	errUnknownField   = errors.New("there is no such field")
)

// unknownField also names the field that may be meant.
func unknownField(path string, of reflect.Type) error {
	at := strings.LastIndex(path, ".")
	parent, known := of, true
	if at >= 0 {
		parent, known = typeAt(path[:at], of)
	}
	if !known || parent.Kind() != reflect.Struct {
		return errUnknownField
	}
	fields := make(map[string]reflect.Type)
	collectFields(parent, fields)
	if meant := nearest.Word(path[at+1:], slices.Sorted(maps.Keys(fields))); meant != "" {
		return fmt.Errorf("%w; did you mean %q?", errUnknownField, meant)
	}
	return errUnknownField
}

// typeAt is the type of a field below a type. It does not know fields of maps whose keys have
// dots or brackets.
func typeAt(path string, t reflect.Type) (reflect.Type, bool) {
	for name := range strings.SplitSeq(path, ".") {
		name, index, _ := strings.Cut(name, "[")
		fields := make(map[string]reflect.Type)
		switch t = plain(t); t.Kind() {
		case reflect.Struct:
			collectFields(t, fields)
		case reflect.Map:
			fields[name] = t.Elem()
		}
		if t = fields[name]; t == nil {
			return nil, false
		}
		for range strings.Count(index, "]") {
			if t = plain(t); t.Kind() != reflect.Slice {
				return nil, false
			}
			t = t.Elem()
		}
	}
	return plain(t), true
}

// plain is a type without pointers to it.
func plain(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

// unmarshal decodes JSON into a pointer to a struct, case-sensitively; unknown
// and duplicate fields are faults.
func unmarshal(data []byte, into any) (faults []fieldError) {
	strict, err := kjson.UnmarshalStrict(data, into)
	if err != nil {
		return []fieldError{locate(data, into, err)}
	}
	for _, e := range strict {
		var fault fieldError
		if f, ok := errors.AsType[kjson.FieldError](e); ok {
			fault.field = f.FieldPath()
		}
		fault.err = errDuplicateField
		if !strings.HasPrefix(e.Error(), "duplicate") {
			fault.err = unknownField(fault.field, reflect.TypeOf(into).Elem())
		}
		faults = append(faults, fault)
	}
	return faults
}

// locate finds the field that cannot be decoded. Its message does not show the
// field's value.
func locate(data []byte, into any, err error) fieldError {
	if syntax, offset := kjson.SyntaxErrorOffset(err); syntax {
		return fieldError{err: fmt.Errorf("it is no valid JSON at byte %d", offset)}
	}
	var tree any
	if kjson.UnmarshalCaseSensitivePreserveInts(data, &tree) != nil {
		return fieldError{err: errors.New("it is no valid JSON")}
	}
	if fault, found := misfit("", tree, reflect.TypeOf(into).Elem()); found {
		return fault
	}
	return fieldError{err: errors.New("it cannot be decoded: a value has the wrong type")}
}

// misfit compares a decoded document with its Go type and returns the first field
// that does not fit.
func misfit(path string, value any, t reflect.Type) (fieldError, bool) {
	if value == nil {
		return fieldError{}, false
	}
	t = plain(t)
	_, decodesItself := reflect.New(t).Interface().(json.Unmarshaler)
	switch v := value.(type) {
	case map[string]any:
		if !decodesItself {
			return misfitIn(path, v, t)
		}
	case []any:
		if t.Kind() == reflect.Slice && !decodesItself {
			for i, element := range v {
				if fault, found := misfit(fmt.Sprintf("%s[%d]", path, i), element, t.Elem()); found {
					return fault, true
				}
			}
			return fieldError{}, false
		}
	}
	data, err := json.Marshal(value)
	if err == nil {
		err = kjson.UnmarshalCaseSensitivePreserveInts(data, reflect.New(t).Interface())
	}
	if err == nil {
		return fieldError{}, false
	}
	return fieldError{path, fmt.Errorf("it is %s and cannot be decoded as %s", jsonType(value), wanted(t))}, true
}

func misfitIn(path string, object map[string]any, t reflect.Type) (fieldError, bool) {
	fields := map[string]reflect.Type{}
	switch t.Kind() {
	case reflect.Struct:
		collectFields(t, fields)
	case reflect.Map:
		for key := range object {
			fields[key] = t.Elem()
		}
	default:
		return fieldError{path, fmt.Errorf("it is an object and cannot be decoded as %s", wanted(t))}, true
	}
	keys := make([]string, 0, len(object))
	for key := range object {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for _, key := range keys {
		field, known := fields[key]
		if !known {
			continue
		}
		if fault, found := misfit(join(path, key), object[key], field); found {
			return fault, true
		}
	}
	return fieldError{}, false
}

// collectFields maps the names in JSON to the fields' types.
func collectFields(t reflect.Type, fields map[string]reflect.Type) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			collectFields(f.Type, fields)
		case name != "" && name != "-":
			fields[name] = f.Type
		}
	}
}

func jsonType(value any) string {
	switch value.(type) {
	case string:
		return "a string"
	case bool:
		return "a boolean"
	case []any:
		return "a list"
	case map[string]any:
		return "an object"
	}
	return "a number"
}

// wanted describes a Go type in the terms of manifests.
func wanted(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string (numbers and yes, no, true, false need quotes)"
	case reflect.Bool:
		return "a boolean"
	case reflect.Int, reflect.Int32, reflect.Int64:
		return "a whole number"
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "base64"
		}
		return "a list"
	case reflect.Map:
		return "an object"
	}
	if t.Name() == "Quantity" {
		return "a quantity, such as 10Gi or 500m"
	}
	return t.Name()
}
