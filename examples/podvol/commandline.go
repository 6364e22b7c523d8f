package main

import (
	"os"
	"path/filepath"
	"strings"
)

// shellJoin quotes words for a POSIX shell where they need it.
func shellJoin(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = w
		if w == "" || strings.ContainsFunc(w, func(r rune) bool {
			return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=,@%+", r)
		}) {
			quoted[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
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
