// Package nearest finds the word that was meant by one that is mistyped.
package nearest

import "strings"

// Word returns the word of a list that is meant by the given one: the first one that begins with
// it; else the longest one that at least half of it consists of, at its beginning; else the one
// that is most like it. It is empty where none is like enough: that takes at most one change of a
// letter for every three, two letters in the wrong order being one. Of words that are equally
// like it the first one is returned.
func Word(given string, of []string) string {
	if given == "" {
		return ""
	}
	begins := ""
	for _, word := range of {
		if strings.HasPrefix(word, given) {
			return word
		}
		if strings.HasPrefix(given, word) && len(word) > len(begins) {
			begins = word
		}
	}
	if 2*len(begins) >= len(given) {
		return begins
	}
	best, least := "", (len([]rune(given))+2)/3+1
	for _, word := range of {
		if d := distance([]rune(given), []rune(word)); d < least {
			best, least = word, d
		}
	}
	return best
}

// distance counts the letters to add, to remove, to replace or to swap with the next one.
func distance(a, b []rune) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range b {
		rows[0][j+1] = j + 1
	}
	for i := range a {
		for j := range b {
			changed := 1
			if a[i] == b[j] {
				changed = 0
			}
			d := min(rows[i][j+1]+1, rows[i+1][j]+1, rows[i][j]+changed)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				d = min(d, rows[i-1][j-1]+1)
			}
			rows[i+1][j+1] = d
		}
	}
	return rows[len(a)][len(b)]
}
