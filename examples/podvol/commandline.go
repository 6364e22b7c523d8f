package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unicode"
)

// shellJoin quotes words for a POSIX shell where they need it.
func shellJoin(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = w
		if strings.ContainsFunc(w, unicode.IsControl) {
			quoted[i] = inOneLine(w)
		} else if w == "" || strings.ContainsFunc(w, func(r rune) bool {
			return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=,@%+", r)
		}) {
			quoted[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}

// inOneLine quotes a word with control characters by their numbers.
func inOneLine(word string) string {
	var b strings.Builder
	for i := range len(word) {
		switch c := word[i]; {
		case c < ' ' || c >= 0x7f:
			fmt.Fprintf(&b, `\%03o`, c)
		case c == '\'' || c == '\\':
			b.WriteByte('\\')
			fallthrough
		default:
			b.WriteByte(c)
		}
	}
	return "$'" + b.String() + "'"
}

// programName returns the words by which the user called this program, given
// its os.Args[0], which under go run is nothing to show.
func programName(arg0 string) []string {
	if strings.Contains(arg0, string(filepath.Separator)+"go-build") {
		return []string{"go", "run", "-C", "examples", "./podvol"}
	}
	return []string{arg0}
}

// executable is the path of this program.
func executable() string {
	path, err := os.Executable()
	if err != nil {
		return os.Args[0]
	}
	return strings.TrimSuffix(path, " (deleted)")
}
