package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume/objects/manifest"
)

// doubt is the version of a file that is not in force, since something is wrong
// with it, or since it is being written. What was in another file may be in it by
// now, and so is not unwanted.
type doubt struct {
	// text is the file's; empty where it could not be read.
	text []byte
}

// mayHave reports whether an object of this name may be in the text. It looks
// for the name as a word: what is wrong with the text may be its very syntax.
func (d *doubt) mayHave(name string) bool {
	// An empty text has lost what it had; that in others names can be written by
	// escapes, and in other encodings.
	if len(d.text) == 0 || bytes.ContainsAny(d.text, "\\\x00") || !utf8.Valid(d.text) {
		return true
	}
	for from := 0; ; {
		at := bytes.Index(d.text[from:], []byte(name))
		if at < 0 {
			return false
		}
		begin, end := from+at, from+at+len(name)
		if (begin == 0 || !isNameByte(d.text[begin-1])) && (end == len(d.text) || !isNameByte(d.text[end])) {
			return true
		}
		from = begin + 1
	}
}

func isNameByte(b byte) bool {
	return b == '-' || b == '.' || '0' <= b && b <= '9' || 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z'
}

// namesOf returns the names by which a manifest may have an object: its own, and
// those of workloads that it may come from.
func namesOf(object metav1.Object) []string {
	name := object.GetName()
	names := []string{name}
	if at := strings.LastIndexByte(name, '-'); at > 0 && strings.Trim(name[at+1:], "0123456789") == "" {
		names = append(names, name[:at])
	}
	if set, ok := object.GetAnnotations()[manifest.StatefulSetAnnotation]; ok {
		names = append(names, set)
	}
	return names
}

// doubtful returns a file that may have one of the names, though it is not in
// force; nil if there is none.
func (d *manifestDir) doubtful(names []string) *watchedFile {
	for _, file := range d.sorted() {
		if file.doubt != nil && slices.ContainsFunc(names, file.doubt.mayHave) {
			return file
		}
	}
	return nil
}

// hold adds to what good files say what they said before, and what may have
// moved into a file that is not in force.
func (d *manifestDir) hold(all *contents) {
	uids := make(map[types.UID]bool, len(all.pods))
	for _, pod := range all.pods {
		uids[pod.UID] = true
	}
	for ref, pod := range d.last.pods {
		if all.pods[ref] != nil || uids[pod.UID] {
			continue
		}
		if file := d.doubtful(namesOf(pod)); file != nil {
			all.pods[ref] = pod
			all.held = append(all.held, fmt.Sprintf("%s (%s)", ref, file.name))
		}
	}
	for ref, object := range d.last.objects {
		if all.objects[ref] != nil {
			continue
		}
		if file := d.doubtful(namesOf(object)); file != nil {
			all.objects[ref] = object
			all.held = append(all.held, fmt.Sprintf("%s (%s)", ref, file.name))
		}
	}
	for set := range d.last.sets {
		if !all.sets[set] && d.doubtful([]string{set.Name}) != nil {
			all.sets[set] = true
		}
	}
	slices.Sort(all.held)
}
