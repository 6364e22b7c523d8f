// Package choice has flags that take one word of a list.
package choice

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/podvol/podvol/util/nearest"
)

// AddOutput adds -o, which says how a command prints. The first word is the usual one.
func AddOutput(c *cobra.Command, value *string, words ...string) {
	*value = words[0]
	c.Flags().VarP(&word{value, words}, "output", "o", "how to print: "+List(words))
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
}

// List joins words for a sentence.
func List(words []string) string {
	last := len(words) - 1
	if last < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// word is the value of such a flag.
type word struct {
	value *string
	words []string
}

// String implements pflag.Value.
func (w *word) String() string { return *w.value }

// Type implements pflag.Value.
func (w *word) Type() string { return "format" }

// Set implements pflag.Value.
func (w *word) Set(value string) error {
	if slices.Contains(w.words, value) {
		*w.value = value
		return nil
	}
	text := "it must be " + List(w.words)
	if meant := nearest.Word(value, w.words); meant != "" {
		text += fmt.Sprintf("; did you mean %q?", meant)
	}
	return fmt.Errorf("%s", text)
}
