// Package choice has flags that take one word of a list, and says what was meant by words that
// are mistyped, and prints values for programs.
package choice

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/podvol/podvol/util/nearest"
)

// AddOutput adds -o, which says how a command prints. The first word is the usual one.
func AddOutput(c *cobra.Command, value *string, words ...string) {
	*value = words[0]
	c.Flags().VarP(&word{value, words}, "output", "o", "how to print: "+List(words))
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
}

// Print prints a value as -o json or yaml says.
func Print(out io.Writer, format string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	text = append(text, '\n')
	if err == nil && format == "yaml" {
		text, err = yaml.JSONToYAML(text)
	}
	if err == nil {
		_, err = out.Write(text)
	}
	return err
}

// List joins words for a sentence.
func List(words []string) string {
	last := len(words) - 1
	if last < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// Few names the first of many.
func Few(names []string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
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
	return fmt.Errorf("it must be %s%s", List(w.words), Meant(value, w.words))
}

// Meant is the end of a sentence about a word that is not in a list: which one may be meant. Without
// one it is empty.
func Meant(given string, words []string) string {
	if meant := nearest.Word(given, words); meant != "" {
		return fmt.Sprintf("; did you mean %q?", meant)
	}
	return ""
}

// MeantCommand is [Meant] for the name of a command below another one. Words that a command is
// suggested for mean that command.
func MeantCommand(below *cobra.Command, given string) string {
	var names []string
	for _, c := range below.Commands() {
		if slices.Contains(c.SuggestFor, given) {
			return Meant(c.Name(), []string{c.Name()})
		}
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return Meant(given, names)
}

// MeantFlag is [Meant] for a flag that err says the command does not have.
func MeantFlag(c *cobra.Command, err error) string {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok || len(unknown.GetSpecifiedName()) < 2 {
		return ""
	}
	var names []string
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, "--"+f.Name)
		}
	})
	return Meant("--"+unknown.GetSpecifiedName(), names)
}
